// SPDX-License-Identifier: Apache-2.0
//
// Scripts that complete the command in a shell. They hold all verbs and options, so that a key
// press starts a process only for words that the store knows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/manual/manual.h"

namespace varve::internal::cli {

// Candidates for the value of an option or an argument.
struct Candidates {
  // kOfStore: words that the store knows, of the sort that `words` names: steps, runs, tags, or
  // tensors, which are those of the step that is the verb's first argument, or else of the newest.
  enum class Kind { kNothing, kWords, kOfStore, kFiles, kFolders };
  Kind kind = Kind::kNothing;
  std::vector<std::string> words;
};

// Follows the choices of the option, or the name of its value, such as STEP, RUN, TAG, NAME, FILE.
Candidates CandidatesOf(const OptionManual& option, const CommandManual& command);

// True if the first argument of the verb is a step, of which its tensors are completed.
bool StartsWithStep(const CommandManual& verb);

// Returns all names of the options, with or without those that take no value.
std::vector<std::string> OptionNames(const CommandManual& command, bool with_flags);
std::vector<std::string> VerbNames(const CommandManual& command);

// Returns the text in single quotes, with the escapes that shells need in it.
std::string ShellQuoted(std::string_view text);

std::string BashCompletion(const CommandManual& command);
std::string ZshCompletion(const CommandManual& command);
std::string FishCompletion(const CommandManual& command);

}  // namespace varve::internal::cli
