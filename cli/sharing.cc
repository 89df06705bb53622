// SPDX-License-Identifier: Apache-2.0
#include "cli/sharing.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/stop.h"
#include "store/ops/history.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

constexpr size_t kMaxPairs = 16;
constexpr size_t kMaxGroups = 12;
constexpr int kMaxComponents = 3;

using TensorMap = std::map<std::string, TensorSharing>;

struct Pair {
  std::optional<CheckpointId> before;
  CheckpointInfo after;
};

// Returns each checkpoint that has an earlier one in its run.
Result<std::vector<Pair>> ListPairs(const Store& store) {
  std::vector<Pair> pairs;
  std::optional<CheckpointInfo> newest;
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> steps,
                           store.ListCheckpoints(run.name));
    for (size_t i = 1; i < steps.size(); ++i) pairs.push_back({steps[i - 1].id, steps[i]});
    if (!steps.empty() && (!newest || newest->created < steps.back().created)) {
      newest = steps.back();
    }
  }
  if (pairs.empty() && newest) pairs.push_back({std::nullopt, *newest});
  return pairs;
}

// Returns at most `count` of them, evenly spread, with the last one.
std::vector<Pair> Spread(std::vector<Pair> pairs, size_t count) {
  if (pairs.size() <= count) return pairs;
  std::vector<Pair> chosen;
  for (size_t i = 1; i <= count; ++i) {
    chosen.push_back(std::move(pairs[i * pairs.size() / count - 1]));
  }
  return chosen;
}

// Returns a checkpoint's tensors, and what differs from the one before it.
Result<CheckpointDiff> Compare(const Store& store, const Pair& pair,
                               std::vector<TensorBytes>* tensors) {
  const CheckpointId& id = pair.after.id;
  VARVE_ASSIGN_OR_RETURN(const auto after, ShardedReader::Open(store, id.run, id.step));
  if (pair.before) {
    VARVE_ASSIGN_OR_RETURN(const auto before,
                           ShardedReader::Open(store, pair.before->run, pair.before->step));
    return DiffCheckpoints(*before, *after, {}, nullptr, tensors);
  }
  CheckpointDiff diff;
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> list, after->List());
  for (const TensorInfo& tensor : list) {
    if (tensors->empty() || tensors->back().name != tensor.name) tensors->push_back({tensor.name});
    tensors->back().bytes += tensor.logical_bytes;
    diff.added.push_back(tensor.name);
  }
  return diff;
}

// Adds the bytes of one checkpoint. It looks up everything before it adds anything.
Status AddPair(const Store& store, const Pair& pair, TensorMap* sums) {
  std::vector<TensorBytes> tensors;
  VARVE_ASSIGN_OR_RETURN(const CheckpointDiff diff, Compare(store, pair, &tensors));
  const std::vector<std::string>& added = diff.added;  // ordered, as all lists are
  for (const TensorBytes& tensor : tensors) {
    TensorSharing& sharing = (*sums)[tensor.name];
    sharing.bytes += tensor.bytes;
    const bool is_new = std::binary_search(added.begin(), added.end(), tensor.name);
    if (is_new) sharing.new_bytes += tensor.bytes;
  }
  for (const TensorDiff& changed : diff.changed) {
    (*sums)[changed.name].new_bytes += changed.changed_bytes;
  }
  return Status::Ok();
}

std::string FirstComponents(std::string_view name, int count) {
  size_t end = 0;
  for (; count > 0 && end != std::string_view::npos; --count) {
    end = name.find_first_of("./", end == 0 ? 0 : end + 1);
  }
  return std::string(name.substr(0, end));
}

std::vector<GroupSharing> GroupByComponents(const TensorMap& tensors, int components) {
  std::map<std::string, GroupSharing> groups;
  for (const auto& [name, sharing] : tensors) {
    GroupSharing& group = groups[FirstComponents(name, components)];
    group.bytes += sharing.bytes;
    group.new_bytes += std::min(sharing.new_bytes, sharing.bytes);
  }
  std::vector<GroupSharing> sorted;
  for (auto& [name, group] : groups) {
    group.name = name;
    sorted.push_back(std::move(group));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const GroupSharing& a, const GroupSharing& b) { return a.bytes > b.bytes; });
  return sorted;
}

}  // namespace

std::vector<GroupSharing> GroupByName(const TensorMap& tensors, size_t max_groups) {
  std::vector<GroupSharing> groups;
  for (int components = kMaxComponents; components > 0; --components) {
    groups = GroupByComponents(tensors, components);
    if (groups.size() <= max_groups) return groups;
  }
  GroupSharing others{.name = "(others)"};
  for (size_t i = max_groups - 1; i < groups.size(); ++i) {
    others.bytes += groups[i].bytes;
    others.new_bytes += groups[i].new_bytes;
  }
  groups.resize(max_groups - 1);
  groups.push_back(std::move(others));
  return groups;
}

Result<Sharing> MeasureSharing(const Store& store) {
  Sharing sharing;
  TensorMap tensors;
  VARVE_ASSIGN_OR_RETURN(std::vector<Pair> pairs, ListPairs(store));
  const StopFlag stop;
  for (const Pair& pair : Spread(std::move(pairs), kMaxPairs)) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    const Status status = AddPair(store, pair, &tensors);
    if (status.code() == StatusCode::kNotFound) continue;
    if (!status.ok()) return status;
    ++sharing.num_checkpoints;
  }
  sharing.groups = GroupByName(tensors, kMaxGroups);
  for (GroupSharing& group : sharing.groups) {
    group.bytes /= std::max<uint64_t>(sharing.num_checkpoints, 1);
    group.new_bytes /= std::max<uint64_t>(sharing.num_checkpoints, 1);
  }
  return sharing;
}

}  // namespace varve::internal::cli
