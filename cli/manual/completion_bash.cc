// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kBashBegin[] =
    R"sh(# Completion of varve in bash, written by `varve completion bash`.

_varve_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

_varve_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

# Asks the store: steps, runs, tags, or tensors --of STEP.
_varve_ask() {
  local path=${store//[\"\'\\]/} # as it was typed
  path=${path/#\~/$HOME}
  _varve_words "$("${COMP_WORDS[0]}" ${path:+-s "$path"} __words "$@" -- "$cur" 2>/dev/null)"
}

)sh";

constexpr char kBashEnd[] = R"sh(
_varve() {
  local cur= options= valued= verb= store= option= run= step= number=1 word i joins=0 before=
  local -a words=()
  # Bash also cuts words at @ and :, as in RUN@STEP. They are joined again.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if ((${#words[@]})) && [[ $joins == 1 || $word =~ ^[@:]+$ ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
    joins=0
    [[ $word =~ ^[@:]+$ ]] && joins=1
  done
  cur=${words[-1]}
  before=$cur # what bash takes as words of their own, and keeps
  [[ $word =~ ^[@:]+$ ]] || before=${cur%"$word"}
  unset 'words[-1]'
  _varve_options ''
  for word in "${words[@]}"; do
    if [[ $word == = ]]; then
      continue # --option=value are three words here
    elif [[ -n $option ]]; then
      [[ $option == -s || $option == --store ]] && store=$word
      [[ $option == --run ]] && run=$word
      option=
    elif [[ " $valued " == *" $word "* ]]; then
      option=$word
    elif [[ $word == -* ]]; then
      continue
    elif [[ -z $verb ]]; then
      verb=$word
      _varve_options "$verb"
    else
      ((++number == 2)) && step=$word
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
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
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

std::string BashAction(const Candidates& candidates, const CommandManual* verb) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return {};
    case Candidates::Kind::kWords:
      return "_varve_words '" + Join(candidates.words, " ") + "'";
    case Candidates::Kind::kOfStore:
      if (candidates.words[0] != "tensors") return "_varve_ask " + candidates.words[0];
      return verb != nullptr && StartsWithStep(*verb)
                 ? "_varve_ask tensors --of \"${step:-latest}\""
                 : "_varve_ask tensors --of \"${run:+$run@}latest\"";
    case Candidates::Kind::kFiles:
      return "_varve_paths -f";
    case Candidates::Kind::kFolders:
      return "_varve_paths -d";
  }
  return {};
}

// `verb` is null for the options of all verbs.
std::string ValueCase(const std::string& pattern, const OptionManual& option,
                      const CommandManual* verb, const CommandManual& command) {
  const std::string action = BashAction(CandidatesOf(option, command), verb);
  return action.empty() ? "" : "    " + pattern + ") " + action + " ;;\n";
}

std::string OptionValueCases(const CommandManual* verb, const std::vector<OptionManual>& options,
                             const CommandManual& command) {
  const std::string prefix = (verb == nullptr ? "*" : std::string(verb->Verb())) + ":";
  std::string text;
  for (const OptionManual& option : options) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(prefix + name);
    text += ValueCase(Join(patterns, " | "), option, verb, command);
  }
  return text;
}

std::string ArgumentCases(const CommandManual& verb, const CommandManual& command) {
  std::string text;
  int number = 0;
  for (const OptionManual& argument : verb.arguments) {
    const std::string position = argument.repeats ? "[0-9]*" : std::to_string(++number);
    text += ValueCase(std::string(verb.Verb()) + ":" + position, argument, &verb, command);
    if (argument.repeats) break;  // nobody knows where the next one starts
  }
  return text;
}

// Completes the value of VERB:OPTION, or the argument VERB:NUMBER.
std::string ValueFunction(const CommandManual& command) {
  std::string text = "_varve_value() {\n  case $1 in\n";
  text += "    :1) _varve_words '" + Join(VerbNames(command), " ") + "' ;;\n";
  text += OptionValueCases(nullptr, command.options, command);
  for (const CommandManual& verb : command.verbs) {
    text += OptionValueCases(&verb, verb.options, command);
    text += ArgumentCases(verb, command);
  }
  return text + "  esac\n}\n";
}

}  // namespace

std::string BashCompletion(const CommandManual& command) {
  return kBashBegin + OptionsFunction(command) + ValueFunction(command) + kBashEnd;
}

}  // namespace varve::internal::cli
