// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kBegin[] = R"sh(# Completion of varve in bash, written by `varve completion bash`.

_varve_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

_varve_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

_varve_steps() {
  local path=${store//[\"\'\\]/} # as it was typed
  path=${path/#\~/$HOME}
  _varve_words "$("${COMP_WORDS[0]}" ${path:+-s "$path"} __steps 2>/dev/null)"
}

)sh";

constexpr char kEnd[] = R"sh(
_varve() {
  local cur=${COMP_WORDS[COMP_CWORD]} options= valued= verb= store= option= number=1 word i
  _varve_options ''
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $word == = ]]; then
      continue # --option=value are three words here
    elif [[ -n $option ]]; then
      [[ $option == -s || $option == --store ]] && store=$word
      option=
    elif [[ " $valued " == *" $word "* ]]; then
      option=$word
    elif [[ $word == -* ]]; then
      continue
    elif [[ -z $verb ]]; then
      verb=$word
      _varve_options "$verb"
    else
      ((++number))
    fi
  done
  [[ $cur == = ]] && cur=
  COMPREPLY=()
  if [[ -n $option ]]; then
    _varve_value "$verb:$option"
  elif [[ $cur == -* ]]; then
    _varve_words "$options"
  else
    _varve_value "$verb:$number"
  fi
}

complete -F _varve varve
)sh";

std::string OptionsCase(const std::string& verb, const CommandManual& command) {
  return "    " + verb + ") options+=' " + Join(OptionNames(command, true), " ") + "' valued+=' " +
         Join(OptionNames(command, false), " ") + "' ;;\n";
}

// Adds the verb's options to `options` and `valued`. The empty verb stands for all verbs.
std::string OptionsFunction(const CommandManual& command) {
  std::string text = "_varve_options() {\n  case $1 in\n" + OptionsCase("''", command);
  for (const CommandManual& verb : command.verbs) {
    if (!verb.options.empty()) text += OptionsCase(std::string(verb.Verb()), verb);
  }
  return text + "  esac\n}\n\n";
}

std::string Action(const Candidates& candidates) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return {};
    case Candidates::Kind::kWords:
      return "_varve_words '" + Join(candidates.words, " ") + "'";
    case Candidates::Kind::kSteps:
      return "_varve_steps";
    case Candidates::Kind::kFiles:
      return "_varve_paths -f";
    case Candidates::Kind::kFolders:
      return "_varve_paths -d";
  }
  return {};
}

std::string ValueCase(const std::string& pattern, const OptionManual& option,
                      const CommandManual& command) {
  const std::string action = Action(CandidatesOf(option, command));
  return action.empty() ? "" : "    " + pattern + ") " + action + " ;;\n";
}

std::string OptionValueCases(const std::string& verb, const std::vector<OptionManual>& options,
                             const CommandManual& command) {
  std::string text;
  for (const OptionManual& option : options) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(verb + ":" + name);
    text += ValueCase(Join(patterns, " | "), option, command);
  }
  return text;
}

std::string ArgumentCases(const CommandManual& verb, const CommandManual& command) {
  std::string text;
  int number = 0;
  for (const OptionManual& argument : verb.arguments) {
    const std::string position = argument.repeats ? "[0-9]*" : std::to_string(++number);
    text += ValueCase(std::string(verb.Verb()) + ":" + position, argument, command);
    if (argument.repeats) break;  // nobody knows where the next one starts
  }
  return text;
}

// Completes the value of VERB:OPTION, or the argument VERB:NUMBER.
std::string ValueFunction(const CommandManual& command) {
  std::string text = "_varve_value() {\n  case $1 in\n";
  text += "    :1) _varve_words '" + Join(VerbNames(command), " ") + "' ;;\n";
  text += OptionValueCases("*", command.options, command);
  for (const CommandManual& verb : command.verbs) {
    text += OptionValueCases(std::string(verb.Verb()), verb.options, command);
    text += ArgumentCases(verb, command);
  }
  return text + "  esac\n}\n";
}

}  // namespace

std::string BashCompletion(const CommandManual& command) {
  return kBegin + OptionsFunction(command) + ValueFunction(command) + kEnd;
}

}  // namespace varve::internal::cli
