// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.h"

#include <benchmark/benchmark.h>

namespace varve::internal::bench {

void Register(const std::string& name, Repeat repeat,
              const std::function<std::unique_ptr<Measure>()>& make) {
  struct Run {
    std::unique_ptr<Measure> measure;
    int left;
  };
  const auto run = std::make_shared<Run>(Run{nullptr, repeat.times});
  benchmark::RegisterBenchmark(name.c_str(),
                               [run, repeat, make](benchmark::State& state) {
                                 if (run->measure == nullptr) {
                                   run->measure = make();
                                   if (repeat.warm_up) run->measure->Once();
                                 }
                                 Sample sample;
                                 for (auto iteration : state) {
                                   (void)iteration;
                                   sample = run->measure->Once();
                                   state.SetIterationTime(sample.seconds);
                                 }
                                 for (const auto& [counter, value] : sample.counters) {
                                   state.counters[counter] = value;
                                 }
                                 if (--run->left == 0) run->measure.reset();
                               })
      ->Iterations(1)
      ->Repetitions(repeat.times)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace varve::internal::bench
