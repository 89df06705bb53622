// SPDX-License-Identifier: Apache-2.0
#include "cli/view/last_change.h"

namespace varve::internal::cli {

LastChange::LastChange(const Store& store, std::vector<CheckpointInfo> steps)
    : store_(store), steps_(std::move(steps)) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool goes_on =
        i > 0 && steps_[i].parent == steps_[i - 1].id && steps_[i - 1].created <= steps_[i].created;
    chain_starts_.push_back(goes_on ? chain_starts_.back() : i);
  }
}

// A save that does not change a tensor names the lists of its parent, and a save that does writes
// lists of its own. So in a chain, all steps since the last change have the same lists, and
// bisection finds the first of them. Where a chain starts, digests say whether the step before it
// has the same bytes.
Result<std::optional<uint64_t>> LastChange::Of(const std::string& name) {
  if (steps_.empty()) return std::optional<uint64_t>();
  size_t at = steps_.size() - 1;
  VARVE_ASSIGN_OR_RETURN(std::optional<State> state, StateAt(at, name));
  if (!state) return std::optional<uint64_t>();
  while (num_looks_ < kMaxLooks) {
    VARVE_ASSIGN_OR_RETURN(at, FirstOfChain(*state, at, name));
    if (at == 0) return std::optional(steps_[0].id.step);
    VARVE_ASSIGN_OR_RETURN(std::optional<State> before, StateAt(at - 1, name));
    if (!before || !HaveEqualBytes(*before, *state)) return std::optional(steps_[at].id.step);
    state = std::move(before);
    --at;
  }
  return std::optional<uint64_t>();
}

// Returns the first step of the chain of `newest` that has the lists of `state`, as `newest` does.
Result<size_t> LastChange::FirstOfChain(const State& state, size_t newest,
                                        const std::string& name) {
  size_t low = chain_starts_[newest];
  size_t high = newest;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    VARVE_ASSIGN_OR_RETURN(const std::optional<State> other, StateAt(middle, name));
    if (other == state) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

bool LastChange::HaveEqualBytes(const State& a, const State& b) {
  if (a.shapes != b.shapes) return false;
  for (size_t i = 0; i < a.shards.size(); ++i) {
    if (a.shards[i].second != b.shards[i].second) return false;
  }
  return true;
}

Result<std::optional<LastChange::State>> LastChange::StateAt(size_t i, const std::string& name) {
  ++num_looks_;
  if (!readers_.contains(i)) {
    auto opened = ShardedReader::Open(store_, steps_[i].id.run, steps_[i].id.step);
    if (!opened.ok() && opened.status().code() != StatusCode::kNotFound) return opened.status();
    readers_[i] = opened.ok() ? *std::move(opened) : nullptr;
  }
  const ShardedReader* reader = readers_[i].get();
  if (reader == nullptr) return std::optional<State>();
  const auto shards = reader->FindStored(name);
  if (shards.status().code() == StatusCode::kNotFound) return std::optional<State>();
  if (!shards.ok()) return shards.status();
  State state;
  for (const StoredShard& shard : *shards) {
    state.shards.emplace_back(shard.record.lists, shard.record.content);
    state.shapes.emplace_back(shard.record.dtype, shard.record.shape);
  }
  return std::optional(std::move(state));
}

}  // namespace varve::internal::cli
