// SPDX-License-Identifier: Apache-2.0
//
// How costs grow. Each operation is measured at several sizes. A power of the size is fitted to
// each of its numbers and printed with the expected power. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/scale/cost.h"

namespace varve::internal::bench {

// The powers of the size with which an operation may grow.
struct Growth {
  double work = 1;    // seconds, bytes and calls
  double memory = 0;  // in addition to what was used before
};

// The power e of the least squares fit of log(value) = a + e log(size). Precondition: two sizes.
double FitExponent(const std::vector<std::pair<double, double>>& points);

class Curves {
 public:
  // `axis`: what grows, e.g. "tensors".
  explicit Curves(std::string axis) : axis_(std::move(axis)) {}

  void Add(const std::string& what, Growth expected, double size, const Cost& cost);
  // The curves, and for each operation "met", "not met", or "too small to say".
  void Print() const;
  // How many operations grow faster than expected.
  int num_missed() const;
  // Each operation's cost at its largest size.
  std::vector<std::pair<std::string, Cost>> Last() const;
  // An array of operations, each with its points and exponents.
  std::string ToJson() const;

 private:
  struct Operation {
    std::string what;
    Growth expected;
    std::vector<std::pair<double, Cost>> points;
  };
  struct Verdict {
    std::vector<std::pair<std::string, double>> exponents;  // of each number that is large enough
    bool met = true;
  };
  static Verdict Judge(const Operation& operation);

  const std::string axis_;
  std::vector<Operation> operations_;
};

}  // namespace varve::internal::bench
