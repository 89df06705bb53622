// SPDX-License-Identifier: Apache-2.0
//
// crash_reader STORE: opens a store for reading, as it lies after a kill, reads every step of every
// run, and prints one line for each: `RUN STEP CONTENT ok`, or the error in place of `ok`. Exits 0
// when the store could be listed, whatever the steps are.
#include <cstdio>
#include <string>

#include "tests/crash/crash_plans.h"

namespace varve::internal::testing {
namespace {

void JudgeStep(const Store& store, const std::string& run, uint64_t step) {
  uint64_t content = 0;
  const Status status = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run, step));
    VARVE_ASSIGN_OR_RETURN(content, ReadContentNumber(*reader));
    return VerifyContent(*reader, PlanOf(run));
  }();
  std::printf("%s %llu %llu %s\n", run.c_str(), static_cast<unsigned long long>(step),
              static_cast<unsigned long long>(content), status.ToString().c_str());
}

Status JudgeAll(const char* path) {
  VARVE_ASSIGN_OR_RETURN(const auto store, Store::OpenForReading(path));
  VARVE_ASSIGN_OR_RETURN(const auto runs, store->ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store->ListCheckpoints(run.name));
    for (const CheckpointInfo& info : steps) JudgeStep(*store, run.name, info.id.step);
  }
  return Status::Ok();
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const varve::Status status = varve::internal::testing::JudgeAll(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "crash_reader: %s\n", status.ToString().c_str());
  return status.code() == varve::StatusCode::kNotFound ? 10 : 1;
}
