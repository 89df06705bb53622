// SPDX-License-Identifier: Apache-2.0
//
// The replicas that the ranks of a job hold: who of them saves what, and whether they are equal.
// The trainer's thread alone calls this, and what is collective on all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer_hooks/group/owned_parts.h"
#include "trainer_hooks/group/replica_digests.h"
#include "trainer_hooks/group/replica_plan.h"
#include "trainer_hooks/save/device_places.h"
#include "varve/rank_group.h"

namespace varve::internal {

class ReplicaKeeper {
 public:
  // `ranks` and `devices`, which may be null, must outlive it. `stored` may be null, too.
  ReplicaKeeper(RankGroup* ranks, std::vector<ReplicaRule> rules, DeviceTensorSource* devices,
                int num_threads, OwnedParts::ListStored stored = nullptr)
      : ranks_(ranks),
        rules_(std::move(rules)),
        devices_(devices),
        num_threads_(num_threads),
        owned_(std::move(stored)) {}

  // Collective: what this rank saves of a valid state. Ranks tell each other what they hold only
  // when that has changed for one of them. An error of one rank is that of all.
  Result<TrainingState> Plan(const TrainingState& state);

  // True if any rank had replicas in the last Plan.
  bool has_replicas() const { return !plan_.groups.empty(); }

  // Takes what devices need to digest what has replicas of the state of the last Plan.
  // kUnavailable: there is not so much. kInvalidArgument names a tensor that is not on its device.
  Status Prepare(const TrainingState& state);
  // Begins to digest it. It was prepared, and is read until Compare or End.
  void Begin(const TrainingState& state);
  // Collective, and the outcome is the same on all ranks. kInvalidArgument lists the tensors whose
  // replicas differ, and the ranks, and says whether it is in padding alone; where differences are
  // allowed, they become warnings. kUnavailable: a rank has no memory left to digest its own.
  Status Compare(std::vector<std::string>* warnings);
  void End() { digests_.reset(); }

 private:
  Status Update(const TrainingState& state);
  // Those of this rank, in the order of plan_.groups.
  std::vector<const StateTensor*> Replicated(const TrainingState& state) const;

  // Replicas of which some differ from that of the lowest rank.
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
  std::vector<std::vector<HeldTensor>> held_;  // of each rank
  ReplicaPlan plan_;
  DevicePlaces places_;                      // that devices are prepared for
  std::unique_ptr<ReplicaDigests> digests_;  // from Begin to End
};

}  // namespace varve::internal
