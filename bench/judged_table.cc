// SPDX-License-Identifier: Apache-2.0
#include "bench/judged_table.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/rows.h"
#include "bench/workplace.h"

namespace varve::internal::bench {

JudgedTable::JudgedTable(const std::vector<PlannedRow>& rows) {
  for (const PlannedRow& plan : rows) rows_.push_back({.plan = plan});
}

void JudgedTable::Settle(const std::string& what, const std::string& measured,
                         std::optional<bool> met, const std::string& verdict) {
  const auto row = std::ranges::find_if(
      rows_, [&](const Row& candidate) { return candidate.plan.what == what; });
  if (row == rows_.end()) Fail("no row is named " + what);
  row->measured = measured;
  row->met = met;
  row->verdict = verdict;
  std::printf("%-52s %-34s %-8s %s\n", what.c_str(), row->plan.target.c_str(), verdict.c_str(),
              measured.c_str());
  std::fflush(stdout);
  WriteJson();
}

void JudgedTable::Judge(const std::string& what, const std::string& measured, bool met) {
  Settle(what, measured, met, met ? "met" : "NOT MET");
}

void JudgedTable::Inform(const std::string& what, const std::string& measured) {
  Settle(what, measured, std::nullopt, "for information");
}

void JudgedTable::NotRun(const std::string& what, const std::string& why) {
  Settle(what, "-", std::nullopt, "not run: " + why);
}

void JudgedTable::NotRun(const std::string& why) {
  for (const Row& row : rows_) {
    if (row.verdict.empty()) NotRun(row.plan.what, why);
  }
}

void JudgedTable::AddSamples(const std::string& name, const std::vector<double>& values) {
  auto& samples = samples_[name];
  samples.insert(samples.end(), values.begin(), values.end());
}

void JudgedTable::WriteJsonTo(const std::filesystem::path& path) {
  path_ = path;
  WriteJson();
}

void JudgedTable::WriteJson() const {
  if (path_.empty()) return;
  nlohmann::json document = {{"about", about_}};
  for (const Row& row : rows_) {
    nlohmann::json met;
    if (row.met.has_value()) met = *row.met;
    document["rows"].push_back({{"what", row.plan.what},
                                {"target", row.plan.target},
                                {"measured", row.measured},
                                {"met", met},
                                {"verdict", row.verdict.empty() ? "not reached" : row.verdict}});
  }
  for (const auto& [name, values] : samples_) {
    document["benchmarks"][name] = {{"median", Quantile(values, 0.5)},
                                    {"p99", Quantile(values, 0.99)},
                                    {"min", std::ranges::min(values)},
                                    {"max", std::ranges::max(values)},
                                    {"samples", values.size()}};
  }
  // Whoever reads it meanwhile finds a whole one.
  const std::filesystem::path next = path_.string() + ".next";
  std::ofstream file(next);
  file << document.dump(1) << "\n";
  if (!file.flush()) Fail("cannot write " + next.string());
  file.close();
  std::filesystem::rename(next, path_);
}

int JudgedTable::Finish() const {
  const auto missed =
      std::ranges::count_if(rows_, [](const Row& row) { return row.met == std::optional(false); });
  std::printf("%ld not met\n", static_cast<long>(missed));
  return missed == 0 ? 0 : 1;
}

}  // namespace varve::internal::bench
