// SPDX-License-Identifier: Apache-2.0
//
// What the command knows about itself, as plain values. It is read from the command's own parser,
// and is the one source of the help texts, the manual page, docs/cli.md and the shell completions.
// So a new verb appears in all of them by itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace varve::internal::cli {

struct OptionManual {
  std::vector<std::string> names;  // "-o" before "--output". Empty for an argument
  std::string value;               // "OUT". Empty for a flag
  std::string description;
  std::vector<std::string> choices;  // empty = any value
  std::string default_value;
  std::string environment;  // the variable that gives the value if the option does not
  bool required = false;
  bool repeats = false;

  // Returns "OUT", or the choices: "error|replace".
  std::string Placeholder() const;
  // Returns the description, and the value that holds when the option is not given.
  std::string Explanation() const;
};

// The whole command, or one verb of it.
struct CommandManual {
  std::string name;  // "varve import"
  std::string description;
  std::vector<OptionManual> arguments;  // by position
  std::vector<OptionManual> options;
  // Paragraphs with an empty line between them. A line that starts with a space stays as it is.
  std::string notes;
  std::vector<CommandManual> verbs;

  std::string_view Verb() const;  // "import"
};

// A text about more than one verb. A plain value. The text has the form of notes.
struct HelpTopic {
  std::string_view name;
  std::string_view title;
  std::string_view text;
};

// Leaves out hidden verbs and options. It also leaves out --help of a verb, because help VERB says
// the same.
CommandManual DescribeCommand(const CLI::App& app);

std::span<const HelpTopic> HelpTopics();

// Returns the word that the user may have meant by `typed`: the nearest one that differs by at most
// two changes and has half of its letters right. A change adds, drops or replaces a letter, or
// swaps two neighbours. If words are equally near, it returns the first. It returns an empty text
// when there is none.
std::string MostSimilar(std::string_view typed, std::span<const std::string> words);

// Returns "varve import [OPTION...] FILE... --step N".
std::string Synopsis(const CommandManual& command);

// Returns the help for a terminal of 80 columns.
std::string HelpText(const CommandManual& command);
// Returns docs/cli.md: the help texts, one after the other.
std::string MarkdownText(const CommandManual& command);
// Returns the manual page, for man(1).
std::string ManPage(const CommandManual& command);

}  // namespace varve::internal::cli
