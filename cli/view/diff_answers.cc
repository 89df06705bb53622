// SPDX-License-Identifier: Apache-2.0
//
// Answers about what differs between two steps.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>

#include "base/glob.h"
#include "cli/json.h"
#include "cli/sharing.h"
#include "cli/view/answers.h"
#include "cli/view/chosen_tensors.h"
#include "store/ops/history.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

// Names of added and removed tensors that are told.
constexpr size_t kMaxNames = 100;
// Layers of the answer. With more of them, names are cut earlier.
constexpr size_t kMaxLayers = 1000;

// Parts may hold any character, so each has its length before it.
std::string KeyOf(std::initializer_list<std::string_view> parts) {
  std::string key;
  for (const std::string_view part : parts) {
    key += std::to_string(part.size()) + ":";
    key += part;
  }
  return key;
}

// Two steps, and which of their tensors to compare.
struct Comparison {
  OpenStep before;
  OpenStep after;
  std::string glob;
  std::string name;  // if not empty, this one alone
  bool values = false;
  bool all_values = false;  // however many bytes that decodes

  std::string StepsKey() const { return KeyOf({before.key, after.key}); }
  std::string Key(std::string_view with) const {
    return KeyOf({before.key, after.key, glob, name, with});
  }
  bool Includes(std::string_view tensor) const {
    return name.empty() ? MatchesGlob(glob, tensor) : name == tensor;
  }
};

NameSet NamesOf(std::span<const TensorDiff> tensors) {
  NameSet names;
  for (const TensorDiff& tensor : tensors) names.insert(tensor.name);
  return names;
}

uint64_t BytesOf(std::span<const TensorBytes> tensors, std::string_view name) {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &TensorBytes::name);
  return found != tensors.end() && found->name == name ? found->bytes : 0;
}

// Says whether one request may decode both sides of these tensors, as far as they are compared.
bool MayDecode(const Comparison& comparison, const StepsDiff& steps,
               std::span<const TensorDiff> tensors) {
  NameSet counted;
  uint64_t sum = 0;
  for (const TensorDiff& tensor : tensors) {
    if (!comparison.Includes(tensor.name) || !counted.insert(tensor.name).second) continue;
    sum += 2 * BytesOf(steps.bytes, tensor.name);
    if (sum > kMaxDecodedBytes) return false;
  }
  return true;
}

Result<StepsDiff> DiffNames(const Comparison& comparison, const NameSet& names, bool values) {
  StepsDiff steps;
  VARVE_ASSIGN_OR_RETURN(steps.diff,
                         DiffCheckpoints(ChosenTensors(*comparison.before.reader, names),
                                         ChosenTensors(*comparison.after.reader, names),
                                         {.values = values}, /*progress=*/nullptr, &steps.bytes));
  return steps;
}

// Compares the values of tensors that differ.
Result<std::vector<TensorDiff>> WithValues(const Comparison& comparison,
                                           std::span<const TensorDiff> tensors) {
  VARVE_ASSIGN_OR_RETURN(StepsDiff steps, DiffNames(comparison, NamesOf(tensors), true));
  return std::move(steps.diff.changed);
}

Result<StepsDiff> DiffAll(const Comparison& comparison) {
  StepsDiff steps;
  VARVE_ASSIGN_OR_RETURN(steps.diff,
                         DiffCheckpoints(*comparison.before.reader, *comparison.after.reader, {},
                                         /*progress=*/nullptr, &steps.bytes));
  return steps;
}

// All tensors are compared once. So is one alone, whose parts may have to be read.
Result<std::shared_ptr<const StepsDiff>> DiffWithoutValues(const Ask& ask,
                                                           const Comparison& comparison) {
  if (comparison.name.empty()) {
    return ask.caches.diffs.Get(comparison.StepsKey(), [&] { return DiffAll(comparison); });
  }
  return ask.caches.tensor_diffs.Get(comparison.Key("steps"), [&]() -> Result<StepsDiff> {
    VARVE_ASSIGN_OR_RETURN(StepsDiff steps, DiffNames(comparison, {comparison.name}, false));
    const CheckpointDiff& diff = steps.diff;
    if (diff.added.empty() && diff.removed.empty() && diff.changed.empty() &&
        diff.unchanged.empty()) {
      return Status::NotFound("tensor \"" + comparison.name + "\" is in neither of the steps");
    }
    return steps;
  });
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A group of tensors with a common start of their names.
struct Layer {
  std::string glob;          // matches its tensors
  uint64_t num_tensors = 0;  // of the later step, as are the bytes
  uint64_t num_changed = 0;
  uint64_t num_added = 0;
  uint64_t num_removed = 0;
  uint64_t bytes = 0;
  uint64_t changed_bytes = 0;  // with those of added tensors
  double largest_norm = -1;
  uint64_t new_nans = 0;

  void AddGlob(const std::string& other) {
    if (glob.empty()) glob = other;
    // One of the two has no star, or another separator.
    if (glob != other) glob = other.substr(0, other.size() - (other.ends_with('*') ? 2 : 0)) + "*";
  }
};

ordered_json ToObject(const std::string& name, const Layer& layer, bool with_values) {
  ordered_json object = {{"name", name},
                         {"glob", layer.glob},
                         {"tensors", layer.num_tensors},
                         {"changed_tensors", layer.num_changed},
                         {"added_tensors", layer.num_added},
                         {"removed_tensors", layer.num_removed},
                         {"bytes", layer.bytes},
                         {"changed_bytes", layer.changed_bytes}};
  if (with_values) {
    object["largest_norm"] = layer.largest_norm < 0 ? ordered_json() : ToJson(layer.largest_norm);
    object["new_nans"] = layer.new_nans;
  }
  return object;
}

// The start of a name up to and with its first number, as in "exp_avg.model.layers.11". Without a
// number, up to its third component.
std::string_view LayerOf(std::string_view name) {
  constexpr int kComponents = 3;
  size_t third = name.size();
  size_t begin = 0;
  for (int i = 1; begin <= name.size(); ++i) {
    const size_t end = std::min(name.find_first_of("./", begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    const bool is_number = !component.empty() && std::ranges::all_of(component, IsDigit);
    if (is_number) return name.substr(0, end);
    if (i == kComponents) third = end;
    begin = end + 1;
  }
  return name.substr(0, third);
}

// With too many of these, the names that stats has for its groups.
std::vector<std::string> LayersOfNames(const std::map<std::string, TensorSharing>& tensors) {
  std::map<std::string_view, uint64_t> bytes;
  for (const auto& [name, sharing] : tensors) bytes[LayerOf(name)] += sharing.bytes;
  std::vector<std::string> names;
  if (bytes.size() > kMaxLayers) {
    for (const GroupSharing& group : GroupByName(tensors, kMaxLayers)) names.push_back(group.name);
    return names;
  }
  for (const auto& [name, sum] : bytes) names.emplace_back(name);
  std::ranges::stable_sort(
      names, [&bytes](const std::string& a, const std::string& b) { return bytes[a] > bytes[b]; });
  return names;
}

// The layers that there are.
class Layers {
 public:
  explicit Layers(const std::map<std::string, TensorSharing>& tensors)
      : order_(LayersOfNames(tensors)) {
    for (const std::string& name : order_) layers_[name];
    for (const auto& [name, sharing] : tensors) {
      auto& [start, layer] = *Find(name);
      layer.AddGlob(GlobOf(start, name));
      ++layer.num_tensors;
      layer.bytes += sharing.bytes;
      layer.changed_bytes += std::min(sharing.bytes, sharing.new_bytes);
    }
  }

  Layer& Of(std::string_view name) { return Find(name)->second; }

  ordered_json ToArray(bool with_values) const {
    auto array = ordered_json::array();
    for (const std::string& name : order_) {
      array.push_back(ToObject(name, layers_.at(name), with_values));
    }
    return array;
  }

 private:
  using Map = std::map<std::string, Layer, std::less<>>;

  // The name of a layer is a start of its tensors' names, or "(others)".
  Map::iterator Find(std::string_view name) {
    for (size_t end = name.size(); end > 0;) {
      const auto found = layers_.find(name.substr(0, end));
      if (found != layers_.end()) return found;
      const size_t separator = name.find_last_of("./", end - 1);
      end = separator == std::string_view::npos ? 0 : separator;
    }
    return layers_.try_emplace("(others)").first;
  }
  static std::string GlobOf(const std::string& layer, const std::string& tensor) {
    if (!tensor.starts_with(layer)) return "*";  // the others
    return tensor == layer ? layer : tensor.substr(0, layer.size() + 1) + "*";
  }

  const std::vector<std::string> order_;  // by falling bytes
  Map layers_;
};

ordered_json LayersOf(const Comparison& comparison, const StepsDiff& steps,
                      const ComparedSteps& compared) {
  std::map<std::string, TensorSharing> tensors;
  for (const TensorBytes& tensor : steps.bytes) {
    if (!comparison.Includes(tensor.name)) continue;
    tensors.emplace_hint(tensors.end(), tensor.name, TensorSharing{.bytes = tensor.bytes});
  }
  for (const TensorDiff& tensor : compared.changed) {
    tensors[tensor.name].new_bytes += tensor.changed_bytes;
  }
  for (const std::string& name : compared.added) tensors[name].new_bytes = tensors[name].bytes;
  for (const std::string& name : compared.removed) tensors.try_emplace(name);
  Layers layers(tensors);
  for (const std::string& name : compared.added) ++layers.Of(name).num_added;
  for (const std::string& name : compared.removed) {
    Layer& layer = layers.Of(name);
    ++layer.num_removed;
    --layer.num_tensors;
  }
  std::string_view counted;
  for (const TensorDiff& tensor : compared.changed) {  // by name
    Layer& layer = layers.Of(tensor.name);
    if (tensor.name != counted) ++layer.num_changed;  // once for all its shards
    counted = tensor.name;
    if (!tensor.values) continue;
    layer.largest_norm = std::max(layer.largest_norm, tensor.values->relative_norm);
    layer.new_nans += tensor.values->new_nans;
  }
  return layers.ToArray(compared.has_values);
}

Result<ComparedSteps> Compare(const Ask& ask, const Comparison& comparison, bool with_values) {
  const auto included = [&comparison](const auto& name) { return comparison.Includes(name); };
  VARVE_ASSIGN_OR_RETURN(const auto steps, DiffWithoutValues(ask, comparison));
  const CheckpointDiff& diff = steps->diff;
  ComparedSteps compared;
  std::ranges::copy_if(diff.added, std::back_inserter(compared.added), included);
  std::ranges::copy_if(diff.removed, std::back_inserter(compared.removed), included);
  std::ranges::copy_if(diff.changed, std::back_inserter(compared.changed), included,
                       &TensorDiff::name);
  compared.num_unchanged = static_cast<uint64_t>(std::ranges::count_if(diff.unchanged, included));
  for (const TensorDiff& tensor : compared.changed) compared.changed_bytes += tensor.changed_bytes;
  if (with_values) {
    VARVE_ASSIGN_OR_RETURN(compared.changed, WithValues(comparison, compared.changed));
    compared.has_values = true;
  }
  compared.layers =
      comparison.name.empty() ? LayersOf(comparison, *steps, compared) : ordered_json::array();
  return compared;
}

// values=1 and values=all have one answer if the values are few.
Result<std::shared_ptr<const ComparedSteps>> CompareOnce(const Ask& ask,
                                                         const Comparison& comparison) {
  bool with_values = comparison.all_values;
  if (comparison.values && !with_values) {
    VARVE_ASSIGN_OR_RETURN(
        const auto fit,
        ask.caches.values_fit.Get(comparison.Key("values fit"), [&]() -> Result<bool> {
          VARVE_ASSIGN_OR_RETURN(const auto steps, DiffWithoutValues(ask, comparison));
          return MayDecode(comparison, *steps, steps->diff.changed);
        }));
    with_values = *fit;
  }
  return ask.caches.compared.Get(comparison.Key(with_values ? "values" : ""),
                                 [&] { return Compare(ask, comparison, with_values); });
}

double NormOf(const TensorDiff& tensor) {
  return tensor.values ? tensor.values->relative_norm : -1;
}

double ChangedShare(const TensorDiff& tensor) {
  return static_cast<double>(tensor.changed_chunks) /
         static_cast<double>(std::max<uint64_t>(tensor.num_chunks, 1));
}

// Returns the changed tensors in the order that is asked for.
Result<std::vector<const TensorDiff*>> Sorted(const Ask& ask, const ComparedSteps& compared) {
  VARVE_ASSIGN_OR_RETURN(const std::string by, ask.query.OneOf("sort", "name bytes chunks norm"));
  VARVE_ASSIGN_OR_RETURN(const std::string direction, ask.query.OneOf("order", "up down"));
  if (by == "norm" && !compared.has_values) {
    return Status::InvalidArgument("sort=norm needs values=1, and values of all changed tensors");
  }
  std::vector<const TensorDiff*> rows;
  for (const TensorDiff& tensor : compared.changed) rows.push_back(&tensor);
  const auto sort = [&](const auto& key) {
    std::ranges::stable_sort(rows, [&](const TensorDiff* a, const TensorDiff* b) {
      return direction == "down" ? key(*b) < key(*a) : key(*a) < key(*b);
    });
  };
  if (by == "bytes") sort([](const TensorDiff& tensor) { return tensor.changed_bytes; });
  if (by == "norm") sort(NormOf);
  if (by == "chunks") sort(ChangedShare);
  if (by == "name" && direction == "down") std::ranges::reverse(rows);
  return rows;
}

// Puts values into the rows of one page, if there are not too many bytes for that.
Result<bool> AddValues(const Ask& ask, const Comparison& comparison,
                       std::vector<TensorDiff>* rows) {
  VARVE_ASSIGN_OR_RETURN(const auto steps, DiffWithoutValues(ask, comparison));
  if (!MayDecode(comparison, *steps, *rows)) return false;
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorDiff> valued, WithValues(comparison, *rows));
  for (TensorDiff& row : *rows) {
    const auto same = std::ranges::find_if(valued, [&row](const TensorDiff& other) {
      return other.name == row.name && other.shard == row.shard;
    });
    if (same != valued.end()) row.values = same->values;
  }
  return true;
}

ordered_json FirstOf(std::span<const std::string> names) {
  const auto first = names.first(std::min(kMaxNames, names.size()));
  return std::vector<std::string>(first.begin(), first.end());
}

Result<Comparison> WhatToCompare(const Ask& ask) {
  Comparison comparison{.glob = ask.query.Text("glob", "*"), .name = ask.query.Text("name")};
  VARVE_ASSIGN_OR_RETURN(const std::string values, ask.query.OneOf("values", "0 1 all"));
  comparison.values = values != "0";
  comparison.all_values = values == "all";
  VARVE_ASSIGN_OR_RETURN(comparison.before, OpenAskedStep(ask, "before"));
  VARVE_ASSIGN_OR_RETURN(comparison.after, OpenAskedStep(ask, "after"));
  return comparison;
}

}  // namespace

// What diff tells, with the rows of one page. Values are compared for all changed tensors if that
// decodes little enough or all are asked for, or else for the rows of the page. `values_of` says
// which.
Answer AnswerDiff(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const Comparison comparison, WhatToCompare(ask));
  VARVE_ASSIGN_OR_RETURN(const auto compared, CompareOnce(ask, comparison));
  VARVE_ASSIGN_OR_RETURN(const auto sorted, Sorted(ask, *compared));
  const auto [begin, end] = page.Of(sorted.size());
  std::vector<TensorDiff> rows;
  for (size_t i = begin; i < end; ++i) rows.push_back(*sorted[i]);
  std::string values_of = compared->has_values ? "all" : "none";
  if (comparison.values && !compared->has_values) {
    VARVE_ASSIGN_OR_RETURN(const bool added, AddValues(ask, comparison, &rows));
    if (added) values_of = "rows";
  }
  auto array = ordered_json::array();
  for (const TensorDiff& row : rows) array.push_back(ToJson(row, values_of != "none"));
  return ordered_json{{"before", ToJson(comparison.before.id)},
                      {"after", ToJson(comparison.after.id)},
                      {"num_added", compared->added.size()},
                      {"added", FirstOf(compared->added)},
                      {"num_removed", compared->removed.size()},
                      {"removed", FirstOf(compared->removed)},
                      {"num_unchanged", compared->num_unchanged},
                      {"changed_bytes", compared->changed_bytes},
                      {"values_of", values_of},
                      {"max_bytes", kMaxDecodedBytes},
                      {"layers", compared->layers},
                      {"total", sorted.size()},
                      {"offset", begin},
                      {"rows", std::move(array)}};
}

}  // namespace varve::internal::cli
