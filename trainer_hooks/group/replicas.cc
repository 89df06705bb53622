// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replicas.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/util.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/rank_part.h"

namespace varve {
namespace {

std::string RankList(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Result<std::vector<std::vector<HeldTensor>>> DecodeAll(
    std::span<const std::vector<std::byte>> lists) {
  std::vector<std::vector<HeldTensor>> all;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    auto decoded = DecodeHeld(AsString(lists[rank]));
    if (!decoded.ok()) {
      return decoded.status().WithContext("what rank " + std::to_string(rank) + " has sent");
    }
    all.push_back(*std::move(decoded));
  }
  return all;
}

}  // namespace

Result<TrainingState> ReplicaKeeper::Plan(const TrainingState& state) {
  VARVE_RETURN_IF_ERROR(Update(ListHeld(state, rules_)));
  const auto rank = static_cast<uint32_t>(ranks_->rank());
  Result<TrainingState> part = PartOf(state, held_[rank], plan_.writes[rank], rank);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, part.status()));
  return part;
}

Status ReplicaKeeper::Update(std::vector<HeldTensor> held) {
  const Digest digest = ComputeDigest(0, AsBytes(EncodeHeld(held)));
  VARVE_ASSIGN_OR_RETURN(auto digests, ranks_->AllGather(std::as_bytes(std::span(&digest, 1))));
  if (digests == known_) return Status::Ok();
  owned_.Recall(&held);
  const std::string list = EncodeHeld(held);
  VARVE_ASSIGN_OR_RETURN(const auto lists, ranks_->AllGather(AsBytes(list)));
  Result<std::vector<std::vector<HeldTensor>>> all = DecodeAll(lists);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, all.status()));  // else some would plan, and some not
  VARVE_RETURN_IF_ERROR(CompareRules(*all));           // on all ranks alike
  held_ = *std::move(all);
  plan_ = PlanReplicas(held_);
  const auto rank = static_cast<size_t>(ranks_->rank());
  owned_.Learn(held_[rank], plan_.writes[rank]);
  known_ = std::move(digests);
  return Status::Ok();
}

// Of this rank.
std::vector<StateTensor> ReplicaKeeper::Replicated(const TrainingState& state) const {
  std::vector<StateTensor> replicated;
  for (const ReplicaGroup& group : plan_.groups) {
    for (const ReplicaGroup::Holder& holder : group.holders) {
      if (holder.rank == static_cast<uint32_t>(ranks_->rank())) {
        replicated.push_back(state.tensors[holder.tensor]);
      }
    }
  }
  return replicated;
}

Status ReplicaKeeper::Prepare(const TrainingState& state) {
  const std::vector<StateTensor> replicated = Replicated(state);
  if (places_.AreOf(replicated)) return Status::Ok();
  places_.Forget();
  VARVE_RETURN_IF_ERROR(CheckPlaces(replicated, devices_));
  VARVE_RETURN_IF_ERROR(devices_->PrepareDigestNow(DeviceChunksOf(replicated)));
  places_.Learn(replicated);
  return Status::Ok();
}

void ReplicaKeeper::Begin(const TrainingState& state) {
  digests_ = std::make_unique<ReplicaDigests>(Replicated(state), devices_, num_threads_);
}

Status ReplicaKeeper::Compare(std::vector<std::string>* warnings) {
  if (!has_replicas()) return Status::Ok();
  const Result<std::vector<Digest>> mine = digests_->Finish();
  VARVE_RETURN_IF_ERROR(Agree(ranks_, mine.status()));
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks_->AllGather(std::as_bytes(std::span(*mine))));
  return CompareAll(all, warnings);
}

// `digests[r]` are those of rank r, one for each group that it is in, in the order of the groups.
Status ReplicaKeeper::CompareAll(const std::vector<std::vector<std::byte>>& digests,
                                 std::vector<std::string>* warnings) const {
  std::vector<size_t> used(digests.size());  // bytes
  std::string fault;
  size_t num_faults = 0;
  for (const ReplicaGroup& group : plan_.groups) {
    std::vector<Digest> found;
    for (const ReplicaGroup::Holder& holder : group.holders) {
      const std::vector<std::byte>& of_rank = digests[holder.rank];
      Digest& digest = found.emplace_back();
      if (used[holder.rank] + sizeof digest > of_rank.size()) {
        return Status::Unavailable("rank " + std::to_string(holder.rank) +
                                   " sent fewer digests than it holds replicas");
      }
      std::memcpy(&digest, of_rank.data() + used[holder.rank], sizeof digest);
      used[holder.rank] += sizeof digest;
    }
    std::vector<uint32_t> others;
    for (size_t i = 1; i < found.size(); ++i) {
      if (found[i] != found[0]) others.push_back(group.holders[i].rank);
    }
    if (others.empty()) continue;
    const ReplicaGroup::Holder& lowest = group.holders[0];
    const HeldTensor& tensor = held_[lowest.rank][lowest.tensor];
    std::string text = "tensor " + tensor.name + ", " + ToString(tensor.layout) + ": " +
                       RankList(others) + " and rank " + std::to_string(lowest.rank) +
                       " hold replicas that differ";
    const bool has_padding = tensor.layout.NumHeld() < tensor.layout.NumLocal();
    if (has_padding) text += ", perhaps in their padding alone, which is saved, too";
    if (tensor.replicas == Replicas::kTakeLowest) {
      warnings->push_back(text + "; rank " + std::to_string(lowest.rank) + "'s is saved");
    } else if (num_faults++ == 0) {
      fault = text;
      if (has_padding) {
        fault += ": fill it alike, or let Replicas::kTakeLowest save the lowest rank's";
      }
    }
  }
  if (num_faults == 0) return Status::Ok();
  if (num_faults > 1) fault += "; so do those of " + std::to_string(num_faults - 1) + " more";
  return Status::InvalidArgument(fault);
}

}  // namespace varve
