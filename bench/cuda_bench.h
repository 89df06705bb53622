// SPDX-License-Identifier: Apache-2.0
//
// What cuda_bench measures. README.md says what each number is. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "bench/gpu.h"
#include "bench/judged_table.h"

namespace varve::internal::bench {

struct CudaParams {
  std::filesystem::path folder;  // stores are made below
  uint64_t state_bytes = 0;
  uint64_t small_bytes = 0;  // of a state that leaves much of the device idle
  uint64_t large_bytes = 0;  // of the state for which only stalls are measured
  int rounds = 20;           // at most, of a measure
  double seconds = 10;       // a measure ends after so long, when it has kMinRounds
};
inline constexpr int kMinRounds = 3;

// All rows, in their order.
std::vector<PlannedRow> PlanDigests();
std::vector<PlannedRow> PlanSaves();
std::vector<PlannedRow> PlanLarge();

// Measures digests of all chunks of a state against one pass of plain loads.
void MeasureDigests(const CudaParams& params, Gpu* gpu, JudgedTable* table);
// Stalls, time to durable, restore.
void MeasureSaves(const CudaParams& params, Gpu* gpu, JudgedTable* table);
// Stalls of a state that is larger than the memory of the host has room for.
void MeasureLarge(const CudaParams& params, Gpu* gpu, JudgedTable* table);

}  // namespace varve::internal::bench
