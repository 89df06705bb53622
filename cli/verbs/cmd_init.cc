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
  const Result<std::string> key = context.ReadKey();
  if (!key.ok()) return key.status();
  const auto store = Store::Create(path, {.store = {.key = *key}});
  if (!store.ok()) return store.status();
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"store", path}, {"sealed", !key->empty()}});
  } else if (!context.quiet()) {
    const std::string what = key->empty() ? "made an empty store in " : "made a sealed store in ";
    context.PrintText(what + Printable(path) + "\n");
  }
  return {};
}

constexpr char kInitNotes[] =
    R"(The folder must not exist yet, or be empty. With --key-file the store is sealed:
writers need the key, and a check with the key finds what others have changed.

JSON: store sealed)";

}  // namespace

void AddInit(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("init", "Make an empty store");
  verb->footer(kInitNotes);
  context.OnAnything(verb, [&context] { return RunInit(context); });
}

}  // namespace varve::internal::cli
