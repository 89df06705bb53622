// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_state.h"

#include <algorithm>
#include <optional>
#include <string>

#include "cli/formats/strict_json.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kFieldBefore = "vocab_size";
constexpr std::string_view kSpace = " \t\r\n";

// Returns where the number of "vocab_size" ends if the next key follows it at once.
std::optional<size_t> FindMissingComma(std::string_view text) {
  const std::string key = '"' + std::string(kFieldBefore) + '"';
  // Past the end, find_first_not_of finds nothing. `at` then stays npos.
  const auto skip = [text](size_t at, std::string_view characters) {
    return text.find_first_not_of(characters, at);
  };
  const size_t found = text.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const size_t colon = skip(found + key.size(), kSpace);
  if (colon == std::string_view::npos || text[colon] != ':') return std::nullopt;
  const size_t number = skip(colon + 1, kSpace);
  const size_t end = skip(number, "0123456789");
  const size_t next = skip(end, kSpace);
  if (next == std::string_view::npos || end == number || text[next] != '"') return std::nullopt;
  return end;
}

Result<nlohmann::json> ParseWithoutComma(std::string_view text) {
  const std::optional<size_t> at = FindMissingComma(text);
  if (!at) return Status::InvalidArgument("no comma is missing");
  std::string repaired(text);
  repaired.insert(*at, 1, ',');
  Result<nlohmann::json> parsed = ParseStrictJson(repaired);
  if (parsed.ok() && !parsed->contains(kFieldBefore)) {
    return Status::InvalidArgument("the comma is missing in another object");
  }
  return parsed;
}

}  // namespace

Result<nlohmann::json> ParseInfiniTrainState(std::string_view text) {
  Result<nlohmann::json> parsed = ParseStrictJson(text);
  if (!parsed.ok()) {
    Result<nlohmann::json> repaired = ParseWithoutComma(text);
    if (!repaired.ok()) return parsed.status();
    parsed = std::move(repaired);
  }
  if (!parsed->is_object()) return Status::InvalidArgument("at byte 0: it holds no JSON object");
  return parsed;
}

}  // namespace varve::internal::formats
