// SPDX-License-Identifier: Apache-2.0
//
// The `varve` command: a thin layer over the library. See docs/cli.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/manual/completion.h"
#include "cli/manual/manual.h"
#include "cli/outcome.h"
#include "cli/print.h"
#include "varve/version.h"

#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif
#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif

namespace varve::internal::cli {
namespace {

void AddVerbs(CLI::App& app, Context& context) {
  AddInit(app, context);
  AddImport(app, context);
  AddExport(app, context);
  AddRuns(app, context);
  AddSteps(app, context);
  AddLs(app, context);
  AddShow(app, context);
  AddGet(app, context);
  AddDiff(app, context);
  AddLog(app, context);
  AddTag(app, context);
  AddUntag(app, context);
  AddMetric(app, context);
  AddFork(app, context);
  AddRewind(app, context);
  AddDrop(app, context);
  AddForget(app, context);
  AddReclaim(app, context);
  AddCopy(app, context);
  AddBackup(app, context);
  AddPush(app, context);
  AddPull(app, context);
  AddCheck(app, context);
  AddRepair(app, context);
  AddSeal(app, context);
  AddStats(app, context);
  AddView(app, context);
  AddVersion(app, context);
  AddCompletion(app, context);
  AddHelp(app, context);
}

// Returns the word in the place of a verb if it is no verb, or an empty text when there is a verb.
std::string UnknownVerb(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return {};
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with('-')) return word;
  }
  return {};
}

// Says that there is no such verb or option, and which one is similar.
Outcome Unknown(const std::string& what, const std::string& word, const std::string& similar) {
  return Outcome::Usage("there is no " + what + " \"" + word + "\"" +
                        (similar.empty() ? "" : "; did you mean " + similar + "?") +
                        " (see varve help)");
}

// The first word that is written like an option and is none, without its value, or an empty text.
std::string UnknownOption(const CLI::App& app) {
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word.starts_with('-') && word != "-" && word != "--") return word.substr(0, word.find('='));
  }
  return {};
}

// The options of the command, and of the verb on the line.
std::vector<std::string> KnownOptions(const CLI::App& app) {
  std::vector<std::string> names = OptionNames(DescribeCommand(app), /*with_flags=*/true);
  for (const CLI::App* verb : app.get_subcommands()) {
    const auto more = OptionNames(DescribeCommand(*verb), /*with_flags=*/true);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

// The user asked for help, or the command line is wrong.
Outcome ParseOutcome(const CLI::App& app, const Context& context, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
      PrintVersion(context);
      return {};
    }
    const auto verbs = app.get_subcommands();
    return PrintHelp(context, app, verbs.empty() ? std::string() : verbs.front()->get_name());
  }
  if (const std::string word = UnknownVerb(app); !word.empty()) {
    return Unknown("verb", word, MostSimilar(word, VerbNames(DescribeCommand(app))));
  }
  if (const std::string word = UnknownOption(app); !word.empty()) {
    return Unknown("option", word, MostSimilar(word, KnownOptions(app)));
  }
  return Outcome::Usage(std::string(error.what()) + " (see varve help)");
}

Outcome RunCommand(int argc, char** argv) {
  CLI::App app("Embedded checkpoint store for machine-learning training", "varve");
  Context context;
  context.AddGlobalOptions(&app);
  app.formatter_fn([](const CLI::App* command, const std::string&, CLI::AppFormatMode) {
    return HelpText(DescribeCommand(*command));
  });
  app.set_help_flag("-h,--help", "Explain the command, or the verb that it follows");
  app.require_subcommand(0, 1);  // none is refused below, with better words
  app.set_version_flag("--version", "varve " VARVE_VERSION_STRING, "Print the version");
  app.fallthrough();  // global options may also follow the verb
  AddVerbs(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ParseOutcome(app, context, error);
  }
  if (app.get_subcommands().empty()) return Outcome::Usage("no verb given (see varve help)");
  return context.WithAdvice(context.Run());
}

// Checks that the output has arrived. A full disk behind a redirection is a failure too.
Outcome FlushOutput(Outcome outcome) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return outcome;
  return outcome.ok() ? Outcome(ExitCode::kFailed, "cannot write to standard output") : outcome;
}

}  // namespace
}  // namespace varve::internal::cli

int main(int argc, char** argv) {
  using varve::internal::cli::Message;
  using varve::internal::cli::Outcome;
  try {
#ifdef VARVE_HAS_RADOS
    varve::UseRados();
#endif
#ifdef VARVE_HAS_S3
    varve::UseS3();
#endif
    const Outcome outcome =
        varve::internal::cli::FlushOutput(varve::internal::cli::RunCommand(argc, argv));
    if (!outcome.ok()) {
      std::fprintf(stderr, "varve: %s\n", Message(outcome.message()).c_str());
    }
    return static_cast<int>(outcome.code());
  } catch (const std::exception& error) {  // of the standard library: out of memory or threads
    std::fprintf(stderr, "varve: %s\n", error.what());
    return static_cast<int>(varve::internal::cli::ExitCode::kFailed);
  }
}
