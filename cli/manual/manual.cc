// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "cli/print.h"

namespace varve::internal::cli {
namespace {

std::vector<std::string> Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// CLI11 returns the type and the choices of CLI::IsMember as one text: "RULE:{error,replace}".
void SetValue(const CLI::Option& option, OptionManual* manual) {
  const std::string type = option.get_type_name();
  const size_t rule = type.find(":{");
  manual->value = option.get_positional() ? option.get_name(true, false) : type.substr(0, rule);
  if (rule == std::string::npos) return;
  manual->choices = Split(type.substr(rule + 2, type.rfind('}') - rule - 2), ',');
}

OptionManual DescribeOption(const CLI::Option& option) {
  OptionManual manual{
      .description = option.get_description(),
      .default_value = option.get_default_str(),
      .environment = option.get_envname(),
      .required = option.get_required(),
      .repeats = option.get_expected_max() >= CLI::detail::expected_max_vector_size};
  if (!option.get_positional()) manual.names = Names(option);
  if (option.get_items_expected_max() > 0) SetValue(option, &manual);
  return manual;
}

bool IsShown(const CLI::App& app, const CLI::Option& option) {
  if (option.get_group().empty()) return false;
  return app.get_parent() == nullptr || &option != app.get_help_ptr();
}

// Counts letters to insert, remove, replace or swap with their neighbour.
size_t NumChanges(std::string_view a, std::string_view b) {
  if (a.size() > 64) return a.size();  // no slip of a verb
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t k = 0; k <= b.size(); ++k) {
      if (i == 0 || k == 0) {
        table[i][k] = i + k;
        continue;
      }
      const size_t differs = a[i - 1] == b[k - 1] ? 0 : 1;
      size_t least =
          std::min({table[i - 1][k] + 1, table[i][k - 1] + 1, table[i - 1][k - 1] + differs});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1]) {
        least = std::min(least, table[i - 2][k - 2] + 1);
      }
      table[i][k] = least;
    }
  }
  return table[a.size()][b.size()];
}

}  // namespace

std::string OptionManual::Placeholder() const {
  return choices.empty() ? value : Join(choices, "|");
}

std::string OptionManual::Explanation() const {
  std::string text = description;
  if (!default_value.empty()) text += " (default " + default_value + ")";
  if (!environment.empty()) text += " (default $" + environment + ")";
  return text;
}

std::string_view CommandManual::Verb() const {
  const size_t space = name.rfind(' ');
  return std::string_view(name).substr(space == std::string::npos ? 0 : space + 1);
}

CommandManual DescribeCommand(const CLI::App& app) {
  CommandManual manual{.description = app.get_description(), .notes = app.get_footer()};
  manual.name = app.get_parent() == nullptr ? app.get_name()
                                            : app.get_parent()->get_name() + " " + app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (!IsShown(app, *option)) continue;
    auto& group = option->get_positional() ? manual.arguments : manual.options;
    group.push_back(DescribeOption(*option));
  }
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (!verb->get_group().empty()) manual.verbs.push_back(DescribeCommand(*verb));
  }
  return manual;
}

std::string MostSimilar(std::string_view typed, std::span<const std::string> words) {
  std::string best;
  size_t least = 3;
  for (const std::string& word : words) {
    const size_t changes = NumChanges(typed, word);
    if (changes >= least || 2 * changes > word.size()) continue;
    least = changes;
    best = word;
  }
  return best;
}

std::string Synopsis(const CommandManual& command) {
  std::string text = command.name;
  if (!command.options.empty()) text += " [OPTION...]";
  for (const OptionManual& argument : command.arguments) {
    const std::string word = argument.Placeholder() + (argument.repeats ? "..." : "");
    text += argument.required ? " " + word : " [" + word + "]";
  }
  for (const OptionManual& option : command.options) {
    if (option.required) text += " " + option.names[0] + " " + option.Placeholder();
  }
  return command.verbs.empty() ? text : text + " VERB ...";
}

}  // namespace varve::internal::cli
