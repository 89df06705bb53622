// SPDX-License-Identifier: Apache-2.0
//
// A table whose rows are all known before anything is measured. So a row that was not run is in the
// table, too, and says why. A row is printed when it is settled. The JSON has the rows as
// bench_table.py has them, and every sample. Thread rule: one thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace varve::internal::bench {

struct PlannedRow {
  std::string what;
  std::string target;
};

class JudgedTable {
 public:
  explicit JudgedTable(const std::vector<PlannedRow>& rows);

  // A row is named by what it measures. The program ends when there is no such row.
  void Judge(const std::string& what, const std::string& measured, bool met);
  void Inform(const std::string& what, const std::string& measured);
  void NotRun(const std::string& what, const std::string& why);
  // All that have not been settled.
  void NotRun(const std::string& why);

  // For the JSON: the first says what the numbers are of, the next adds all values of one.
  void Describe(const std::string& key, const std::string& value) { about_[key] = value; }
  void AddSamples(const std::string& name, const std::vector<double>& values);

  // From now on the JSON is written anew whenever a row is settled, so that a program that is ended
  // leaves what it has measured.
  void WriteJsonTo(const std::filesystem::path& path);
  // Prints how many were above their targets. The exit code of the program.
  int Finish() const;

 private:
  struct Row {
    PlannedRow plan;
    std::string measured = "-";
    std::string verdict;  // empty: not settled
    std::optional<bool> met;
  };
  void WriteJson() const;
  void Settle(const std::string& what, const std::string& measured, std::optional<bool> met,
              const std::string& verdict);

  std::filesystem::path path_;  // of the JSON, or empty
  std::vector<Row> rows_;
  std::map<std::string, std::string> about_;
  std::map<std::string, std::vector<double>> samples_;
};

}  // namespace varve::internal::bench
