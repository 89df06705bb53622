// SPDX-License-Identifier: Apache-2.0
//
// Knows the replicas that the ranks of a job hold: which rank saves what, and whether replicas are
// equal. Thread rule: only the trainer's thread calls it. All ranks make the collective calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer_hooks/group/owned_parts.h"
#include "trainer_hooks/group/replica_digests.h"
#include "trainer_hooks/group/replica_plan.h"
#include "trainer_hooks/save/tensor_places.h"
#include "varve/rank_group.h"

namespace varve::internal {

class ReplicaKeeper {
 public:
  // `ranks` and `devices` must outlive it. `devices` and `stored` may be null.
  ReplicaKeeper(RankGroup* ranks, std::vector<ReplicaRule> rules, DeviceTensorSource* devices,
                int num_threads, OwnedParts::ListStored stored = nullptr)
      : ranks_(ranks),
        rules_(std::move(rules)),
        devices_(devices),
        num_threads_(num_threads),
        owned_(std::move(stored)) {}

  // Returns what this rank saves of the tensors of a valid state. It is collective. Ranks tell each
  // other what they hold only if that has changed for one of them. If one rank has an error, all
  // ranks return it.
  Result<std::vector<StateTensor>> Plan(const TrainingState& state);

  // True if any rank had replicas in the last Plan.
  bool has_replicas() const { return !plan_.groups.empty(); }

  // Takes the memory that devices need to digest the replicas of the state of the last Plan.
  // kUnavailable: there is not that much memory. kInvalidArgument names a tensor that is not on its
  // device.
  Status Prepare(const TrainingState& state);
  // Starts to digest the replicas of the state of the last Prepare. They are read until Compare or
  // End.
  void Begin();
  // Compares the replicas. It is collective, and the outcome is the same on all ranks.
  // kInvalidArgument lists the tensors whose replicas differ, and their ranks, and says whether
  // only the padding differs. Differences that are allowed become warnings. kUnavailable: a rank
  // has no memory left to digest its replicas.
  Status Compare(std::vector<std::string>* warnings);
  void End() { digests_.reset(); }

 private:
  Status Update(const TrainingState& state);
  // Returns the tensors of this rank that have replicas, in the order of plan_.groups.
  std::vector<const StateTensor*> Replicated(const TrainingState& state) const;

  // Replicas, some of which differ from that of the lowest rank.
  struct Difference {
    const ReplicaGroup* group = nullptr;
    std::vector<uint32_t> others;
    bool is_known = false;  // whether it is in padding alone
    bool is_padding_alone = false;
  };
  const HeldTensor& TensorOf(const Difference& difference) const {
    const ReplicaGroup::Holder& lowest = difference.group->holders[0];
    return held_[lowest.rank][lowest.tensor];
  }
  Result<std::vector<Difference>> FindDifferences(
      const std::vector<std::vector<std::byte>>& digests) const;
  Status LookAtPadding(std::vector<Difference>* differences);
  std::string TextOf(const Difference& difference) const;
  Status Judge(const std::vector<Difference>& differences,
               std::vector<std::string>* warnings) const;

  RankGroup* const ranks_;
  const std::vector<ReplicaRule> rules_;
  DeviceTensorSource* const devices_;
  const int num_threads_;
  OwnedParts owned_;
  std::vector<std::vector<std::byte>> known_;  // of each rank, the digest of its list
  std::vector<std::vector<std::byte>> lists_;  // of each rank, as bytes
  std::vector<std::vector<HeldTensor>> held_;  // of each rank. They borrow from lists_
  ReplicaPlan plan_;
  TensorPlaces places_;  // of the replicas of this rank, for which devices are prepared
  std::unique_ptr<ReplicaDigests> digests_;  // from Begin to End
};

}  // namespace varve::internal
