// SPDX-License-Identifier: Apache-2.0
//
// varve help [VERB|TOPIC]. Hidden: all of it as a manual page, or as docs/cli.md.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/manual.h"

namespace varve::cli {
namespace {

struct HelpOptions {
  std::string about;  // empty = the whole command
  bool man = false;
  bool markdown = false;
};

Outcome RunHelp(const Context& context, const CommandManual& command, const std::string& about) {
  for (const CommandManual& verb : command.verbs) {
    if (verb.Verb() != about) continue;
    context.PrintText(HelpText(verb));
    return {};
  }
  for (const HelpTopic& topic : HelpTopics()) {
    if (topic.name != about) continue;
    context.PrintText(std::string(topic.text) + "\n");
    return {};
  }
  return Outcome::Usage("there is no verb or topic \"" + about + "\"; varve help lists them all");
}

Outcome RunHelp(const Context& context, const CLI::App& app, const HelpOptions& options) {
  const CommandManual command = DescribeCommand(app);
  if (!options.about.empty()) return RunHelp(context, command, options.about);
  context.PrintText(options.man        ? ManPage(command)
                    : options.markdown ? MarkdownText(command)
                                       : HelpText(command));
  return {};
}

}  // namespace

void AddHelp(CLI::App& app, Context& context) {
  auto options = std::make_shared<HelpOptions>();
  CLI::App* verb = app.add_subcommand("help", "Explain the command, one verb of it, or a topic");
  verb->add_option("VERB", options->about, "The verb or topic to explain");
  verb->add_flag("--man", options->man, "All of it as a manual page")->group("");
  verb->add_flag("--markdown", options->markdown, "All of it as docs/cli.md")->group("");
  context.OnAnything(verb, [&app, &context, options] { return RunHelp(context, app, *options); });
}

}  // namespace varve::cli
