// SPDX-License-Identifier: Apache-2.0
#include "varve/global_names.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace varve {
namespace {

// Torch's names of wrappers, which are never names of modules.
constexpr std::string_view kWrappers[] = {"_orig_mod", "_fsdp_wrapped_module",
                                          "_checkpoint_wrapped_module"};
constexpr std::string_view kWrapperInFront = "module";  // elsewhere it may be a module's own
// The names of optimizer state, which stand in front of the parameter's name.
constexpr std::string_view kKinds[] = {"exp_avg",         "exp_avg_sq", "max_exp_avg_sq",
                                       "momentum_buffer", "momentum",   "master",
                                       "fp32_param",      "main_param"};
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

// Returns the number that `text` consists of.
std::optional<size_t> ParseNumber(const std::string& text) {
  size_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns the first component that is a number behind `prefix`.
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

template <typename Names>
bool IsOneOf(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Returns how many components at the front mark optimizer state, such as "exp_avg", or Megatron's
// "optimizer.state.exp_avg".
size_t NumOfKind(const std::vector<std::string>& components) {
  size_t n = 0;
  if (components[0] == "optimizer") n = components.size() > 1 && components[1] == "state" ? 2 : 1;
  return n + 1 < components.size() && IsOneOf(kKinds, components[n]) ? n + 1 : 0;
}

// Removes wrappers. At least one component is left.
void Unwrap(std::vector<std::string>* components) {
  const auto strip = [&](size_t from) {
    auto end = components->begin() + static_cast<std::ptrdiff_t>(from);
    while (components->end() - end > 1 && *end == kWrapperInFront) ++end;
    components->erase(components->begin() + static_cast<std::ptrdiff_t>(from), end);
  };
  const std::string last = components->back();
  std::erase_if(*components, [](const std::string& c) { return IsOneOf(kWrappers, c); });
  if (components->empty()) components->push_back(last);
  strip(0);
  if (const size_t n = NumOfKind(*components); n > 0) strip(n);
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
  std::vector<std::string> components = Components(name);
  Unwrap(&components);
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
