// SPDX-License-Identifier: Apache-2.0
//
// The help for a terminal, and docs/cli.md, which shows it.
#include <sstream>

#include "cli/manual/manual.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kColumn = 24;  // where explanations start

// Breaks the text between words, so that it fits right of kColumn.
std::string Fill(const std::string& text) {
  std::istringstream words(text);
  std::string lines;
  size_t column = kColumn;
  for (std::string word; words >> word;) {
    if (!lines.empty() && column + 1 + word.size() > kWidth) {
      lines += "\n" + std::string(kColumn, ' ');
      column = kColumn;
    } else if (!lines.empty()) {
      lines += " ";
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines + "\n";
}

// "  NAME                  What it is."
std::string Entry(const std::string& name, const std::string& text) {
  const std::string left = "  " + name;
  const bool fits = left.size() + 2 <= kColumn;
  return left +
         (fits ? std::string(kColumn - left.size(), ' ') : "\n" + std::string(kColumn, ' ')) +
         Fill(text);
}

std::string OptionEntry(const OptionManual& option) {
  std::string name = Join(option.names, ", ");
  if (!option.value.empty()) name += (name.empty() ? "" : " ") + option.Placeholder();
  return Entry(name, option.Explanation());
}

std::string OptionEntries(const std::string& title, const std::vector<OptionManual>& options) {
  if (options.empty()) return {};
  std::string text = "\n" + title + ":\n";
  for (const OptionManual& option : options) text += OptionEntry(option);
  return text;
}

std::string VerbEntries(const std::vector<CommandManual>& verbs) {
  if (verbs.empty()) return {};
  std::string text = "\nVerbs:\n";
  for (const CommandManual& verb : verbs) text += Entry(std::string(verb.Verb()), verb.description);
  return text;
}

std::string TopicEntries() {
  std::string text = "\nTopics:\n";
  for (const HelpTopic& topic : HelpTopics()) {
    text += Entry("help " + std::string(topic.name), std::string(topic.title));
  }
  return text;
}

std::string Block(const std::string& text) { return "```text\n" + text + "```\n\n"; }

}  // namespace

std::string HelpText(const CommandManual& command) {
  std::string text = command.description + "\n\nUsage: " + Synopsis(command) + "\n";
  text += OptionEntries("Arguments", command.arguments);
  text += VerbEntries(command.verbs);
  text += OptionEntries("Options", command.options);
  if (!command.verbs.empty()) text += TopicEntries();
  return command.notes.empty() ? text : text + "\n" + command.notes + "\n";
}

std::string MarkdownText(const CommandManual& command) {
  std::string text =
      "<!-- Written by `varve help --markdown`; tests/cli/manual/manual_test.py compares. -->\n";
  text += "# The `" + command.name + "` command\n\n" + Block(HelpText(command));
  for (const HelpTopic& topic : HelpTopics()) {
    text += "## " + std::string(topic.title) + "\n\n" + Block(std::string(topic.text) + "\n");
  }
  text += "## Verbs\n\n";
  for (const CommandManual& verb : command.verbs) {
    text += "### " + std::string(verb.Verb()) + "\n\n" + Block(HelpText(verb));
  }
  text.pop_back();  // one line end is enough
  return text;
}

}  // namespace varve::internal::cli
