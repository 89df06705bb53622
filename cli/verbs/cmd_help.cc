// SPDX-License-Identifier: Apache-2.0
//
// varve help [VERB|TOPIC]. Hidden: all of it as a manual page, or as docs/cli.md.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/manual/completion.h"
#include "cli/manual/manual.h"

namespace varve::internal::cli {
namespace {

struct HelpOptions {
  std::string about;  // empty = the whole command
  bool man = false;
  bool markdown = false;
};

void Print(const Context& context, const std::string& about, const std::string& text) {
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"about", about}, {"text", text}});
  } else {
    context.PrintText(text);
  }
}

Outcome RunHelp(const Context& context, const CommandManual& command, const std::string& about) {
  for (const CommandManual& verb : command.verbs) {
    if (verb.Verb() != about) continue;
    Print(context, about, HelpText(verb));
    return {};
  }
  for (const HelpTopic& topic : HelpTopics()) {
    if (topic.name != about) continue;
    Print(context, about, std::string(topic.text) + "\n");
    return {};
  }
  const std::string verb = MostSimilar(about, VerbNames(command));
  return Outcome::Usage("there is no verb or topic \"" + about + "\"; " +
                        (verb.empty() ? "" : "did you mean " + verb + "? ") +
                        "varve help lists them all");
}

Outcome RunHelp(const Context& context, const CLI::App& app, const HelpOptions& options) {
  const CommandManual command = DescribeCommand(app);
  if (!options.about.empty()) return RunHelp(context, command, options.about);
  Print(context, command.name,
        options.man        ? ManPage(command)
        : options.markdown ? MarkdownText(command)
                           : HelpText(command));
  return {};
}

}  // namespace

Outcome PrintHelp(const Context& context, const CLI::App& app, const std::string& about) {
  return RunHelp(context, app, {.about = about});
}

void AddHelp(CLI::App& app, Context& context) {
  auto options = std::make_shared<HelpOptions>();
  CLI::App* verb = app.add_subcommand("help", "Explain the command, one verb of it, or a topic");
  verb->add_option("VERB", options->about, "The verb or topic to explain");
  verb->add_flag("--man", options->man, "All of it as a manual page")->group("");
  verb->add_flag("--markdown", options->markdown, "All of it as docs/cli.md")->group("");
  verb->footer("JSON: about text");
  context.OnAnything(verb, [&app, &context, options] { return RunHelp(context, app, *options); });
}

}  // namespace varve::internal::cli
