// SPDX-License-Identifier: Apache-2.0
//
// The most memory that a save uses besides the state. It is the memory of the process, so each of
// these benchmarks must run in a process of its own (as scripts/bench does).
#include <algorithm>

#include "bench/measure.h"
#include "bench/peak_memory.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

class SaveMemory : public Measure {
 public:
  SaveMemory(const Params& params, uint64_t bytes)
      : params_(params), place_(params.folder), bytes_(bytes) {}

  // A full save, then one in which every chunk has changed and is offered its last content as base.
  Sample Once() override {
    State state = MakeTrained(bytes_, 14);
    const auto store = Must(Store::Create(place_.NewPath("store"), WithThreads(params_)));
    double above = 0;
    double seconds = 0;
    for (uint64_t step = 0; step < 2; ++step) {
      if (step > 0) Drift(&state, step);
      if (!ResetPeakMemory().has_value()) Fail("this system does not tell the peak of memory");
      seconds += Seconds([&] { Save(store.get(), state, step); });
      above = std::max(above,
                       static_cast<double>(PeakMemoryBytes()) - static_cast<double>(state.bytes()));
    }
    RequireRestores(*store, 1, state);
    const double chunks = static_cast<double>(state.bytes()) / static_cast<double>(kChunkBytes);
    const auto budget = static_cast<double>(WithThreads(params_).store.pipeline_budget_bytes);
    return {seconds,
            {{"above_state_mib", above / static_cast<double>(kMiB)},
             {"allowed_mib", (budget + 64 * chunks) / static_cast<double>(kMiB)}}};
  }

 private:
  const Params params_;
  Workplace place_;
  const uint64_t bytes_;
};

}  // namespace

void RegisterMemory(const Params& params) {
  for (const bool large : {false, true}) {
    const uint64_t bytes = large ? params.memory_bytes : params.memory_bytes / 4;
    Register(std::string("memory/") + (large ? "large" : "quarter"), {.times = 1, .warm_up = false},
             [=] { return std::make_unique<SaveMemory>(params, bytes); });
  }
}

}  // namespace varve::internal::bench
