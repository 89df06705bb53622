// SPDX-License-Identifier: Apache-2.0
//
// The axes that are measured, one a function. Each makes stores of growing size below a folder, and
// adds the costs of operations on them to the curves. Each file says what its operations are. All
// end the program when something fails. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/scale/curves.h"

namespace varve::internal::bench {

struct Plan {
  std::filesystem::path folder;  // stores are made below, and removed
  std::string varve;             // path of the command
  std::vector<uint64_t> sizes;   // rising
};

// tensors.cc: a save, its readers and its removal by the tensors of a checkpoint.
void MeasureTensors(const Plan& plan, Curves* curves);
// imports.cc: `varve import` by the tensors of a safetensors file.
void MeasureImports(const Plan& plan, Curves* curves);
// steps.cc: by the steps of a run, each of so many tensors.
void MeasureSteps(const Plan& plan, uint64_t num_tensors, Curves* curves);
// steps.cc: by the steps, with as many tensors each: both grow.
void MeasureStepsAndTensors(const Plan& plan, Curves* curves);
// ranks.cc: ranks that are threads with members of their own, by their number.
void MeasureRanks(const Plan& plan, Curves* curves);
// ranks.cc: the slowest of the saves after another process has dropped so many steps.
void MeasureSweep(const Plan& plan, Curves* curves);
// group_steps.cc: the log of a group by its steps.
void MeasureGroupSteps(const Plan& plan, Curves* curves);
// geometry.cc: the proof that shards are all of a tensor by their number, and reading them again in
// another cut.
void MeasureCoverage(const Plan& plan, Curves* curves);
void MeasureRecuts(const Plan& plan, Curves* curves);

// group_log.cc: ranks that are threads and save nothing: the log alone.
struct LogCosts {
  // Seconds of each save, see there.
  std::vector<double> latencies;
  std::vector<double> begins;  // from where rank 0 says BEGIN until all ranks have read it
  // The parts of the latency. First all ranks have said PREPARED, then COMMIT is durable, then all
  // ranks have read it.
  std::vector<double> to_prepared, prepared_to_committed, committed_to_known;
  std::vector<double> floors;  // of latencies, of some saves
  Cost save;                   // the mean of the saves, of all ranks
  Cost poll;                   // one rank looks and finds nothing new
  uint64_t most_files = 0;     // in the folder of the log at the end of a save
};
LogCosts RunLog(const std::filesystem::path& root, uint32_t num_ranks, int num_saves);
void MeasureLog(const Plan& plan, int num_saves, Curves* curves);

// waits.cc: the time of each commit of a trainer that saves at an interval while something else
// goes on in its store.
enum class Beside { kNothing, kForget, kReclaim, kCheck, kOwnForget, kOwnReclaim, kOwnCheck };
struct SaveTime {
  double seconds = 0;
  double waited = 0;  // of them, for the commit of another operation of this process
  double disk = 0;    // what the same syncs of small files took, just before or just after
};
std::vector<SaveTime> MeasureWaits(const Plan& plan, Beside beside, uint64_t mib, double interval,
                                   int num_saves);
const char* NameOf(Beside beside);

}  // namespace varve::internal::bench
