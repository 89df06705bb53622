// SPDX-License-Identifier: Apache-2.0
//
// varve completion: prints scripts for the shells. This file also has the hidden verb that the
// scripts call.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/manual/completion.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

constexpr char kCompletionNotes[] = R"(Packages install these scripts already. By hand:

  bash   source <(varve completion bash)
  zsh    varve completion zsh > FOLDER_OF_FPATH/_varve
  fish   varve completion fish > ~/.config/fish/completions/varve.fish

JSON: shell script)";

Outcome RunCompletion(const Context& context, const CLI::App& app, const std::string& shell) {
  const CommandManual command = DescribeCommand(app);
  const std::string script = shell == "bash"  ? BashCompletion(command)
                             : shell == "zsh" ? ZshCompletion(command)
                                              : FishCompletion(command);
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"shell", shell}, {"script", script}});
  } else {
    context.PrintText(script);
  }
  return {};
}

// A shell would run a tag like "$(reboot)" that another user has put into the store. It would take
// a leading ~ for a folder.
bool IsHarmless(const std::string& word) {
  const bool is_plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_.+/-~@").find(c) != std::string_view::npos;
  });
  return is_plain && !word.starts_with('~');
}

struct WordsOptions {
  std::string kind;
  std::string step;   // whose tensors
  std::string typed;  // of the word
};

Result<std::vector<std::string>> RunNames(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, store.ListRuns());
  std::vector<std::string> names;
  for (const RunInfo& run : runs) names.push_back(run.name);
  return names;
}

// Words that name a step of the run "main", or if so much has been typed, of another run. `numbers`
// also lists those that are no tags.
Result<std::vector<std::string>> StepWords(const Store& store, const std::string& typed,
                                           bool numbers) {
  const size_t at = typed.find('@');
  const std::string run = at == std::string::npos ? "main" : typed.substr(0, at);
  const std::string prefix = at == std::string::npos ? "" : run + "@";
  std::vector<std::string> words;
  const auto steps = store.ListCheckpoints(run);
  if (!steps.ok() && steps.status().code() != StatusCode::kNotFound) return steps.status();
  if (steps.ok()) {
    if (numbers && !steps->empty()) words.push_back(prefix + "latest");
    for (const CheckpointInfo& info : *steps) {
      if (numbers) words.push_back(prefix + std::to_string(info.id.step));
      for (const std::string& tag : info.tags) words.push_back(prefix + tag);
    }
  }
  if (!numbers || at != std::string::npos) return words;
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> runs, RunNames(store));
  for (const std::string& name : runs) {
    if (name != run) words.push_back(name + "@latest");  // a word that is whole, and shows how
  }
  return words;
}

Result<std::vector<std::string>> TensorWords(const Store& store, const std::string& step,
                                             const std::string& typed) {
  std::vector<std::string> names;
  if (IsGlob(typed)) return names;
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, store.Resolve(step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, ShardedReader::Open(store, id.run, id.step));
  VARVE_ASSIGN_OR_RETURN(const auto tensors, reader->ListMatching(typed + "*"));
  for (const TensorInfo& tensor : tensors) {
    if (names.empty() || names.back() != tensor.name) names.push_back(tensor.name);
  }
  return names;
}

Outcome PrintWords(const Context& context, const Store& store, const WordsOptions& options) {
  const auto words = options.kind == "runs"    ? RunNames(store)
                     : options.kind == "steps" ? StepWords(store, options.typed, /*numbers=*/true)
                     : options.kind == "tags"  ? StepWords(store, options.typed, /*numbers=*/false)
                                               : TensorWords(store, options.step, options.typed);
  if (!words.ok()) return words.status();
  std::string text;
  for (const std::string& word : *words) {
    if (IsHarmless(word)) text += word + "\n";
  }
  context.PrintText(text);
  return {};
}

}  // namespace

void AddCompletion(CLI::App& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Print a script that completes this command");
  verb->add_option("SHELL", *shell, "The shell that is to run it")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->footer(kCompletionNotes);
  context.OnAnything(verb, [&app, &context, shell] { return RunCompletion(context, app, *shell); });

  auto options = std::make_shared<WordsOptions>();
  CLI::App* words = app.add_subcommand("__words", "Words that the store knows")->group("");
  words->add_option("KIND", options->kind)
      ->required()
      ->check(CLI::IsMember({"runs", "steps", "tags", "tensors"}));
  words->add_option("--of", options->step);
  words->add_option("TYPED", options->typed);
  context.OnReading(words, [&context, options](const Store& store) {
    return PrintWords(context, store, *options);
  });
}

}  // namespace varve::internal::cli
