// SPDX-License-Identifier: Apache-2.0
#include "varve/global_names.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace varve {
namespace {

constexpr std::string_view kWrapper = "module.";
constexpr std::string_view kAlias = "__pp";

std::vector<std::string> Components(std::string_view name) {
  std::vector<std::string> components;
  for (size_t begin = 0;;) {
    const size_t end = name.find('.', begin);
    components.emplace_back(name.substr(begin, end - begin));
    if (end == std::string_view::npos) return components;
    begin = end + 1;
  }
}

std::string Join(const std::vector<std::string>& components) {
  std::string name = components.front();
  for (size_t i = 1; i < components.size(); ++i) name += "." + components[i];
  return name;
}

// The number that all of `text` is.
std::optional<size_t> ParseNumber(const std::string& text) {
  size_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// The first component that is a number behind `prefix`.
std::optional<size_t> FindNumber(const std::vector<std::string>& components,
                                 const std::vector<std::string>& prefix) {
  auto from = components.begin();
  for (;;) {
    const auto found = std::search(from, components.end(), prefix.begin(), prefix.end());
    if (components.end() - found <= static_cast<std::ptrdiff_t>(prefix.size())) return {};
    const auto number = found + static_cast<std::ptrdiff_t>(prefix.size());
    if (ParseNumber(*number).has_value()) return number - components.begin();
    from = found + 1;
  }
}

}  // namespace

Status GlobalNames::AddNumbers(std::string_view prefix, std::vector<int64_t> numbers) {
  if (prefix.empty()) return Status::InvalidArgument("numbers for an empty prefix");
  Rule rule{Components(prefix), std::move(numbers)};
  const bool known = std::any_of(rules_.begin(), rules_.end(),
                                 [&](const Rule& other) { return other.prefix == rule.prefix; });
  if (known) {
    return Status::InvalidArgument("\"" + std::string(prefix) + "\" has numbers already");
  }
  rules_.push_back(std::move(rule));
  return Status::Ok();
}

Result<std::optional<std::string>> GlobalNames::Apply(std::string_view name) const {
  std::string_view bare = name;
  while (bare.starts_with(kWrapper)) bare.remove_prefix(kWrapper.size());
  std::vector<std::string> components = Components(bare);
  const bool alias = std::any_of(components.begin(), components.end(),
                                 [](const std::string& c) { return c.starts_with(kAlias); });
  if (alias) return std::optional<std::string>();
  for (const Rule& rule : rules_) {
    const std::optional<size_t> place = FindNumber(components, rule.prefix);
    if (!place.has_value()) continue;
    const auto number = ParseNumber(components[*place]);
    if (*number >= rule.numbers.size()) {
      return Status::InvalidArgument("\"" + std::string(name) + "\": number " +
                                     std::to_string(*number) + " of " + Join(rule.prefix) +
                                     ", expected one below " + std::to_string(rule.numbers.size()));
    }
    components[*place] = std::to_string(rule.numbers[*number]);
  }
  return std::optional<std::string>(Join(components));
}

}  // namespace varve
