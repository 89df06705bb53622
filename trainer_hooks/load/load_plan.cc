// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/load_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/glob.h"
#include "base/util.h"
#include "store/shards/regions.h"
#include "trainer_hooks/load/convert.h"
#include "trainer_hooks/state/item_name.h"
#include "trainer_hooks/state/state_shards.h"

namespace varve::internal {

namespace {

// A tensor of the checkpoint under its name in the target.
struct Stored {
  const TensorInfo* info;
  bool is_whole = true;  // not in shards
  bool used = false;     // something is filled from it
};

// Targets in one place of memory.
using Tied = std::vector<const LoadTarget*>;

const std::vector<int64_t>& GlobalShape(const TensorInfo& info) { return info.shape; }
const std::vector<int64_t>& GlobalShape(const StateTensor& tensor) {
  return tensor.layout ? tensor.layout->global_shape : tensor.shape;
}

// "BF16 [2, 3]"
template <typename Tensor>
std::string Describe(const Tensor& tensor) {
  return std::string(DTypeName(tensor.dtype)) + " " + ShapeName(GlobalShape(tensor));
}

std::string TensorText(const std::string& name) { return "tensor " + name; }

// Also gives the name that the tensor has in the checkpoint.
std::string TensorText(const std::string& name, const TensorInfo& info) {
  if (info.name == name) return TensorText(name);
  return TensorText(name) + " (" + info.name + " in the checkpoint)";
}

bool MatchesAny(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return MatchesGlob(glob, name); });
}

// The caller's own mistakes.
Result<LoadTarget> CheckTarget(const StateTensor& tensor) {
  VARVE_RETURN_IF_ERROR(ValidateName("name", tensor.name));
  if (DTypeBits(tensor.dtype) == 0) {
    return Status::InvalidArgument("dtype " + std::to_string(static_cast<int>(tensor.dtype)) +
                                   " is unknown");
  }
  VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(tensor.dtype, tensor.shape));
  VARVE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(tensor.shape));
  if (bytes > 0 && tensor.data == nullptr) {
    return Status::InvalidArgument("data is null, expected " + std::to_string(bytes) + " bytes");
  }
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) {
    return Status::InvalidArgument(std::to_string(tensor.strides.size()) + " strides, expected " +
                                   std::to_string(tensor.shape.size()));
  }
  if (tensor.layout.has_value()) {
    VARVE_RETURN_IF_ERROR(ValidateLayout(*tensor.layout));
    if (tensor.layout->LocalShape() != tensor.shape) {
      return Status::InvalidArgument("shape " + ShapeName(tensor.shape) + ", its layout " +
                                     ToString(*tensor.layout) + " has " +
                                     ShapeName(tensor.layout->LocalShape()));
    }
  }
  const Strides strides(tensor.shape, tensor.strides);
  if (strides.HasZero()) {
    return Status::InvalidArgument("a stride is 0, expected a place of its own for each element");
  }
  if (!strides.IsDense() && DTypeBits(tensor.dtype) % 8 != 0) {
    return Status::InvalidArgument("has strides, expected dense " + Describe(tensor));
  }
  return LoadTarget{&tensor, strides, elements, bytes};
}

// True when both are surely equal, in one dtype and cut or in several. If it returns false, they
// may still be equal.
bool AreSurelyEqual(const TensorInfo& a, const TensorInfo& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.content == b.content &&
         a.content != std::array<uint64_t, 2>{};
}

bool IsWanted(const LoadOptions& options, std::string_view name) {
  return (options.include.empty() || MatchesAny(options.include, name)) &&
         !MatchesAny(options.exclude, name);
}

bool IsInScope(const LoadOptions& options, const StateTensor& target) {
  return IsWanted(options, target.name) &&
         (options.optimizer || target.role != TensorRole::kOptimizer);
}

// The name in the target of a tensor that the checkpoint has under this one.
std::string NameInTarget(const LoadOptions& options, const std::string& stored) {
  return options.rename.Apply(options.rank ? DecodeItemName(stored).name : stored);
}

class Planner {
 public:
  Planner(const LoadOptions& options, const TrainingState& into) : options_(options), into_(into) {}

  LoadPlan Plan(std::span<const TensorInfo> stored) && {
    IndexStored(stored);
    CheckTargets();
    for (const Tied& tied : GroupTied()) PlanPlace(tied);
    PlanMasters();
    if (options_.strictness != Strictness::kAssumeOkUnexpected) NoteUnexpected();
    return std::move(plan_);
  }

 private:
  void IndexStored(std::span<const TensorInfo> stored);
  void CheckTargets();
  std::vector<Tied> GroupTied() const;
  void PlanPlace(const Tied& tied);
  bool Fits(const StateTensor& target, const Stored& stored);
  void PlanFill(const Tied& tied, const std::vector<const LoadTarget*>& found);
  void PlanMissing(const Tied& tied);
  bool PlanFromPartner(const Tied& tied, const LoadTarget& target, std::string* why_not);
  std::vector<std::string> PartnersOf(const StateTensor& target) const;
  const TensorInfo* SourceOfMaster(const StateTensor& weight, const LoadTarget& master);
  void PlanMasters();
  void PlanMaster(const StateTensor& weight, const LoadTarget& master,
                  std::set<const void*>* places);
  void NoteUnexpected();

  void NoteFilled(const LoadTarget& target);
  // Names it once, however many shards of the tensor the target has.
  void Note(std::string text, std::vector<std::string>* list) {
    if (noted_.emplace(list, text).second) list->push_back(std::move(text));
  }
  void Fault(std::string text) { Note(std::move(text), &plan_.faults); }
  // Returns the target's name of a tensor that has this name in the checkpoint.
  std::string TargetName(const std::string& stored) const { return NameInTarget(options_, stored); }
  Stored* Find(const std::string& name) {
    const auto it = stored_.find(name);
    return it == stored_.end() ? nullptr : &it->second;
  }

  const LoadOptions& options_;
  const TrainingState& into_;
  LoadPlan plan_;
  std::map<std::string, Stored> stored_;  // by name in the target
  std::map<const StateTensor*, LoadTarget> targets_;
  std::map<std::string, std::vector<const LoadTarget*>> shards_of_;  // by name
  std::multimap<std::string, std::string> weights_of_;  // by master, as either side knows
  std::set<const StateTensor*> filled_;
  std::set<std::pair<const void*, std::string>> noted_;
};

void Planner::IndexStored(std::span<const TensorInfo> stored) {
  for (const TensorInfo& info : stored) {
    const std::string name = TargetName(info.name);
    const auto [it, is_new] =
        stored_.try_emplace(name, Stored{&info, info.shard == 0 || info.shard == kAllShards});
    if (!is_new && it->second.info->name == info.name) {
      it->second.is_whole = false;
    } else if (!is_new) {
      Fault(TensorText(name) + ": both " + it->second.info->name + " and " + info.name +
            " of the checkpoint get this name, expected one");
    }
    if (!info.derived_from.empty()) {
      weights_of_.emplace(TargetName(info.derived_from), name);
    }
  }
}

void Planner::CheckTargets() {
  for (const StateTensor& tensor : into_.tensors) {
    Result<LoadTarget> target = CheckTarget(tensor);
    if (!target.ok()) {
      Fault(TensorText(tensor.name) + " of the target: " + target.status().message());
    } else {
      const LoadTarget& kept = targets_.emplace(&tensor, *target).first->second;
      shards_of_[tensor.name].push_back(&kept);
    }
    if (!tensor.derived_from.empty()) weights_of_.emplace(tensor.derived_from, tensor.name);
  }
  for (std::string& fault : FindShardNameFaults(into_.tensors)) Fault(std::move(fault));
}

std::vector<Tied> Planner::GroupTied() const {
  using Place = std::tuple<const void*, DType, std::vector<int64_t>, Strides, std::string>;
  std::map<Place, size_t> places;
  std::vector<Tied> groups;
  for (const StateTensor& tensor : into_.tensors) {
    const auto it = targets_.find(&tensor);
    if (it == targets_.end() || !IsInScope(options_, tensor)) continue;
    const LoadTarget& target = it->second;
    size_t group = groups.size();
    if (target.bytes > 0) {
      const Place place(tensor.data, tensor.dtype, tensor.shape, target.strides,
                        ToString(LayoutOf(tensor)));
      group = places.try_emplace(place, group).first->second;
    }
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(&target);
  }
  return groups;
}

void Planner::PlanPlace(const Tied& tied) {
  std::vector<const LoadTarget*> found;
  bool fit = true;
  for (const LoadTarget* target : tied) {
    Stored* stored = Find(target->tensor->name);
    if (stored == nullptr) continue;
    stored->used = true;
    found.push_back(target);
    if (!Fits(*target->tensor, *stored)) fit = false;
  }
  if (found.empty()) return PlanMissing(tied);
  if (fit) PlanFill(tied, found);
}

bool Planner::Fits(const StateTensor& target, const Stored& stored) {
  const TensorInfo& info = *stored.info;
  const std::string tensor = TensorText(target.name, info);
  const bool has_shape = stored.is_whole && info.shape == GlobalShape(target);
  if (!stored.is_whole) {
    Fault(tensor + ": is in shards without layouts, expected a whole tensor");
  } else if (!has_shape) {
    Fault(tensor + ": shape " + ShapeName(info.shape) + ", expected " +
          ShapeName(GlobalShape(target)));
  }
  const bool has_dtype = info.dtype == target.dtype ||
                         (options_.convert_dtype && CanConvert(info.dtype, target.dtype));
  if (!has_dtype) {
    Fault(tensor + ": dtype " + std::string(DTypeName(info.dtype)) + ", expected " +
          std::string(DTypeName(target.dtype)) +
          (options_.convert_dtype ? ", which it cannot be converted to" : ""));
  }
  return has_shape && has_dtype;
}

void Planner::PlanFill(const Tied& tied, const std::vector<const LoadTarget*>& found) {
  const auto source = [this](const LoadTarget* target) { return Find(target->tensor->name)->info; };
  plan_.fills.push_back({*found[0], source(found[0])});
  for (const LoadTarget* target : found) {
    const StateTensor& tensor = *target->tensor;
    if (source(target)->dtype != tensor.dtype) {
      Note(tensor.name + ": " + std::string(DTypeName(source(target)->dtype)) + " to " +
               std::string(DTypeName(tensor.dtype)),
           &plan_.report.converted);
    }
    if (target != found[0] && !AreSurelyEqual(*source(found[0]), *source(target))) {
      plan_.ties.push_back({found[0]->tensor, &tensor, source(found[0]), source(target)});
    }
  }
  for (const LoadTarget* target : tied) NoteFilled(*target);
  plan_.report.bytes += tied[0]->bytes;
}

// Returns the target's master, and the weights of which the target is the master.
std::vector<std::string> Planner::PartnersOf(const StateTensor& target) const {
  std::vector<std::string> names;
  if (!target.derived_from.empty()) names.push_back(target.derived_from);
  const auto [begin, end] = weights_of_.equal_range(target.name);
  for (auto it = begin; it != end; ++it) names.push_back(it->second);
  return names;
}

bool Planner::PlanFromPartner(const Tied& tied, const LoadTarget& target, std::string* why_not) {
  for (const std::string& name : PartnersOf(*target.tensor)) {
    Stored* stored = Find(name);
    if (stored == nullptr) continue;
    stored->used = true;
    const TensorInfo& info = *stored->info;
    if (!stored->is_whole || info.shape != GlobalShape(*target.tensor) ||
        !CanConvert(info.dtype, target.tensor->dtype)) {
      *why_not = "; cannot be made from " + info.name + ", which is " + Describe(info);
      continue;
    }
    plan_.fills.push_back({target, &info});
    for (const LoadTarget* made : tied) {
      Note(made->tensor->name, &plan_.report.made);
      NoteFilled(*made);
    }
    plan_.report.bytes += target.bytes;
    return true;
  }
  return false;
}

void Planner::PlanMissing(const Tied& tied) {
  std::string why_not;
  for (const LoadTarget* target : tied) {
    if (PlanFromPartner(tied, *target, &why_not)) return;
  }
  for (const LoadTarget* target : tied) {
    if (options_.strictness == Strictness::kIgnoreAll) {
      Note(target->tensor->name, &plan_.report.missing);
    } else {
      Fault(TensorText(target->tensor->name) + ": missing in the checkpoint, expected " +
            Describe(*target->tensor) + why_not);
    }
  }
}

// Returns the checkpoint's own copy of a weight, from which to make a master that is cut in another
// way. Null = there is none.
const TensorInfo* Planner::SourceOfMaster(const StateTensor& weight, const LoadTarget& master) {
  const Stored* stored = Find(weight.name);
  const bool fits = stored != nullptr && stored->is_whole &&
                    stored->info->shape == GlobalShape(*master.tensor) &&
                    CanConvert(stored->info->dtype, master.tensor->dtype);
  return fits ? stored->info : nullptr;
}

// A master that stays unchanged would undo the load of its weight at the next step of the
// optimizer.
void Planner::PlanMasters() {
  std::set<const void*> places;
  for (const StateTensor& weight : into_.tensors) {
    const auto it = shards_of_.find(weight.derived_from);
    if (it == shards_of_.end() || !filled_.contains(&weight)) continue;
    for (const LoadTarget* master : it->second) {
      const bool is_left =
          !IsInScope(options_, *master->tensor) && !filled_.contains(master->tensor);
      if (is_left) PlanMaster(weight, *master, &places);
    }
  }
}

// Makes the master from the loaded weight if that is cut alike, and otherwise from the checkpoint.
void Planner::PlanMaster(const StateTensor& weight, const LoadTarget& master,
                         std::set<const void*>* places) {
  const auto is_cut_alike = [&](const LoadTarget* shard) {
    return shard->tensor->shape == master.tensor->shape &&
           shard->tensor->layout == master.tensor->layout && filled_.contains(shard->tensor);
  };
  const std::vector<const LoadTarget*>& weights = shards_of_.at(weight.name);
  const auto alike = std::find_if(weights.begin(), weights.end(), is_cut_alike);
  const bool same_cut = alike != weights.end();
  const TensorInfo* source = same_cut ? nullptr : SourceOfMaster(weight, master);
  if ((!same_cut && source == nullptr) || !CanConvert(weight.dtype, master.tensor->dtype)) {
    return Fault(TensorText(master.tensor->name) + " of the target: is " +
                 Describe(*master.tensor) + ", expected a master of " + weight.name +
                 ", which is " + Describe(weight));
  }
  Note(master.tensor->name, &plan_.report.made);
  NoteFilled(master);
  // A tied weight may have planned it already. A master without bytes may lie at the place of
  // another.
  if (master.bytes > 0 && !places->insert(master.tensor->data).second) return;
  if (same_cut) {
    plan_.masters.push_back({**alike, master});
  } else {
    plan_.fills.push_back({master, source});
  }
  plan_.report.bytes += master.bytes;
}

void Planner::NoteFilled(const LoadTarget& target) {
  filled_.insert(target.tensor);
  ++plan_.report.num_tensors;
}

void Planner::NoteUnexpected() {
  for (const auto& [name, stored] : stored_) {
    const TensorInfo& info = *stored.info;
    const bool is_left_out = !options_.optimizer && info.role == TensorRole::kOptimizer;
    const bool is_known = shards_of_.contains(name) || options_.on_other_ranks.contains(name);
    if (stored.used || is_left_out || is_known || !IsWanted(options_, name)) continue;
    if (options_.strictness == Strictness::kRaiseAll) {
      Fault(TensorText(name, info) + ": unexpected " + Describe(info) +
            ", the target has no such tensor");
    } else {
      plan_.report.unexpected.push_back(name);
    }
  }
}

}  // namespace

bool NeedsDetails(std::span<const TensorInfo> outline, const LoadOptions& options,
                  const TrainingState& into) {
  std::set<std::string, std::less<>> stored;
  for (const TensorInfo& info : outline) stored.insert(NameInTarget(options, info.name));
  std::set<std::string_view> known;
  for (const StateTensor& tensor : into.tensors) {
    if (IsInScope(options, tensor) && !stored.contains(tensor.name)) return true;
    known.insert(tensor.name);
  }
  if (options.optimizer || options.strictness == Strictness::kAssumeOkUnexpected) return false;
  return std::ranges::any_of(stored, [&](const std::string& name) {
    return !known.contains(name) && !options.on_other_ranks.contains(name) &&
           IsWanted(options, name);
  });
}

LoadPlan PlanLoad(std::span<const TensorInfo> stored, const LoadOptions& options,
                  const TrainingState& into) {
  return Planner(options, into).Plan(stored);
}

}  // namespace varve::internal
