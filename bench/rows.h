// SPDX-License-Identifier: Apache-2.0
//
// The table of a program that compares ratios with their targets. It prints one row a target.
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

namespace varve::internal::bench {

// The smallest value that at least a share `q` of all do not exceed. Precondition: there is a
// value.
double Quantile(std::vector<double> values, double q);
std::string Milliseconds(double seconds);

class Rows {
 public:
  void Print(const std::string& what, double value, double target, const std::string& note);
  // For a row that this machine cannot measure. The row counts as not met and has no number.
  void PrintUnmeasured(const std::string& what, double target, const std::string& why);
  // Prints how many were above their targets. The exit code of the program.
  int Finish() const;

 private:
  int num_missed_ = 0;
};

}  // namespace varve::internal::bench
