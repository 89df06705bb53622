// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kBegin[] = R"sh(# Completion of varve in fish, written by `varve completion fish`.

function __varve_steps
    set -l words (commandline -opc)
    set -l store
    for i in (seq 2 (count $words))
        if contains -- $words[(math $i - 1)] -s --store
            set store -s (string replace -r '^~' $HOME -- $words[$i])
        end
    end
    varve $store __steps 2>/dev/null
end

)sh";

std::string Action(const Candidates& candidates) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return " -f";
    case Candidates::Kind::kWords:
      return " -f -a '" + Join(candidates.words, " ") + "'";
    case Candidates::Kind::kSteps:
      return " -f -a '(__varve_steps)'";
    case Candidates::Kind::kFiles:
      return " -F";
    case Candidates::Kind::kFolders:
      return " -f -a '(__fish_complete_directories)'";
  }
  return {};
}

std::string Complete(const std::string& condition) {
  return "complete -c varve" + (condition.empty() ? "" : " -n '" + condition + "'");
}

std::string OptionLine(const std::string& condition, const OptionManual& option,
                       const CommandManual& command) {
  std::string text = Complete(condition);
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    text += (is_long ? " -l " : " -s ") + name.substr(is_long ? 2 : 1);
  }
  if (!option.value.empty()) text += " -r" + Action(CandidatesOf(option, command));
  return text + " -d " + ShellQuoted(option.description) + "\n";
}

std::string VerbLines(const CommandManual& verb, const CommandManual& command) {
  const std::string condition = "__fish_seen_subcommand_from " + std::string(verb.Verb());
  std::string text;
  for (const OptionManual& option : verb.options) text += OptionLine(condition, option, command);
  for (const OptionManual& argument : verb.arguments) {
    text += Complete(condition) + Action(CandidatesOf(argument, command)) + "\n";
  }
  return text;
}

}  // namespace

std::string FishCompletion(const CommandManual& command) {
  std::string text = kBegin;
  text += "function __varve_needs_verb\n    not __fish_seen_subcommand_from " +
          Join(VerbNames(command), " ") + "\nend\n\ncomplete -c varve -f\n";
  for (const OptionManual& option : command.options) text += OptionLine("", option, command);
  for (const CommandManual& verb : command.verbs) {
    text += Complete("__varve_needs_verb") + " -a " + std::string(verb.Verb()) + " -d " +
            ShellQuoted(verb.description) + "\n";
  }
  for (const CommandManual& verb : command.verbs) text += VerbLines(verb, command);
  return text;
}

}  // namespace varve::internal::cli
