// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kBegin[] = R"sh(#compdef varve
# Completion of varve in zsh, written by `varve completion zsh`.

_varve_steps() {
  local -a steps
  # The store is named after the verb, or before it; quoted by the user, and then by _arguments.
  local folder=${(Q)${(Q)${opt_args[-s]:-${opt_args[--store]:-$store}}}}
  folder=${folder/#\~/$HOME}
  steps=(${(f)"$(varve ${folder:+-s} $folder __steps 2>/dev/null)"})
  compadd -a steps
}

_varve_verbs() {
  local -a verbs
  verbs=(
)sh";

constexpr char kMiddle[] = R"sh(  )
  _describe verb verbs
}

_varve() {
  local curcontext=$curcontext state state_descr line store
  typeset -A opt_args
  local -a options
  options=(
)sh";

constexpr char kArguments[] = R"sh(  )
  _arguments -C -A '-*' $options '1:verb:_varve_verbs' '*::argument:->arguments'
  [[ $state == arguments ]] || return
  store=${opt_args[-s]:-${opt_args[--store]}}
  case $line[1] in
)sh";

constexpr char kEnd[] = R"sh(  esac
}

_varve "$@"
)sh";

// Escapes by a backslash what _arguments and _describe would interpret.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Action(const Candidates& candidates) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return " ";
    case Candidates::Kind::kWords:
      return "(" + Join(candidates.words, " ") + ")";
    case Candidates::Kind::kSteps:
      return "_varve_steps";
    case Candidates::Kind::kFiles:
      return "_files";
    case Candidates::Kind::kFolders:
      return "_files -/";
  }
  return {};
}

// "(-o --output)'{-o,--output}'[The file]:OUT:_files".
std::string OptionSpec(const OptionManual& option, const CommandManual& command) {
  std::string rest = "[" + Escaped(option.description) + "]";
  if (!option.value.empty()) {
    rest += ":" + Escaped(option.value) + ":" + Action(CandidatesOf(option, command));
  }
  const std::string prefix = option.repeats ? "*" : "(" + Join(option.names, " ") + ")";
  if (option.names.size() == 1) return ShellQuoted(prefix + option.names[0] + rest);
  return ShellQuoted(prefix) + "{" + Join(option.names, ",") + "}" + ShellQuoted(rest);
}

std::string ArgumentSpecs(const CommandManual& verb, const CommandManual& command) {
  std::string text;
  int number = 0;
  for (const OptionManual& argument : verb.arguments) {
    const std::string where = argument.repeats ? "*" : std::to_string(++number);
    text += " \\\n        " + ShellQuoted(where + ":" + Escaped(argument.value) + ":" +
                                          Action(CandidatesOf(argument, command)));
    if (argument.repeats) break;  // nobody knows where the next one starts
  }
  return text;
}

std::string VerbCase(const CommandManual& verb, const CommandManual& command) {
  std::string text = "    " + std::string(verb.Verb()) + ")\n      _arguments $options";
  for (const OptionManual& option : verb.options) {
    text += " \\\n        " + OptionSpec(option, command);
  }
  return text + ArgumentSpecs(verb, command) + "\n      ;;\n";
}

}  // namespace

std::string ZshCompletion(const CommandManual& command) {
  std::string text = kBegin;
  for (const CommandManual& verb : command.verbs) {
    text += "    " + ShellQuoted(std::string(verb.Verb()) + ":" + Escaped(verb.description)) + "\n";
  }
  text += kMiddle;
  for (const OptionManual& option : command.options) {
    text += "    " + OptionSpec(option, command) + "\n";
  }
  text += kArguments;
  for (const CommandManual& verb : command.verbs) text += VerbCase(verb, command);
  return text + kEnd;
}

}  // namespace varve::internal::cli
