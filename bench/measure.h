// SPDX-License-Identifier: Apache-2.0
//
// How every store benchmark is run. A Measure sets up and verifies once. Then each call of Once
// times the subject and its baseline, under fresh file names. Google Benchmark calls it as often as
// requested and reports the median of each counter. So a counter that is a ratio becomes the median
// of the ratios of single pairs. Thread rule: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace varve::internal::bench {

struct Sample {
  double seconds = 0;  // of the subject
  std::map<std::string, double> counters;
};

class Measure {
 public:
  virtual ~Measure() = default;
  virtual Sample Once() = 0;
};

struct Repeat {
  int times = 1;
  bool warm_up = true;  // one more call first, whose sample is thrown away
};

// `make` is called when the benchmark first runs. Its result is destroyed after the last call.
void Register(const std::string& name, Repeat repeat,
              const std::function<std::unique_ptr<Measure>()>& make);

// Wall time of a call, in seconds.
template <typename Function>
double Seconds(const Function& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace varve::internal::bench
