// SPDX-License-Identifier: Apache-2.0
//
// big_save STORE BYTES SAVES: holds a state of BYTES in memory, like a trainer, and saves it SAVES
// times; between two saves every element changes a little. After each save prints
//
//   step N seconds S stored BYTES peak BYTES
//
// where peak is the largest resident memory of this process (VmHWM) during that save alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/step_content.h"

namespace varve::testing {
namespace {

// One allocation for all, as a trainer's arena; the tensors are views into it.
struct State {
  std::vector<float> values;
  std::vector<std::string> names;
  std::vector<int64_t> elements;
};

// A few large tensors and many small ones. Half of them are weights near zero, half are noise.
State MakeState(uint64_t bytes) {
  State state;
  state.values.resize(bytes / sizeof(float));
  const int64_t large = static_cast<int64_t>(state.values.size() / 5);
  int64_t left = static_cast<int64_t>(state.values.size());
  while (left > 0) {
    const bool small = state.names.size() % 4 == 3;
    const int64_t count = std::min<int64_t>(left, small ? 10'007 : large);
    state.names.push_back("tensor." + std::to_string(state.names.size()));
    state.elements.push_back(count);
    left -= count;
  }
  for (size_t i = 0; i < state.values.size(); ++i) {
    const auto bits = static_cast<uint32_t>(Mix(31, i));
    const bool weight = (i >> 20) % 2 == 0;
    const uint32_t word = weight ? (0x3c000000u | (bits & 0x80ffffffu)) : bits;
    std::memcpy(&state.values[i], &word, sizeof(word));
  }
  return state;
}

// Flips low mantissa bits, as a training step does.
void Drift(State* state, uint64_t step) {
  for (size_t i = 0; i < state->values.size(); ++i) {
    uint32_t word;
    std::memcpy(&word, &state->values[i], sizeof(word));
    word ^= static_cast<uint32_t>(Mix(step, i)) & 0x3f;
    std::memcpy(&state->values[i], &word, sizeof(word));
  }
}

Result<SaveReport> Save(Store* store, const State& state, uint64_t step) {
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

// Lets VmHWM begin anew at what is resident now.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
  }
  return 0;
}

int Fail(const Status& status) {
  std::fprintf(stderr, "big_save: %s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto store = Store::OpenOrCreate(argv[1]);
  if (!store.ok()) return Fail(store.status());
  State state = MakeState(std::strtoull(argv[2], nullptr, 10));
  const uint64_t saves = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t step = 0; step < saves; ++step) {
    if (step > 0) Drift(&state, step);
    ResetPeak();
    const auto report = Save(store->get(), state, step);
    if (!report.ok()) return Fail(report.status());
    std::printf("step %llu seconds %.2f stored %llu peak %llu\n",
                static_cast<unsigned long long>(step), report->elapsed.count(),
                static_cast<unsigned long long>(report->stored_bytes),
                static_cast<unsigned long long>(PeakBytes()));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace varve::testing

int main(int argc, char** argv) { return varve::testing::Main(argc, argv); }
