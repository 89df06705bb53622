// SPDX-License-Identifier: Apache-2.0
//
// What a store holds, every step with its bytes, to be compared with what it should hold. And the
// content of steps that have deltas, derived tensors and shared bytes. Stateless.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/store/internals.h"

namespace varve::internal::testing {

using Tensors = std::shared_ptr<const std::vector<TestTensor>>;

// What a store holds, or that there is none.
struct State {
  bool exists = false;
  std::map<std::pair<std::string, uint64_t>, Tensors> steps;
  std::map<std::pair<std::string, std::string>, uint64_t> tags;
  std::map<std::pair<std::string, uint64_t>, std::map<std::string, double>> metrics;

  // The order of tensors is that of their names.
  void Put(const CheckpointId& id, std::vector<TestTensor> tensors);
};

bool Equal(const State& a, const State& b);
std::string ToString(const State& state);
Result<State> ReadState(const Store& store);
Result<std::vector<TestTensor>> ReadTensors(const Store& store, const CheckpointId& id);

// Tensors with deltas, a derived tensor and shared bytes.
std::vector<TestTensor> ContentOfStep(uint64_t step);
Status SaveContentOf(Store* store, const CheckpointId& id, uint64_t content,
                     OnExisting on_existing = OnExisting::kError);

// Each returns what is wrong. Empty = nothing. The state is one of these:
std::string CheckState(const Store& store, const std::vector<State>& allowed);
// A check that reads all data finds nothing.
std::string CheckClean(const Store& store);

// A request may wait in the inbox of a store that is no group. After this its change does not come
// while the state is read.
void ApplyRequests(Store* store);

}  // namespace varve::internal::testing
