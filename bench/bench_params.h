// SPDX-License-Identifier: Apache-2.0
//
// Every size and count of the store benchmarks. README.md says what is made of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <thread>

namespace varve::internal::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// The store cuts 4-byte elements into chunks of this size. Its frames go into files of the next
// size. Baselines work in the same portions.
inline constexpr uint64_t kChunkBytes = kMiB;
inline constexpr uint64_t kFileBytes = 256 * kMiB;

struct Params {
  std::filesystem::path folder;      // stores and files are made below
  std::filesystem::path state_file;  // real training state, safetensors. Empty = synthetic

  // Threads of the store and of its baselines.
  int num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int pairs = 7;

  uint64_t full_bytes = kGiB;                // state that is saved and restored whole
  uint64_t little_changed_bytes = 2 * kGiB;  // state of which 1 % of the chunks change
  uint64_t tensor_bytes = 64 * kMiB;         // of each tensor of these
  int unchanged_tensors = 1'000;             // of the state that does not change, 1 MiB each

  int few_steps = 10;                   // what grows with the number of steps ...
  int many_steps = 1'000;               // ... is seen between these two
  int query_tensors = 4;                // a step, 1 MiB each
  int queries = 400;                    // timed one by one
  uint64_t drop_step_bytes = 4 * kMiB;  // what a step has of its own
  int garbage_steps = 200;              // dropped one by one
  int open_steps = 10'000;

  uint64_t memory_bytes = 2 * kGiB;  // state, and a quarter of it
};

// Sizes for a smoke test: every row, no meaning.
inline Params QuickParams() {
  Params params;
  params.pairs = 2;
  params.full_bytes = 24 * kMiB;
  params.little_changed_bytes = 100 * kMiB;
  params.tensor_bytes = 4 * kMiB;
  params.unchanged_tensors = 20;
  params.few_steps = 5;
  params.many_steps = 40;
  params.query_tensors = 2;
  params.queries = 50;
  params.garbage_steps = 12;
  params.open_steps = 100;
  params.memory_bytes = 64 * kMiB;
  return params;
}

}  // namespace varve::internal::bench
