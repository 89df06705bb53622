// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kFishBegin[] =
    R"sh(# Completion of varve in fish, written by `varve completion fish`.

# The words of the line that are neither options nor their values: the verb and its arguments.
function __varve_arguments
    set -l skip no
    for word in (commandline -opc)[2..-1]
        if test $skip = yes
            set skip no
        else if contains -- $word $__varve_valued
            set skip yes
        else if not string match -q -- '-*' $word
            echo $word
        end
    end
end

# The value of an option that has these names.
function __varve_value
    set -l words (commandline -opc)
    for i in (seq 2 (count $words))
        contains -- $words[(math $i - 1)] $argv; and echo $words[$i]
    end
end

function __varve_at
    test (count (__varve_arguments)) -eq $argv[1]
end

# Asks the store: steps, runs, tags, tensors of the step on the line, or newest tensors.
function __varve_ask
    set -l store (__varve_value -s --store | string replace -r '^~' $HOME)[-1]
    set -l of
    switch $argv[1]
        case tensors
            set of --of (__varve_arguments)[2]
        case newest
            set argv tensors
            set of --of (__varve_value --run)@latest
            test (count $of) -eq 2; or set of --of latest
    end
    set -l from
    test -n "$store"; and set from -s $store
    varve $from __words $argv[1] $of -- (commandline -ct) 2>/dev/null
end

)sh";

std::string FishAction(const Candidates& candidates, const CommandManual* verb) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return " -f";
    case Candidates::Kind::kWords:
      return " -f -a '" + Join(candidates.words, " ") + "'";
    case Candidates::Kind::kOfStore: {
      const bool is_newest =
          candidates.words[0] == "tensors" && (verb == nullptr || !StartsWithStep(*verb));
      return " -f -a '(__varve_ask " + (is_newest ? "newest" : candidates.words[0]) + ")'";
    }
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

// `verb` is null for the options of all verbs.
std::string OptionLine(const std::string& condition, const OptionManual& option,
                       const CommandManual* verb, const CommandManual& command) {
  std::string text = Complete(condition);
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    text += (is_long ? " -l " : " -s ") + name.substr(is_long ? 2 : 1);
  }
  if (!option.value.empty()) text += " -r" + FishAction(CandidatesOf(option, command), verb);
  return text + " -d " + ShellQuoted(option.description) + "\n";
}

std::string VerbLines(const CommandManual& verb, const CommandManual& command) {
  const std::string condition = "__fish_seen_subcommand_from " + std::string(verb.Verb());
  std::string text;
  for (const OptionManual& option : verb.options) {
    text += OptionLine(condition, option, &verb, command);
  }
  int number = 0;
  for (const OptionManual& argument : verb.arguments) {
    const std::string place =
        argument.repeats ? "" : "; and __varve_at " + std::to_string(++number);
    text += Complete(condition + place) + FishAction(CandidatesOf(argument, command), &verb) + "\n";
    if (argument.repeats) break;  // nobody knows where the next one starts
  }
  return text;
}

// The names of all options that take a value.
std::string ValuedNames(const CommandManual& command) {
  std::vector<std::string> names = OptionNames(command, false);
  for (const CommandManual& verb : command.verbs) {
    for (const std::string& name : OptionNames(verb, false)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return Join(names, " ");
}

}  // namespace

std::string FishCompletion(const CommandManual& command) {
  std::string text = kFishBegin;
  text += "set -g __varve_valued " + ValuedNames(command) + "\n\n";
  text += "function __varve_needs_verb\n    not __fish_seen_subcommand_from " +
          Join(VerbNames(command), " ") + "\nend\n\ncomplete -c varve -f\n";
  for (const OptionManual& option : command.options) {
    text += OptionLine("", option, nullptr, command);
  }
  for (const CommandManual& verb : command.verbs) {
    text += Complete("__varve_needs_verb") + " -a " + std::string(verb.Verb()) + " -d " +
            ShellQuoted(verb.description) + "\n";
  }
  for (const CommandManual& verb : command.verbs) text += VerbLines(verb, command);
  return text;
}

}  // namespace varve::internal::cli
