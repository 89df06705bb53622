// SPDX-License-Identifier: Apache-2.0
//
// varve init: makes an empty store.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

Outcome RunInit(const Context& context) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  const auto store = Store::Create(path);
  if (!store.ok()) return store.status();
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"store", path}});
  } else if (!context.quiet()) {
    context.PrintText("made an empty store in " + Printable(path) + "\n");
  }
  return {};
}

constexpr char kInitNotes[] = R"(The folder must not exist yet, or be empty.

JSON: store)";

}  // namespace

void AddInit(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("init", "Make an empty store");
  verb->footer(kInitNotes);
  context.OnAnything(verb, [&context] { return RunInit(context); });
}

}  // namespace varve::internal::cli
