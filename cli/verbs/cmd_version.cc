// SPDX-License-Identifier: Apache-2.0
//
// varve version.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/context.h"
#include "varve/version.h"

namespace varve::internal::cli {
namespace {

constexpr char kVersionNotes[] = R"(JSON: version)";

}  // namespace

void AddVersion(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("version", "Print the version of this command");
  verb->footer(kVersionNotes);
  context.OnAnything(verb, [&context]() -> Outcome {
    PrintVersion(context);
    return {};
  });
}

void PrintVersion(const Context& context) {
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"version", VARVE_VERSION_STRING}});
  } else {
    context.PrintText("varve " VARVE_VERSION_STRING "\n");
  }
}

}  // namespace varve::internal::cli
