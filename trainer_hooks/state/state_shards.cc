// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/state_shards.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/util.h"
#include "store/shards/disjoint.h"
#include "store/shards/overlap.h"

namespace varve::internal {

namespace {

using Entries = std::vector<size_t>;  // of a state, in its order

// Returns the names that occur more than once, by name.
std::vector<Entries> FindRepeated(std::span<const StateTensor> tensors) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  std::map<std::string_view, Entries> by_name;  // of those that repeat, which are mostly none
  for (const StateTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) by_name[tensor.name];
  }
  std::vector<Entries> repeated;
  if (by_name.empty()) return repeated;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = by_name.find(tensors[i].name);
    if (found != by_name.end()) found->second.push_back(i);
  }
  for (auto& [name, entries] : by_name) repeated.push_back(std::move(entries));
  return repeated;
}

// Finds a difference that shards of one tensor must not have. Empty = there is none.
std::string FindDifference(const StateTensor& a, const StateTensor& b) {
  const auto differ = [](std::string_view what, std::string_view one, std::string_view other) {
    return std::string(what) + " " + std::string(one) + " and " + std::string(other);
  };
  if (a.dtype != b.dtype) return differ("dtypes", DTypeName(a.dtype), DTypeName(b.dtype));
  if (a.layout->global_shape != b.layout->global_shape) {
    return differ("global shapes", ShapeName(a.layout->global_shape),
                  ShapeName(b.layout->global_shape));
  }
  if (a.role != b.role) return differ("roles", TensorRoleName(a.role), TensorRoleName(b.role));
  if (a.derived_from == b.derived_from) return {};
  return differ("masters", "\"" + a.derived_from + "\"", "\"" + b.derived_from + "\"");
}

// Finds two layouts that hold the same elements, or are equal. Empty = there are none.
std::string FindOverlap(const std::vector<ShardLayout>& layouts) {
  const auto text = [&](size_t i, size_t k) {
    return ToString(layouts[i]) + " and " + ToString(layouts[k]);
  };
  std::vector<const ShardLayout*> all;
  for (const ShardLayout& layout : layouts) all.push_back(&layout);
  const std::vector<size_t> originals = FindOriginals(all);
  for (size_t i = 0; i < originals.size(); ++i) {
    if (originals[i] != i) return text(originals[i], i);
  }
  if (CountDisjoint(all).has_value()) return {};
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t k = i + 1; k < layouts.size(); ++k) {
      if (Overlap(layouts[i], layouts[k]).Count() > 0) return text(i, k);
    }
  }
  return "shards that cannot be told";  // CountDisjoint and Overlap agree, so never
}

// Finds why these are not shards of one tensor. Empty = they are. An invalid layout is another
// fault.
std::string FindFault(std::span<const StateTensor> tensors, const Entries& entries) {
  const std::string twice = "tensor " + tensors[entries[0]].name + " is in the state twice";
  std::vector<ShardLayout> layouts;
  for (const size_t entry : entries) {
    const StateTensor& tensor = tensors[entry];
    if (!tensor.layout.has_value()) {
      return twice + ", expected once, or a layout for each of its shards";
    }
    if (!ValidateLayout(*tensor.layout).ok()) return {};
    const std::string difference = FindDifference(tensors[entries[0]], tensor);
    if (!difference.empty()) {
      return twice + " with " + difference + ", expected shards of one tensor to have the same";
    }
    layouts.push_back(Canonical(*tensor.layout));
  }
  const std::string overlap = FindOverlap(layouts);
  if (overlap.empty()) return {};
  return twice + " with shards that overlap, " + overlap +
         "; expected each element of a rank in one of its shards";
}

}  // namespace

std::vector<std::string> FindShardNameFaults(std::span<const StateTensor> tensors) {
  std::vector<std::string> faults;
  for (const Entries& entries : FindRepeated(tensors)) {
    std::string fault = FindFault(tensors, entries);
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  return faults;
}

std::vector<uint32_t> NumberShards(std::span<const StateTensor> tensors) {
  std::vector<uint32_t> numbers(tensors.size());
  for (const Entries& entries : FindRepeated(tensors)) {
    std::vector<std::pair<std::string, size_t>> by_layout;
    for (const size_t entry : entries) {
      by_layout.emplace_back(ToString(Canonical(*tensors[entry].layout)), entry);
    }
    std::sort(by_layout.begin(), by_layout.end());
    for (uint32_t i = 0; i < by_layout.size(); ++i) numbers[by_layout[i].second] = i;
  }
  return numbers;
}

}  // namespace varve::internal
