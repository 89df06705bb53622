// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks save: named tensors in one allocation, like a trainer's arena. They are
// filled with noise, with data like that of a training, or from a file. Everything is a pure
// function of a seed. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/store.h"
#include "varve/tensor.h"

namespace varve::internal::bench {

struct StateTensor : TensorSpec {
  std::span<std::byte> data{};
};

struct State {
  std::vector<StateTensor> tensors;
  std::unique_ptr<std::byte[]> memory;

  uint64_t bytes() const;
  // Returns the same tensors, all zero.
  State EmptyCopy() const;
};

// A 64-bit mix of its inputs.
uint64_t Mix(uint64_t a, uint64_t b);
void FillNoise(uint64_t seed, std::span<std::byte> out);

// FP32 tensors of `tensor_bytes` whose bits are random: no codec can shrink them.
State MakeNoise(uint64_t bytes, uint64_t tensor_bytes, uint64_t seed);
// Weights in BF16, their FP32 masters, and two FP32 moments, with the distributions of training.
State MakeTrained(uint64_t bytes, uint64_t seed);
// Returns the tensors of a safetensors file, repeated along their first axis until they have about
// `bytes`. Each copy is rotated by another number of elements. So the values are the same, but no
// two chunks are alike.
State LoadTrained(const std::filesystem::path& file, uint64_t bytes);

// Changes the state as a small optimizer step does: low mantissa bits of all FP32 tensors change,
// and rounded copies with them. The content depends on `step` alone, not on the steps before.
void Drift(State* state, uint64_t step);

// Begin to Commit.
SaveReport Save(Store* store, const State& state, uint64_t step);
// OpenCheckpoint and one read of all tensors.
void Restore(const Store& store, uint64_t step, State* out);
// Ends the program unless the store gives back what `state` holds.
void RequireRestores(const Store& store, uint64_t step, const State& state);

}  // namespace varve::internal::bench
