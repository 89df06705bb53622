// SPDX-License-Identifier: Apache-2.0
//
// Numbers, times and tables for people. JSON gets exact values instead (cli/json.h). Functions are
// stateless. A Table is a plain value.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/store.h"

namespace varve::internal::cli {

// "0 B", "1023 B", "1.0 KiB", "1.2 GiB": about three digits.
std::string HumanBytes(uint64_t bytes);
// "850 us", "12 ms", "3.4 s", "2 min 5 s", "1 h 2 min".
std::string HumanDuration(std::chrono::duration<double> duration);
// "340 MiB/s", or "-" when nothing was measured.
std::string HumanRate(uint64_t bytes, std::chrono::duration<double> duration);
// "2026-11-20 20:11:14 +0100", local time and its zone, as git writes it.
std::string HumanTime(std::chrono::system_clock::time_point time);
// "12.3 %" of `whole`, or "-" when the whole is 0.
std::string HumanShare(uint64_t part, uint64_t whole);
// Six significant digits, like "%g".
std::string HumanNumber(double value);
// "[1024, 3]", or "[]" for 0-d.
std::string HumanShape(std::span<const int64_t> shape);
// "loss=2.5 accuracy=0.9".
std::string HumanMetrics(const std::map<std::string, double>& metrics);
// "5" in the default run, "exp@5" in another.
std::string HumanId(const CheckpointId& id);
// "1 step", "3 steps".
std::string Count(uint64_t count, std::string_view noun);
// "3 of 12".
std::string CountOf(uint64_t part, uint64_t whole);
// "1.2 GiB freed, 3.0 MiB pending, disk 4.0 GiB -> 2.8 GiB".
std::string ReclaimText(const ReclaimReport& report);
// One line for each warning.
std::string WarningsText(std::span<const std::string> warnings);
// "step 5: 3 tensors, 1.2 GiB, of which 3.0 MiB new, stored in 1.0 MiB (340 ms)".
std::string SaveText(const SaveReport& report);
// "a, b".
std::string Join(std::span<const std::string> parts, std::string_view separator);

// Returns the text with escapes such as \n, \x1b or \u202e in place of control characters, which a
// hostile name could use to take over the terminal, and of bytes that are not UTF-8.
std::string Printable(std::string_view text);
// As Printable, but it shortens words of more than 256 bytes to their start and end. A name of
// 1,024 bytes says no more than that.
std::string Message(std::string_view message);

// Columns of equal width, two spaces apart.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // Adds one cell for each column. Cells are made printable.
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace varve::internal::cli
