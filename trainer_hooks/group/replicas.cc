// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replicas.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/number_list.h"
#include "base/util.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/held_digest.h"
#include "trainer_hooks/group/rank_part.h"

namespace varve::internal {

namespace {

Result<std::vector<std::vector<HeldTensor>>> DecodeAll(
    std::span<const std::vector<std::byte>> lists) {
  std::vector<std::vector<HeldTensor>> all;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    auto decoded = DecodeHeld(lists[rank]);
    if (!decoded.ok()) {
      return decoded.status().WithContext("what rank " + std::to_string(rank) + " has sent");
    }
    all.push_back(*std::move(decoded));
  }
  return all;
}

bool HasPadding(const HeldTensor& tensor) {
  const ShardLayout layout = tensor.Layout();
  return layout.NumHeld() < layout.NumLocal();
}

}  // namespace

Result<std::vector<StateTensor>> ReplicaKeeper::Plan(const TrainingState& state) {
  VARVE_RETURN_IF_ERROR(Update(state));
  const auto rank = static_cast<uint32_t>(ranks_->rank());
  auto parts = PartOf(state.tensors, held_[rank], plan_.writes[rank], rank);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, parts.status()));
  return parts;
}

Status ReplicaKeeper::Update(const TrainingState& state) {
  const Digest digest = DigestHeld(state, rules_);
  VARVE_ASSIGN_OR_RETURN(auto digests, ranks_->AllGather(std::as_bytes(std::span(&digest, 1))));
  if (digests == known_) return Status::Ok();
  const auto rank = static_cast<size_t>(ranks_->rank());
  std::vector<std::byte> list =
      EncodeHeld(state, rules_, [this](const HeldTensor& tensor) { return owned_.Find(tensor); });
  VARVE_ASSIGN_OR_RETURN(auto lists, ranks_->AllGather(list));
  lists[rank] = std::move(list);  // the copy that the group has given back goes
  Result<std::vector<std::vector<HeldTensor>>> all = DecodeAll(lists);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, all.status()));  // else some would plan, and some not
  VARVE_RETURN_IF_ERROR(CompareRules(*all));           // on all ranks alike
  held_ = *std::move(all);
  lists_ = std::move(lists);
  plan_ = PlanReplicas(held_);
  owned_.Learn(held_[rank], plan_.writes[rank]);
  known_ = std::move(digests);
  return Status::Ok();
}

std::vector<const StateTensor*> ReplicaKeeper::Replicated(const TrainingState& state) const {
  std::vector<const StateTensor*> replicated;
  for (const ReplicaGroup& group : plan_.groups) {
    for (const ReplicaGroup::Holder& holder : group.holders) {
      if (holder.rank == static_cast<uint32_t>(ranks_->rank())) {
        replicated.push_back(&state.tensors[holder.tensor]);
      }
    }
  }
  return replicated;
}

Status ReplicaKeeper::Prepare(const TrainingState& state) {
  const std::vector<const StateTensor*> replicated = Replicated(state);
  if (places_.AreOf(replicated)) return Status::Ok();
  places_.Forget();
  std::vector<const StateTensor*> on_devices = replicated;
  std::erase_if(on_devices, [](const StateTensor* tensor) { return tensor->device == kHost; });
  VARVE_RETURN_IF_ERROR(CheckPlaces(on_devices, devices_));
  if (!on_devices.empty()) {
    VARVE_RETURN_IF_ERROR(devices_->PrepareDigestNow(DeviceChunksOf(on_devices)));
  }
  places_.Learn(replicated);
  return Status::Ok();
}

void ReplicaKeeper::Begin() {
  digests_ = std::make_unique<ReplicaDigests>(places_.places(), devices_, num_threads_);
}

Status ReplicaKeeper::Compare(std::vector<std::string>* warnings) {
  if (!has_replicas()) return Status::Ok();
  const Result<std::vector<Digest>> mine = digests_->Finish();
  VARVE_RETURN_IF_ERROR(Agree(ranks_, mine.status()));
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks_->AllGather(std::as_bytes(std::span(*mine))));
  VARVE_ASSIGN_OR_RETURN(std::vector<Difference> differences, FindDifferences(all));
  VARVE_RETURN_IF_ERROR(LookAtPadding(&differences));
  return Judge(differences, warnings);
}

// `digests[r]` are those of rank r, one for each group that it is in, in the order of the groups.
Result<std::vector<ReplicaKeeper::Difference>> ReplicaKeeper::FindDifferences(
    const std::vector<std::vector<std::byte>>& digests) const {
  std::vector<size_t> used(digests.size());  // bytes
  std::vector<Difference> differences;
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
    Difference difference{.group = &group};
    for (size_t i = 1; i < found.size(); ++i) {
      if (found[i] != found[0]) difference.others.push_back(group.holders[i].rank);
    }
    if (!difference.others.empty()) differences.push_back(std::move(difference));
  }
  return differences;
}

// Where replicas with padding differ, their ranks compare them once more without it. All ranks have
// found the same differences, so all come here or none.
Status ReplicaKeeper::LookAtPadding(std::vector<Difference>* differences) {
  struct Answer {
    Digest digest;
    uint64_t is_known = 0;
  };
  const auto has_padding = [this](const Difference& difference) {
    return HasPadding(TensorOf(difference));
  };
  if (std::none_of(differences->begin(), differences->end(), has_padding)) return Status::Ok();
  std::vector<Answer> mine;
  auto next = differences->begin();
  size_t at = 0;  // of the tensors that are digested
  for (const ReplicaGroup& group : plan_.groups) {
    const bool differs = next != differences->end() && next->group == &group;
    for (const ReplicaGroup::Holder& holder : group.holders) {
      if (holder.rank != static_cast<uint32_t>(ranks_->rank())) continue;
      const StateTensor& tensor = digests_->tensors()[at++];
      if (!differs || !has_padding(*next)) continue;
      const auto digest = DigestWithoutPadding(tensor, TensorOf(*next).Layout());
      mine.push_back({digest.value_or(Digest()), digest.has_value() ? 1u : 0u});
    }
    if (differs) ++next;
  }
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks_->AllGather(std::as_bytes(std::span(mine))));
  std::vector<size_t> used(all.size());  // bytes
  for (Difference& difference : *differences) {
    if (!has_padding(difference)) continue;
    std::optional<Digest> first;
    difference.is_known = difference.is_padding_alone = true;
    for (const ReplicaGroup::Holder& holder : difference.group->holders) {
      Answer answer;
      if (used[holder.rank] + sizeof answer > all[holder.rank].size()) {
        return Status::Unavailable("rank " + std::to_string(holder.rank) +
                                   " sent fewer digests than it holds replicas that differ");
      }
      std::memcpy(&answer, all[holder.rank].data() + used[holder.rank], sizeof answer);
      used[holder.rank] += sizeof answer;
      difference.is_known = difference.is_known && answer.is_known != 0;
      if (!first.has_value()) first = answer.digest;
      difference.is_padding_alone = difference.is_padding_alone && answer.digest == *first;
    }
    difference.is_padding_alone = difference.is_padding_alone && difference.is_known;
  }
  return Status::Ok();
}

std::string ReplicaKeeper::TextOf(const Difference& difference) const {
  const HeldTensor& tensor = TensorOf(difference);
  std::string text = "tensor " + std::string(tensor.name) + ", " + ToString(tensor.Layout()) +
                     ": " + NumberList("rank", difference.others) + " and rank " +
                     std::to_string(difference.group->holders[0].rank) +
                     " hold replicas that differ";
  if (difference.is_padding_alone) {
    text += " in their padding alone, which is saved, too";
  } else if (HasPadding(tensor) && !difference.is_known) {
    text += ", perhaps in their padding alone, which cannot be looked at without it";
  }
  return text;
}

Status ReplicaKeeper::Judge(const std::vector<Difference>& differences,
                            std::vector<std::string>* warnings) const {
  constexpr size_t kShown = 20;
  std::string faults;
  size_t num_faults = 0;
  for (const Difference& difference : differences) {
    const ReplicaPolicy rule = TensorOf(difference).policy;
    std::string text = TextOf(difference);
    if (rule == ReplicaPolicy::kEqualButPadding && difference.is_padding_alone) continue;
    if (rule == ReplicaPolicy::kTakeLowest) {
      const uint32_t lowest = difference.group->holders[0].rank;
      warnings->push_back(text + "; rank " + std::to_string(lowest) + "'s is saved");
      continue;
    }
    if (++num_faults > kShown) continue;
    if (difference.is_padding_alone) {
      text += ": fill it alike, or let ReplicaPolicy::kEqualButPadding take any of them";
    }
    faults += (faults.empty() ? "" : "\n") + text;
  }
  if (num_faults == 0) return Status::Ok();
  if (num_faults > kShown)
    faults += "\nand those of " + std::to_string(num_faults - kShown) + " more";
  return Status::InvalidArgument(faults);
}

}  // namespace varve::internal
