// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"

#include <map>

namespace varve::internal::cli {

std::vector<std::string> VerbNames(const CommandManual& command) {
  std::vector<std::string> names;
  for (const CommandManual& verb : command.verbs) names.emplace_back(verb.Verb());
  return names;
}

std::vector<std::string> OptionNames(const CommandManual& command, bool with_flags) {
  std::vector<std::string> names;
  for (const OptionManual& option : command.options) {
    if (!with_flags && option.value.empty()) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

Candidates CandidatesOf(const OptionManual& option, const CommandManual& command) {
  using Kind = Candidates::Kind;
  if (!option.choices.empty()) return {Kind::kWords, option.choices};
  static const std::map<std::string_view, Candidates> kByValue = {
      {"STEP", {Kind::kOfStore, {"steps"}}},
      {"STEP2", {Kind::kOfStore, {"steps"}}},
      {"RUN", {Kind::kOfStore, {"runs"}}},
      {"TAG", {Kind::kOfStore, {"tags"}}},
      {"NAME", {Kind::kOfStore, {"tensors"}}},
      {"GLOB", {Kind::kOfStore, {"tensors"}}},
      {"FILE", {Kind::kFiles, {}}},
      {"OUT", {Kind::kFiles, {}}},
      {"PATH", {Kind::kFolders, {}}},
      {"DEST", {Kind::kFolders, {}}}};
  if (const auto found = kByValue.find(option.value); found != kByValue.end()) {
    return found->second;
  }
  if (option.value != "VERB") return {};
  Candidates candidates{Kind::kWords, VerbNames(command)};
  for (const HelpTopic& topic : HelpTopics()) candidates.words.emplace_back(topic.name);
  return candidates;
}

bool StartsWithStep(const CommandManual& verb) {
  return !verb.arguments.empty() && verb.arguments[0].value == "STEP";
}

std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) c == '\'' ? quoted += "'\\''" : quoted += c;
  return quoted + "'";
}

}  // namespace varve::internal::cli
