// SPDX-License-Identifier: Apache-2.0
//
// What the command knows about itself, read from its own parser as plain values: the one source of
// the help texts, the manual page, docs/cli.md and the shell completions. A new verb appears in all
// of them by itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace varve::cli {

struct OptionManual {
  std::vector<std::string> names;  // "-o" before "--output"; of an argument none
  std::string value;               // "OUT"; of a flag empty
  std::string description;
  std::vector<std::string> choices;  // empty = any value
  std::string default_value;
  std::string environment;  // the variable that it is read from otherwise
  bool required = false;
  bool repeats = false;

  // "OUT", or the choices: "error|replace".
  std::string Placeholder() const;
  // The description, and what holds when the option is not given.
  std::string Explanation() const;
};

// The whole command, or one verb of it.
struct CommandManual {
  std::string name;  // "varve import"
  std::string description;
  std::vector<OptionManual> arguments;  // by position
  std::vector<OptionManual> options;
  // Paragraphs with an empty line between them; a line that begins with a space stays as it is.
  std::string notes;
  std::vector<CommandManual> verbs;

  std::string_view Verb() const;  // "import"
};

// What concerns more than one verb. A plain value; the text has the form of notes.
struct HelpTopic {
  std::string_view name;
  std::string_view title;
  std::string_view text;
};

// Hidden verbs and options are left out, and --help of a verb, because help VERB says the same.
CommandManual DescribeCommand(const CLI::App& app);

std::span<const HelpTopic> HelpTopics();

// The word that `typed` is a slip of: the nearest one, when two changes of a letter, or of two that
// have changed places, are enough and the half of it is right; empty without such. Of equal ones
// the first.
std::string MostSimilar(std::string_view typed, std::span<const std::string> words);

// "varve import [OPTION...] FILE... --step N".
std::string Synopsis(const CommandManual& command);

// The help for a terminal of 80 columns.
std::string HelpText(const CommandManual& command);
// docs/cli.md: the help texts, one after the other.
std::string MarkdownText(const CommandManual& command);
// The manual page, for man(1).
std::string ManPage(const CommandManual& command);

}  // namespace varve::cli
