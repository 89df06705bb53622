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

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/manual/completion.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

constexpr char kNotes[] = R"(Packages install these scripts already. By hand:

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

// A shell would run a tag like "$(reboot)" that another user has put into the store.
bool IsHarmless(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '+' || c == '/' || c == '-';
  });
}

Outcome PrintStepWords(const Context& context, const Store& store) {
  const auto steps = store.ListCheckpoints("main");
  if (!steps.ok()) return steps.status();
  std::string text = steps->empty() ? "" : "latest\n";
  for (const CheckpointInfo& info : *steps) {
    text += std::to_string(info.id.step) + "\n";
    for (const std::string& tag : info.tags) text += IsHarmless(tag) ? tag + "\n" : "";
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
  verb->footer(kNotes);
  context.OnAnything(verb, [&app, &context, shell] { return RunCompletion(context, app, *shell); });

  CLI::App* words = app.add_subcommand("__steps", "Words that name a step")->group("");
  context.OnReading(words,
                    [&context](const Store& store) { return PrintStepWords(context, store); });
}

}  // namespace varve::internal::cli
