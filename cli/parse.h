// SPDX-License-Identifier: Apache-2.0
//
// Small values on the command line. Every function returns kInvalidArgument for a wrong text, and
// says what was expected. Functions are stateless.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "varve/options.h"
#include "varve/result.h"
#include "varve/retention.h"

namespace varve::internal::cli {

// A decimal number of at most `max`. `option` names it in the message.
Result<uint64_t> ParseNumber(std::string_view option, std::string_view text,
                             uint64_t max = UINT64_MAX);
// "5GB" (10^9), "5GiB" (2^30), "500M" or "1024". At least 1.
Result<uint64_t> ParseByteSize(std::string_view text);
// "5%" or "12.5%": a share in (0, 1].
Result<double> ParsePercent(std::string_view text);
// "loss=2.5", also with inf and nan.
Result<std::pair<std::string, double>> ParseMetric(std::string_view text);
// "90s", "45m", "12h", "7d", "4w", "1y" (365 days), or several together: "1d12h". It is longer than
// nothing and at most 100 years.
Result<std::chrono::seconds> ParseDuration(std::string_view text);
// "loss:3", "accuracy:max:1", "loss:min:2".
Result<KeepBest> ParseKeepBest(std::string_view text);

inline constexpr char kOnExistingHelp[] =
    "If the step exists: an error; replace it; or fork, which moves it and later ones to a new run";
// "error", "replace" or "fork". nullopt: another word. The Python package has it, too.
inline std::optional<OnExisting> FindOnExisting(std::string_view name) {
  if (name == "error") return OnExisting::kError;
  if (name == "replace") return OnExisting::kReplace;
  if (name == "fork") return OnExisting::kFork;
  return std::nullopt;
}
// The same for --on-existing.
Result<OnExisting> ParseOnExisting(std::string_view text);

}  // namespace varve::internal::cli
