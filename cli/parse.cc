// SPDX-License-Identifier: Apache-2.0
#include "cli/parse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace varve::internal::cli {
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

struct TimeUnit {
  char letter;
  int64_t seconds;
};
constexpr int64_t kDay = int64_t{24} * 3600;
constexpr std::array kTimeUnits = {TimeUnit{'s', 1},        TimeUnit{'m', 60},
                                   TimeUnit{'h', 3600},     TimeUnit{'d', kDay},
                                   TimeUnit{'w', 7 * kDay}, TimeUnit{'y', 365 * kDay}};
constexpr int64_t kMaxSeconds = 100 * (365 * kDay);

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

// Takes a decimal number from the front. `text` keeps what follows it.
std::optional<double> TakeNumber(std::string_view* text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

// Takes the seconds of a leading "12h". `text` keeps what follows it. The result is at most
// kMaxSeconds, so that sums do not overflow.
std::optional<int64_t> TakeTime(std::string_view* text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  if (error != std::errc() || number < 0 || text->empty()) return std::nullopt;
  for (const TimeUnit& unit : kTimeUnits) {
    if (text->front() != unit.letter || number > kMaxSeconds / unit.seconds) continue;
    text->remove_prefix(1);
    return number * unit.seconds;
  }
  return std::nullopt;
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

Result<std::chrono::seconds> ParseDuration(std::string_view text) {
  int64_t sum = 0;
  std::optional<int64_t> part = 0;
  for (std::string_view rest = text; part && !rest.empty() && sum <= kMaxSeconds;) {
    part = TakeTime(&rest);
    sum += part.value_or(0);
  }
  if (part && sum > 0 && sum <= kMaxSeconds) return std::chrono::seconds(sum);
  return Status::InvalidArgument(
      Quoted(text) + " is no time such as 90s, 45m, 12h, 7d, 4w, 1y or 1d12h (at most 100y)");
}

Result<KeepBest> ParseKeepBest(std::string_view text) {
  const auto bad = [text](std::string_view problem) {
    return Status::InvalidArgument(
        Quoted(text) + " is not of the form METRIC[:max|:min]:N: " + std::string(problem));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("how many?");
  KeepBest best;
  VARVE_ASSIGN_OR_RETURN(best.count, ParseNumber(Quoted(text), text.substr(colon + 1)));
  if (best.count == 0) return bad("0 keeps nothing");
  std::string_view metric = text.substr(0, colon);
  if (metric.ends_with(":max") || metric.ends_with(":min")) {
    best.highest = metric.ends_with(":max");
    metric.remove_suffix(4);
  }
  if (metric.empty()) return bad("the metric has no name");
  best.metric = metric;
  return best;
}

Result<OnExisting> ParseOnExisting(std::string_view text) {
  if (const auto found = FindOnExisting(text)) return *found;
  return Status::InvalidArgument("--on-existing: " + Quoted(text) +
                                 " is unknown, expected error, replace or fork");
}

}  // namespace varve::internal::cli
