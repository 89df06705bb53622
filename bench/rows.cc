// SPDX-License-Identifier: Apache-2.0
#include "bench/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace varve::internal::bench {

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::ceil(q * static_cast<double>(values.size()))) - 1];
}

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  return text;
}

void Rows::Print(const std::string& what, double value, double target, const std::string& note) {
  const bool met = value <= target;
  num_missed_ += met ? 0 : 1;
  std::printf("%-52s %8.3f   at most %7.3f   %-8s %s\n", what.c_str(), value, target,
              met ? "met" : "NOT MET", note.c_str());
  std::fflush(stdout);
}

void Rows::PrintUnmeasured(const std::string& what, double target, const std::string& why) {
  ++num_missed_;
  std::printf("%-52s %8s   at most %7.3f   %-8s %s\n", what.c_str(), "n/a", target, "NOT MET",
              why.c_str());
  std::fflush(stdout);
}

int Rows::Finish() const {
  std::printf("%d not met\n", num_missed_);
  return num_missed_ == 0 ? 0 : 1;
}

}  // namespace varve::internal::bench
