// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace varve::internal::bench {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
// A fit of three sizes on a busy machine is not better than that.
constexpr double kTolerance = 0.25;

// A number of a cost. Numbers below `least` are fixed cost and noise.
struct Number {
  const char* name;
  double Cost::*value;
  double least;
  double Growth::*expected;
};
constexpr Number kNumbers[] = {
    {"seconds", &Cost::seconds, 0.02, &Growth::work},
    {"cpu_seconds", &Cost::cpu_seconds, 0.02, &Growth::work},
    {"bytes_read", &Cost::bytes_read, 4 * kMiB, &Growth::work},
    {"bytes_written", &Cost::bytes_written, 4 * kMiB, &Growth::work},
    {"calls", &Cost::calls, 2000, &Growth::work},
    {"memory_bytes", &Cost::memory_bytes, 32 * kMiB, &Growth::memory},
};

}  // namespace

double FitExponent(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [size, value] : points) {
    const double lx = std::log(size), ly = std::log(std::max(value, 1e-9));
    x += lx;
    y += ly;
    xx += lx * lx;
    xy += lx * ly;
  }
  const auto n = static_cast<double>(points.size());
  return (n * xy - x * y) / (n * xx - x * x);
}

void Curves::Add(const std::string& what, Growth expected, double size, const Cost& cost) {
  auto it = std::ranges::find(operations_, what, &Operation::what);
  if (it == operations_.end()) it = operations_.insert(it, {what, expected, {}});
  it->points.emplace_back(size, cost);
}

Curves::Verdict Curves::Judge(const Operation& operation) {
  Verdict verdict;
  if (operation.points.size() < 2) return verdict;
  for (const Number& number : kNumbers) {
    std::vector<std::pair<double, double>> values;
    double most = 0;
    for (const auto& [size, cost] : operation.points) {
      values.emplace_back(size, cost.*number.value);
      most = std::max(most, cost.*number.value);
    }
    if (most < number.least) continue;
    const double exponent = FitExponent(values);
    verdict.exponents.emplace_back(number.name, exponent);
    if (exponent > operation.expected.*number.expected + kTolerance) verdict.met = false;
  }
  return verdict;
}

void Curves::Print() const {
  std::printf("\n%-34s %10s %11s %11s %9s %9s %9s %9s\n", "", axis_.c_str(), "seconds", "of CPUs",
              "MiB read", "written", "calls", "MiB held");
  for (const Operation& operation : operations_) {
    for (const auto& [size, cost] : operation.points) {
      std::printf("%-34s %10.0f %11.5f %11.5f %9.2f %9.2f %9.0f %9.1f\n", operation.what.c_str(),
                  size, cost.seconds, cost.cpu_seconds, cost.bytes_read / kMiB,
                  cost.bytes_written / kMiB, cost.calls, cost.memory_bytes / kMiB);
    }
    const Verdict verdict = Judge(operation);
    std::printf("  expected: work ~ %s^%.0f, memory ~ %s^%.0f; fitted:", axis_.c_str(),
                operation.expected.work, axis_.c_str(), operation.expected.memory);
    for (const auto& [name, exponent] : verdict.exponents) {
      std::printf(" %s^%.2f", name.c_str(), exponent);
    }
    std::printf(" %s\n", verdict.exponents.empty() ? "too small to say"
                         : verdict.met             ? "met"
                                                   : "NOT MET");
  }
  std::fflush(stdout);
}

int Curves::num_missed() const {
  return static_cast<int>(
      std::ranges::count_if(operations_, [](const Operation& o) { return !Judge(o).met; }));
}

std::vector<std::pair<std::string, Cost>> Curves::Last() const {
  std::vector<std::pair<std::string, Cost>> last;
  for (const Operation& operation : operations_) {
    last.emplace_back(operation.what, operation.points.back().second);
  }
  return last;
}

std::string Curves::ToJson() const {
  auto all = nlohmann::ordered_json::array();
  for (const Operation& operation : operations_) {
    nlohmann::ordered_json object = {{"axis", axis_},
                                     {"what", operation.what},
                                     {"expected_work", operation.expected.work},
                                     {"expected_memory", operation.expected.memory}};
    for (const auto& [size, cost] : operation.points) {
      nlohmann::ordered_json point = {{"size", size}};
      for (const Number& number : kNumbers) point[number.name] = cost.*number.value;
      object["points"].push_back(std::move(point));
    }
    const Verdict verdict = Judge(operation);
    object["exponents"] = nlohmann::ordered_json::object();
    for (const auto& [name, exponent] : verdict.exponents) object["exponents"][name] = exponent;
    object["met"] = verdict.met;
    all.push_back(std::move(object));
  }
  return all.dump(1);
}

}  // namespace varve::internal::bench
