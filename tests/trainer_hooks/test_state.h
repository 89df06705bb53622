// SPDX-License-Identifier: Apache-2.0
//
// A trainer's state that a test owns, and how to compare it with what a store holds.
#pragma once

#include <deque>

#include "tests/store/store_fixture.h"
#include "tests/trainer_hooks/one_worker.h"
#include "varve/training_state.h"

namespace varve::internal::testing {

// Owns its tensors' memory. `state()` views it.
class TestState {
 public:
  // Returns where its bytes are. They stay there.
  TestTensor* Add(TestTensor tensor, TensorRole role = TensorRole::kParameter) {
    tensors_.push_back(std::move(tensor));
    TestTensor& t = tensors_.back();
    state_.tensors.push_back({{.name = t.name,
                               .dtype = t.dtype,
                               .shape = t.shape,
                               .role = role,
                               .derived_from = t.derived_from},
                              t.bytes.data()});
    return &t;
  }
  TrainingState& state() { return state_; }
  const std::deque<TestTensor>& tensors() const { return tensors_; }
  // Returns what is in memory now.
  std::vector<TestTensor> Snapshot() const { return {tensors_.begin(), tensors_.end()}; }

 private:
  std::deque<TestTensor> tensors_;
  TrainingState state_;
};

// The BF16 copy of an FP32 tensor, rounded to nearest, ties to even. No NaN.
inline TestTensor RoundedCopy(const TestTensor& master, std::string name) {
  TestTensor copy{std::move(name), DType::kBF16, master.shape, {}, master.name};
  for (size_t i = 0; i + 4 <= master.bytes.size(); i += 4) {
    uint32_t bits;
    std::memcpy(&bits, &master.bytes[i], 4);
    const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    const auto* bytes = reinterpret_cast<const std::byte*>(&rounded);
    copy.bytes.insert(copy.bytes.end(), bytes, bytes + 2);
  }
  return copy;
}

}  // namespace varve::internal::testing
