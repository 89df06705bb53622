// SPDX-License-Identifier: Apache-2.0
//
// Finds the step at which a tensor changed last, without looking at every step.
//
//   LastChange last_change(store, infos);
//   VARVE_ASSIGN_OR_RETURN(const auto step, last_change.Of("wte"));
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/format/record.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {

class LastChange {
 public:
  // `steps` are those of one run, rising, up to the one that is looked at. The store must outlive
  // this object.
  LastChange(const Store& store, std::vector<CheckpointInfo> steps);

  // Returns the last step of `varve log` for this tensor that is not behind the one that is looked
  // at. nullopt: the tensor is not in that step, or this object has looked at kMaxLooks records.
  Result<std::optional<uint64_t>> Of(const std::string& name);

 private:
  // Bounds the time. One tensor takes about fifteen looks, unless most saves had another parent
  // than the step before them.
  static constexpr size_t kMaxLooks = 10'000;

  // What says that a tensor is the same: its lists never change, and equal digests are equal bytes.
  struct State {
    std::vector<std::pair<std::vector<ListAddress>, Digest>> shards;
    std::vector<std::pair<DType, std::vector<int64_t>>> shapes;
    bool operator==(const State&) const = default;
  };

  // nullopt: the step, or the tensor in it, does not exist.
  Result<std::optional<State>> StateAt(size_t i, const std::string& name);
  Result<size_t> FirstOfChain(const State& state, size_t newest, const std::string& name);
  static bool HaveEqualBytes(const State& a, const State& b);

  const Store& store_;
  const std::vector<CheckpointInfo> steps_;
  // For each step, the first one of its chain. In a chain, each save was compared with the step
  // before it, which is still the same save.
  std::vector<size_t> chain_starts_;
  size_t num_looks_ = 0;
  std::map<size_t, std::unique_ptr<ShardedReader>> readers_;  // null: there is no such step
};

}  // namespace varve::internal::cli
