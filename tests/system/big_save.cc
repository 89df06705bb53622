// SPDX-License-Identifier: Apache-2.0
//
// big_save STORE BYTES SAVES: holds a state of BYTES in memory, like a trainer, and saves it SAVES
// times. Between two saves every element changes a little. After each save it prints
//
//   step N seconds S stored BYTES peak BYTES
//
// where peak is the largest resident memory of this process (VmHWM) during that save alone.
#include <cstdio>
#include <cstdlib>

#include "tests/support/big_state.h"
#include "varve/varve.h"

namespace varve::internal::testing {
namespace {

Result<SaveReport> Save(Store* store, const BigState& state, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
  const float* data = state.values.data();
  for (size_t i = 0; i < state.names.size(); ++i) {
    VARVE_RETURN_IF_ERROR(writer->Put({.name = state.names[i],
                                       .dtype = DType::kF32,
                                       .shape = {&state.elements[i], 1},
                                       .data = data}));
    data += state.elements[i];
  }
  return writer->Commit();
}

int Fail(const Status& status) {
  std::fprintf(stderr, "big_save: %s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto store = Store::OpenOrCreate(argv[1]);
  if (!store.ok()) return Fail(store.status());
  BigState state = MakeBigState(std::strtoull(argv[2], nullptr, 10));
  const uint64_t saves = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t step = 0; step < saves; ++step) {
    if (step > 0) Drift(&state, step);
    ResetPeak();
    const auto report = Save(store->get(), state, step);
    if (!report.ok()) return Fail(report.status());
    std::printf("step %llu seconds %.2f stored %llu peak %llu\n",
                static_cast<unsigned long long>(step), report->elapsed.count(),
                static_cast<unsigned long long>(report->stored_bytes),
                static_cast<unsigned long long>(MemoryBytes("VmHWM:")));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
