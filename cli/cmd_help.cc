// SPDX-License-Identifier: Apache-2.0
//
// varve help [VERB].
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"

namespace varve::cli {
namespace {

Outcome RunHelp(const Context& context, const CLI::App& app, const std::string& verb) {
  if (verb.empty()) {
    // app.help() would explain this verb, because it is the one that was chosen.
    context.PrintText(
        app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
    return {};
  }
  for (const CLI::App* known : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (known->get_name() != verb) continue;
    context.PrintText(known->help(app.get_name()));
    return {};
  }
  return Outcome::Usage("there is no verb \"" + verb + "\"; varve help lists them all");
}

}  // namespace

void AddHelp(CLI::App& app, Context& context) {
  auto about = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("help", "Explain the command, or one verb of it");
  verb->add_option("VERB", *about, "The verb to explain");
  context.OnAnything(verb, [&app, &context, about] { return RunHelp(context, app, *about); });
}

}  // namespace varve::cli
