// SPDX-License-Identifier: Apache-2.0
//
// async_loop STORE BYTES SAVES STAGING_BYTES: a training loop with a state of BYTES that saves
// after each of its steps, in the background of the next. Every element changes a little in a step.
// Prints a line when a step has been handed over, and one when it is durable:
//
//   begun N
//   step N stall S durable S changed BYTES staged BYTES peak BYTES
//
// where peak is the largest resident memory of this process so far, and at the end what is resident
// with the staging memory kept, and after it was given back:
//
//   kept BYTES released BYTES
//
// When a call of the checkpointer fails it prints `failed at N: MESSAGE` and exits with 3.
#include <cstdio>
#include <cstdlib>

#include "tests/support/big_state.h"
#include "varve/varve.h"

namespace varve::internal::testing {
namespace {

TrainingState View(BigState* state) {
  TrainingState view;
  float* data = state->values.data();
  for (size_t i = 0; i < state->names.size(); ++i) {
    view.tensors.push_back({{.name = state->names[i], .shape = {state->elements[i]}}, data});
    data += state->elements[i];
  }
  return view;
}

int Failed(uint64_t step, const Status& status) {
  std::printf("failed at %lu: %s\n", step, status.ToString().c_str());
  return 3;
}

void Report(const SaveStats& m) {
  if (!m.status.ok()) return;
  std::printf("step %lu stall %.3f durable %.3f changed %lu staged %lu peak %lu\n", m.step,
              m.stall_seconds, m.durable_seconds, m.changed_bytes, m.staged_bytes,
              MemoryBytes("VmHWM:"));
}

int Main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  BigState state = MakeBigState(std::strtoull(argv[2], nullptr, 10));
  const uint64_t saves = std::strtoull(argv[3], nullptr, 10);
  auto opened = AsyncCheckpointer::Open(
      argv[1], {.staging_budget_bytes = std::strtoull(argv[4], nullptr, 10), .on_save = Report});
  if (!opened.ok()) return Failed(0, opened.status());
  AsyncCheckpointer& checkpointer = **opened;
  const TrainingState view = View(&state);
  ResetPeak();
  for (uint64_t step = 1; step <= saves; ++step) {
    if (step > 1) Drift(&state, step);
    const auto saving = checkpointer.BeginSave(step, view);
    if (!saving.ok()) return Failed(step, saving.status());
    std::printf("begun %lu\n", step);
    const Status staged = checkpointer.AwaitStaged();
    if (!staged.ok()) return Failed(step, staged);
  }
  const Status waited = checkpointer.Wait();
  if (!waited.ok()) return Failed(saves, waited);
  const uint64_t kept = MemoryBytes("VmRSS:");
  const Status released = checkpointer.ReleaseStaging();
  if (!released.ok()) return Failed(saves, released);
  std::printf("kept %lu released %lu\n", kept, MemoryBytes("VmRSS:"));
  const Status closed = checkpointer.Close();
  return closed.ok() ? 0 : Failed(saves, closed);
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
