// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replica_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes_of.h"
#include "base/number_list.h"
#include "store/save/chunk_source.h"
#include "store/shards/overlap.h"

namespace varve::internal {

namespace {

// Parts of a cut tensor have at least so much, so that there are few of them.
constexpr uint64_t kMinPartBytes = uint64_t{16} << 20;

using Holder = ReplicaGroup::Holder;

// A part of a tensor, and all who hold it.
struct Group {
  const HeldTensor* tensor = nullptr;  // as the lowest rank lists it
  std::vector<Holder> holders;         // by rank
  bool can_cut = true;                 // on all of them, of which there are several
  int64_t elements = 0;                // of the local tensor
  uint64_t bytes = 0;
  int stage = 0;
};

// Returns the elements of `weight` that a part of its master has, as one range in the order of the
// weight's local tensor. Returns nullopt if they are not one range.
std::optional<Range> FindPart(const ShardLayout& weight, const ShardLayout& master) {
  if (weight == master) return Range{0, weight.NumLocal()};
  if (weight.global_shape != master.global_shape) return std::nullopt;
  const Overlap overlap(master, weight);
  const int64_t count = master.NumHeld();
  if (count == 0 || overlap.Count() != static_cast<uint64_t>(count)) return std::nullopt;
  const std::optional<CopyRun> first = overlap.FindFirstRun({0, 1});
  if (!first.has_value()) return std::nullopt;
  const auto begin = static_cast<int64_t>(first->target);
  const Range part{begin, begin + count};
  const bool is_all =
      part.end <= weight.NumLocal() &&
      Overlap(master, CutLayout(weight, part)).Count() == static_cast<uint64_t>(count);
  return is_all ? std::optional(part) : std::nullopt;
}

class Planner {
 public:
  // A part stays where it was while its rank has no more than `most_kept` bytes to save.
  Planner(std::span<const std::vector<HeldTensor>> held, uint64_t most_kept)
      : held_(held), most_kept_(most_kept), load_(held.size()), by_name_(held.size()) {
    for (const auto& tensors : held) plan_.writes.emplace_back(tensors.size());
  }

  // Returns the load of the busiest rank, once planned.
  uint64_t MostLoad() const { return *std::max_element(load_.begin(), load_.end()); }

  ReplicaPlan Plan() {
    FindGroups();
    for (const Group& group : groups_) {
      if (group.holders.size() > 1) plan_.groups.push_back({group.holders});
    }
    // Groups that others follow come first, and among these the groups for which there is no
    // choice.
    for (int stage = 0; stage < kNumStages; ++stage) {
      for (const Group& group : groups_) {
        if (group.stage == stage) PlanGroup(group);
      }
      for (const Rest& rest : rests_) Spread(rest);
      rests_.clear();
    }
    return std::move(plan_);
  }

 private:
  static constexpr int kNumStages = 5;

  // What nobody keeps of a group.
  struct Rest {
    const Group* group;
    std::vector<Range> ranges;
  };

  void FindGroups();
  static void Measure(Group* group);
  int StageOf(const Group& group) const;
  void PlanGroup(const Group& group);
  bool FollowSame(const Group& group);
  bool FollowMaster(const Group& group);
  std::vector<Range> CutAnew(const Group& group) const;
  void Keep(const Group& group);
  void Spread(const Rest& rest);
  bool TakeFree(const Rest& rest);
  void Widen(const Rest& rest);
  static uint64_t BytesOf(const Group& group, const Range& range) {
    return internal::BytesOf(group.tensor->dtype, range.end - range.begin);
  }
  // What has a master there, or is tied, costs nothing.
  bool CountsFor(const Holder& holder) const {
    return !HasMaster(holder) && TensorOf(holder).alias_of.empty();
  }
  void Assign(const Group& group, const Holder& holder, const Range& range);

  const HeldTensor& TensorOf(const Holder& holder) const {
    return held_[holder.rank][holder.tensor];
  }
  std::optional<Range>& WriteOf(const Holder& holder) {
    return plan_.writes[holder.rank][holder.tensor];
  }
  // The shards of a tensor that a holder's rank has.
  std::vector<Holder> FindBeside(const Holder& holder, std::string_view name) const {
    std::vector<Holder> found;
    const auto it = by_name_[holder.rank].find(name);
    if (it == by_name_[holder.rank].end()) return found;
    for (const uint32_t tensor : it->second) found.push_back({holder.rank, tensor});
    return found;
  }
  bool HasMaster(const Holder& holder) const {
    return by_name_[holder.rank].contains(TensorOf(holder).derived_from);
  }
  std::optional<Holder> FindSame(const Holder& holder, std::string_view name) const {
    for (const Holder& other : FindBeside(holder, name)) {
      if (TensorOf(other).layout == TensorOf(holder).layout) return other;
    }
    return std::nullopt;
  }
  // The tensor that a tied one shares its memory with.
  std::optional<Holder> FindTied(const Holder& holder) const {
    return FindSame(holder, TensorOf(holder).alias_of);
  }
  // The weight of a moment.
  std::optional<Holder> FindWeight(const Holder& holder) const {
    return FindSame(holder, TensorOf(holder).moment_of);
  }

  const std::span<const std::vector<HeldTensor>> held_;
  const uint64_t most_kept_;
  std::vector<uint64_t> load_;  // bytes that each rank saves
  std::vector<std::map<std::string_view, std::vector<uint32_t>>> by_name_;
  std::vector<Group> groups_;  // largest first
  std::vector<Rest> rests_;    // of this stage
  ReplicaPlan plan_;
};

void Planner::FindGroups() {
  std::map<std::pair<std::string_view, Digest>, Group> groups;  // by name and key
  for (uint32_t rank = 0; rank < held_.size(); ++rank) {
    for (uint32_t i = 0; i < held_[rank].size(); ++i) {
      const HeldTensor& tensor = held_[rank][i];
      by_name_[rank][tensor.name].push_back(i);
      if (tensor.policy == ReplicaPolicy::kKeepPerRank) {
        const int64_t elements = tensor.Layout().NumLocal();
        plan_.writes[rank][i] = Range{0, elements};
        load_[rank] += internal::BytesOf(tensor.dtype, elements);
        continue;
      }
      Group& group = groups[{tensor.name, tensor.Key()}];
      if (group.holders.empty()) group.tensor = &tensor;
      group.holders.push_back({rank, i});
      group.can_cut = group.can_cut && tensor.can_cut;
    }
  }
  for (auto& [key, group] : groups) {
    Measure(&group);
    group.stage = StageOf(group);
    groups_.push_back(std::move(group));
  }
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const Group& a, const Group& b) { return a.bytes > b.bytes; });
}

// Padding is restored as it was only from a shard of the very same layout, so that is not cut.
void Planner::Measure(Group* group) {
  const ShardLayout layout = group->tensor->Layout();
  group->elements = layout.NumLocal();
  group->bytes = internal::BytesOf(group->tensor->dtype, group->elements);
  group->can_cut =
      group->can_cut && group->holders.size() > 1 && layout.NumHeld() == group->elements;
}

int Planner::StageOf(const Group& group) const {
  const auto is_derived = [&](const Holder& holder) { return HasMaster(holder); };
  const bool is_chosen = group.holders.size() > 1;
  const auto first = FindTied(group.holders[0]);
  if (first.has_value()) return is_derived(*first) ? 4 : 2;
  if (std::any_of(group.holders.begin(), group.holders.end(), is_derived)) return 3;
  if (is_chosen && FindWeight(group.holders[0]).has_value()) return 3;  // which may be tied
  return is_chosen ? 1 : 0;
}

void Planner::PlanGroup(const Group& group) {
  const Range all{0, group.elements};
  const bool lowest = group.tensor->policy == ReplicaPolicy::kTakeLowest;
  if (lowest || group.holders.size() == 1) return Assign(group, group.holders[0], all);
  if (FollowSame(group) || FollowMaster(group)) return;
  Keep(group);
}

// What is tied on all ranks alike is saved where, and as, its first name is. So is a moment where
// its weight is.
bool Planner::FollowSame(const Group& group) {
  const bool is_tied = !group.tensor->alias_of.empty();
  const std::string_view leader = is_tied ? group.tensor->alias_of : group.tensor->moment_of;
  std::vector<std::optional<Range>> writes;
  int64_t elements = 0;
  for (const Holder& holder : group.holders) {
    const auto first = is_tied ? FindTied(holder) : FindWeight(holder);
    if (!first.has_value() || TensorOf(*first).name != leader) return false;
    const auto& range = writes.emplace_back(WriteOf(*first));
    if (!range.has_value()) continue;
    const int64_t length = range->end - range->begin;
    if (!is_tied && length < group.elements && !group.can_cut) return false;
    elements += length;
  }
  const auto is_written = [](const auto& range) { return range.has_value(); };
  if (std::ranges::none_of(writes, is_written)) return false;
  if (elements != group.elements) return false;
  for (size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].has_value()) Assign(group, group.holders[i], *writes[i]);
  }
  return true;
}

// The parts of the master that the holders save make all of the tensor: it is cut in the same way.
bool Planner::FollowMaster(const Group& group) {
  const ShardLayout layout = group.tensor->Layout();
  std::vector<std::pair<Range, Holder>> parts;
  for (const Holder& holder : group.holders) {
    const size_t before = parts.size();
    for (const Holder& master : FindBeside(holder, TensorOf(holder).derived_from)) {
      if (!WriteOf(master).has_value()) continue;
      const auto part = FindPart(layout, CutLayout(TensorOf(master).Layout(), *WriteOf(master)));
      if (part.has_value() && part->end > part->begin) parts.emplace_back(*part, holder);
    }
    if (parts.size() > before + 1) return false;  // a holder saves one range of a tensor
  }
  if (parts.size() > 1 && !group.can_cut) return false;
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  int64_t end = 0;
  for (const auto& [range, holder] : parts) {
    if (range.begin != end) return false;
    end = range.end;
  }
  if (parts.empty() || end != group.elements) return false;
  for (const auto& [range, holder] : parts) WriteOf(holder) = range;
  return true;
}

// At chunks, when it is large.
std::vector<Range> Planner::CutAnew(const Group& group) const {
  const int64_t elements = group.elements;
  uint64_t parts = 1;
  if (group.can_cut) {
    parts = std::clamp<uint64_t>(group.bytes / kMinPartBytes, 1, group.holders.size());
  }
  const int64_t chunk = ElementsPerChunk(group.tensor->dtype);
  const int64_t chunks = (elements + chunk - 1) / chunk;
  const auto n = static_cast<int64_t>(parts);
  std::vector<Range> ranges;
  for (int64_t i = 0; i < n; ++i) {
    ranges.push_back({chunks * i / n * chunk, std::min(chunks * (i + 1) / n * chunk, elements)});
  }
  return ranges;
}

// Parts that holders have saved before stay theirs. What is left of the group goes to `rests_`.
void Planner::Keep(const Group& group) {
  const int64_t elements = group.elements;
  std::vector<std::pair<Range, Holder>> had;
  for (const Holder& holder : group.holders) {
    const Range part = TensorOf(holder).had.value_or(Range{});
    const bool fits = group.can_cut || part == Range{0, elements};
    if (part.begin < part.end && fits) had.emplace_back(part, holder);
  }
  std::stable_sort(had.begin(), had.end(), [](const auto& a, const auto& b) {
    return a.first.begin < b.first.begin;  // then by rank
  });
  Rest rest{&group, {}};
  int64_t end = 0;  // of what is given out
  bool is_any_kept = false;
  for (const auto& [part, holder] : had) {
    if (part.begin < end) continue;  // a part of it is another's by now
    if (CountsFor(holder) && load_[holder.rank] + BytesOf(group, part) > most_kept_) continue;
    if (end < part.begin) rest.ranges.push_back({end, part.begin});
    Assign(group, holder, part);
    is_any_kept = true;
    end = part.end;
  }
  if (!is_any_kept) {
    rest.ranges = CutAnew(group);
  } else if (end < elements) {
    rest.ranges.push_back({end, elements});
  }
  if (!rest.ranges.empty()) rests_.push_back(std::move(rest));
}

// To the holders that have least to save.
void Planner::Spread(const Rest& rest) {
  if (!TakeFree(rest)) Widen(rest);
}

// Too few are without a part of the group, so whoever has a part beside a range takes that, too.
// There is one: ranges lie between kept parts, and where none is kept there are no more than
// holders.
void Planner::Widen(const Rest& rest) {
  for (const Range& range : rest.ranges) {
    std::optional<Holder> least;
    for (const Holder& holder : rest.group->holders) {
      const std::optional<Range>& part = WriteOf(holder);
      const bool is_beside =
          part.has_value() && (part->end == range.begin || part->begin == range.end);
      if (!is_beside) continue;
      if (!least.has_value() || load_[holder.rank] < load_[least->rank]) least = holder;
    }
    std::optional<Range>& part = WriteOf(*least);
    part = Range{std::min(part->begin, range.begin), std::max(part->end, range.end)};
    if (CountsFor(*least)) load_[least->rank] += BytesOf(*rest.group, range);
  }
}

// One range each, by those that have no part of the group. False when there are not so many.
bool Planner::TakeFree(const Rest& rest) {
  std::vector<Holder> holders;
  for (const Holder& holder : rest.group->holders) {
    if (!WriteOf(holder).has_value()) holders.push_back(holder);
  }
  if (holders.size() < rest.ranges.size()) return false;
  std::stable_sort(holders.begin(), holders.end(),
                   [&](const Holder& a, const Holder& b) { return load_[a.rank] < load_[b.rank]; });
  for (size_t i = 0; i < rest.ranges.size(); ++i) Assign(*rest.group, holders[i], rest.ranges[i]);
  return true;
}

void Planner::Assign(const Group& group, const Holder& holder, const Range& range) {
  WriteOf(holder) = range;
  if (CountsFor(holder)) load_[holder.rank] += BytesOf(group, range);
}

std::string_view RuleName(ReplicaPolicy policy) {
  switch (policy) {
    case ReplicaPolicy::kMustBeEqual:
      return "kMustBeEqual";
    case ReplicaPolicy::kTakeLowest:
      return "kTakeLowest";
    case ReplicaPolicy::kKeepPerRank:
      return "kKeepPerRank";
    case ReplicaPolicy::kEqualButPadding:
      return "kEqualButPadding";
  }
  return "a rule that is none";
}

// What ranks say of a name, in the order of the ranks.
using ByValue = std::vector<std::pair<std::string_view, std::vector<uint32_t>>>;

// The names of which ranks say different things by `value`.
std::map<std::string_view, ByValue> FindDisagreements(
    std::span<const std::vector<HeldTensor>> held, std::string_view (*value)(const HeldTensor&)) {
  std::map<std::string_view, std::string_view> first;
  std::map<std::string_view, ByValue> found;
  for (const auto& tensors : held) {
    for (const HeldTensor& tensor : tensors) {
      const std::string_view its = value(tensor);
      if (its.empty()) continue;
      const auto [it, is_new] = first.try_emplace(tensor.name, its);
      if (it->second != its) found[tensor.name];
    }
  }
  for (uint32_t rank = 0; !found.empty() && rank < held.size(); ++rank) {
    for (const HeldTensor& tensor : held[rank]) {
      const auto it = found.find(tensor.name);
      const std::string_view its = value(tensor);
      if (it == found.end() || its.empty()) continue;
      auto place = std::find_if(it->second.begin(), it->second.end(),
                                [&](const auto& entry) { return entry.first == its; });
      if (place == it->second.end()) place = it->second.insert(place, {its, {}});
      if (place->second.empty() || place->second.back() != rank) place->second.push_back(rank);
    }
  }
  return found;
}

}  // namespace

ShardLayout CutLayout(ShardLayout layout, const Range& range) {
  if (range == Range{0, layout.NumLocal()}) return layout;
  const int64_t begin = layout.flat ? layout.flat->begin : 0;
  layout.flat = Range{begin + range.begin, begin + range.end};
  return layout;
}

Status CompareRules(std::span<const std::vector<HeldTensor>> held) {
  // What ranks may not say differently of one name, and what to do about it.
  struct Trait {
    std::string_view name, mend;
    std::string_view (*value)(const HeldTensor&);  // empty: it says nothing
  };
  static constexpr Trait kTraits[] = {
      {"the rule for its replicas", "CheckpointerOptions::replicas",
       [](const HeldTensor& t) { return RuleName(t.policy); }},
      {"its role", "StateTensor::role", [](const HeldTensor& t) { return TensorRoleName(t.role); }},
      // A rank that has no part of the master need not name it.
      {"its master", "StateTensor::derived_from",
       [](const HeldTensor& t) { return t.derived_from; }},
  };
  constexpr size_t kShown = 20;
  size_t num_faults = 0;
  std::string text;
  for (const Trait& trait : kTraits) {
    for (const auto& [name, by_value] : FindDisagreements(held, trait.value)) {
      if (++num_faults > kShown) continue;
      text += (text.empty() ? "tensor " : "\ntensor ") + std::string(name) + ": ";
      text += std::string(trait.name) + " is ";
      for (size_t i = 0; i < by_value.size(); ++i) {
        text += (i > 0 ? " and " : "") + std::string(by_value[i].first) + " on " +
                NumberList("rank", by_value[i].second);
      }
      text += "; " + std::string(trait.mend) + " must be the same on all ranks";
    }
  }
  if (num_faults == 0) return Status::Ok();
  if (num_faults > kShown) text += "\nand " + std::to_string(num_faults - kShown) + " more";
  return Status::InvalidArgument(text);
}

ReplicaPlan PlanReplicas(std::span<const std::vector<HeldTensor>> held) {
  Planner scratch(held, 0);
  ReplicaPlan plan = scratch.Plan();
  const uint64_t most = held.empty() ? 0 : scratch.MostLoad();
  const bool has_past = std::any_of(held.begin(), held.end(), [](const auto& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const HeldTensor& tensor) { return tensor.had.has_value(); });
  });
  if (!has_past) return plan;
  Planner sticky(held, most + most / 4);
  ReplicaPlan kept = sticky.Plan();
  return sticky.MostLoad() <= most + most / 2 ? std::move(kept) : std::move(plan);
}

}  // namespace varve::internal
