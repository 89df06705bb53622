// SPDX-License-Identifier: Apache-2.0
#include "cli/parse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace varve::cli {
namespace {

struct Unit {
  std::string_view suffix;
  double bytes;
};
constexpr std::array kUnits = {Unit{"", 1},
                               Unit{"B", 1},
                               Unit{"K", 1e3},
                               Unit{"KB", 1e3},
                               Unit{"M", 1e6},
                               Unit{"MB", 1e6},
                               Unit{"G", 1e9},
                               Unit{"GB", 1e9},
                               Unit{"T", 1e12},
                               Unit{"TB", 1e12},
                               Unit{"KiB", 1024.0},
                               Unit{"MiB", 1048576.0},
                               Unit{"GiB", 1073741824.0},
                               Unit{"TiB", 1099511627776.0}};

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

// A leading decimal number; `text` keeps what follows it.
std::optional<double> TakeNumber(std::string_view* text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

}  // namespace

Result<uint64_t> ParseNumber(std::string_view option, std::string_view text, uint64_t max) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value <= max) return value;
  return Status::InvalidArgument(std::string(option) + ": " + Quoted(text) +
                                 " is no number from 0 to " + std::to_string(max));
}

Result<uint64_t> ParseByteSize(std::string_view text) {
  std::string_view suffix = text;
  const std::optional<double> number = TakeNumber(&suffix);
  for (const Unit& unit : kUnits) {
    if (!number || suffix != unit.suffix) continue;
    const double bytes = *number * unit.bytes;
    if (!(bytes >= 1 && bytes < 9e18)) break;
    return static_cast<uint64_t>(bytes);
  }
  return Status::InvalidArgument(Quoted(text) + " is no size such as 500MB, 5GB or 2GiB");
}

Result<double> ParsePercent(std::string_view text) {
  std::string_view rest = text;
  const std::optional<double> number = TakeNumber(&rest);
  if (number && rest == "%" && *number > 0 && *number <= 100) return *number / 100;
  return Status::InvalidArgument(Quoted(text) + " is no share such as 5% (above 0, at most 100)");
}

Result<std::pair<std::string, double>> ParseMetric(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return Status::InvalidArgument(Quoted(text) + " is not of the form METRIC=VALUE");
  }
  std::string_view rest = text.substr(equals + 1);
  const std::optional<double> value = TakeNumber(&rest);
  if (!value || !rest.empty()) {
    return Status::InvalidArgument(Quoted(text) + ": the value is no number");
  }
  return std::pair(std::string(text.substr(0, equals)), *value);
}

}  // namespace varve::cli
