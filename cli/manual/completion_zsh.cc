// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/completion.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr char kZshBegin[] = R"sh(#compdef varve
# Completion of varve in zsh, written by `varve completion zsh`.

# Asks the store: steps, runs, tags, or tensors --of STEP.
_varve_ask() {
  local -a found
  # The store is named after the verb, or before it; quoted by the user, and then by _arguments.
  local folder=${(Q)${(Q)${opt_args[-s]:-${opt_args[--store]:-$store}}}}
  folder=${folder/#\~/$HOME}
  found=(${(f)"$(varve ${folder:+-s} $folder __words $@ -- "$PREFIX" 2>/dev/null)"})
  compadd -a found
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

constexpr char kZshEnd[] = R"sh(  esac
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

// `verb` is null for the options of all verbs.
std::string ZshAction(const Candidates& candidates, const CommandManual* verb) {
  switch (candidates.kind) {
    case Candidates::Kind::kNothing:
      return " ";
    case Candidates::Kind::kWords:
      return "(" + Join(candidates.words, " ") + ")";
    case Candidates::Kind::kOfStore:  // the space keeps _arguments from adding words
      if (candidates.words[0] != "tensors") return " _varve_ask " + candidates.words[0];
      return verb != nullptr && StartsWithStep(*verb)
                 ? " _varve_ask tensors --of \"${line[1]:-latest}\""
                 : " _varve_ask tensors --of \"${opt_args[--run]:+${opt_args[--run]}@}latest\"";
    case Candidates::Kind::kFiles:
      return "_files";
    case Candidates::Kind::kFolders:
      return "_files -/";
  }
  return {};
}

// "(-o --output)'{-o,--output}'[The file]:OUT:_files".
std::string OptionSpec(const OptionManual& option, const CommandManual* verb,
                       const CommandManual& command) {
  std::string rest = "[" + Escaped(option.description) + "]";
  if (!option.value.empty()) {
    rest += ":" + Escaped(option.value) + ":" + ZshAction(CandidatesOf(option, command), verb);
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
                                          ZshAction(CandidatesOf(argument, command), &verb));
    if (argument.repeats) break;  // nobody knows where the next one starts
  }
  return text;
}

std::string VerbCase(const CommandManual& verb, const CommandManual& command) {
  std::string text = "    " + std::string(verb.Verb()) + ")\n      _arguments $options";
  for (const OptionManual& option : verb.options) {
    text += " \\\n        " + OptionSpec(option, &verb, command);
  }
  return text + ArgumentSpecs(verb, command) + "\n      ;;\n";
}

}  // namespace

std::string ZshCompletion(const CommandManual& command) {
  std::string text = kZshBegin;
  for (const CommandManual& verb : command.verbs) {
    text += "    " + ShellQuoted(std::string(verb.Verb()) + ":" + Escaped(verb.description)) + "\n";
  }
  text += kMiddle;
  for (const OptionManual& option : command.options) {
    text += "    " + OptionSpec(option, nullptr, command) + "\n";
  }
  text += kArguments;
  for (const CommandManual& verb : command.verbs) text += VerbCase(verb, command);
  return text + kZshEnd;
}

}  // namespace varve::internal::cli
