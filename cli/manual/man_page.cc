// SPDX-License-Identifier: Apache-2.0
//
// The manual page, in the macros of man(7).
#include <algorithm>
#include <cctype>
#include <sstream>

#include "cli/manual/manual.h"
#include "varve/version.h"

namespace varve::internal::cli {
namespace {

// Escapes what troff would change. It keeps hyphens and quotes as characters that a shell
// understands.
std::string_view Escape(char c) {
  switch (c) {
    case '\\':
      return "\\e";
    case '-':
      return "\\-";
    case '\'':
      return "\\(aq";
    case '`':
      return "\\(ga";
    case '^':
      return "\\(ha";
    case '~':
      return "\\(ti";
    default:
      return {};
  }
}

std::string Plain(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    // A dot at the start of a line would make the line a troff request.
    if (c == '.' && (plain.empty() || plain.back() == '\n')) plain += "\\&";
    const std::string_view escaped = Escape(c);
    escaped.empty() ? plain += c : plain += escaped;
  }
  return plain;
}

std::string Bold(std::string_view text) { return "\\fB" + Plain(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Plain(text) + "\\fR"; }

// An argument of a macro.
std::string RoffQuoted(std::string_view text) { return "\"" + Plain(text) + "\""; }

// Paragraphs are filled. Lines that start with a space keep their form.
std::string Paragraphs(std::string_view notes) {
  std::istringstream lines{std::string(notes)};
  std::string text;
  bool verbatim = false;
  bool begins_paragraph = true;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      begins_paragraph = true;
      continue;
    }
    if (verbatim != (line[0] == ' ')) text += verbatim ? ".fi\n" : ".nf\n";
    verbatim = line[0] == ' ';
    if (begins_paragraph) text += ".PP\n";
    begins_paragraph = false;
    text += Plain(line) + "\n";
  }
  return verbatim ? text + ".fi\n" : text;
}

std::string OptionEntry(const OptionManual& option) {
  std::string head;
  for (const std::string& name : option.names) head += (head.empty() ? "" : ", ") + Bold(name);
  if (!option.value.empty()) head += (head.empty() ? "" : " ") + Italic(option.Placeholder());
  return ".TP\n" + head + "\n" + Plain(option.Explanation()) + "\n";
}

std::string OptionEntries(const std::vector<OptionManual>& options) {
  std::string text;
  for (const OptionManual& option : options) text += OptionEntry(option);
  return text;
}

std::string Section(std::string_view title, const std::string& text) {
  std::string upper(title);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return ".SH " + RoffQuoted(upper) + "\n" + text;
}

std::string VerbSection(const CommandManual& verb) {
  return ".SS " + RoffQuoted(Synopsis(verb)) + "\n" + Plain(verb.description) + ".\n" +
         OptionEntries(verb.arguments) + OptionEntries(verb.options) + Paragraphs(verb.notes);
}

}  // namespace

std::string ManPage(const CommandManual& command) {
  std::string text = ".TH VARVE 1 \"\" \"varve " VARVE_VERSION_STRING "\" \"User commands\"\n";
  text += ".ad l\n.nh\n";  // ragged and unbroken: options and keys stay whole
  text += Section("Name", Plain(command.name) + " \\- " + Plain(command.description) + "\n");
  text += Section("Synopsis", Plain(Synopsis(command)) + "\n");
  text += Section("Options", OptionEntries(command.options));
  std::string verbs;
  for (const CommandManual& verb : command.verbs) verbs += VerbSection(verb);
  text += Section("Verbs", verbs);
  for (const HelpTopic& topic : HelpTopics()) text += Section(topic.title, Paragraphs(topic.text));
  return text;
}

}  // namespace varve::internal::cli
