// SPDX-License-Identifier: Apache-2.0
//
// varve fork: starts a run from a checkpoint of another.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct ForkOptions {
  std::string run;
  std::string new_run;
  std::string at = "latest";
};

Outcome RunFork(const Context& context, Store& store, const ForkOptions& options) {
  const auto origin = ResolveStepOfRun(store, options.run, options.at);
  if (!origin.ok()) return origin.status();
  const Result<uint64_t> step = store.Fork(origin->run, options.new_run, origin->step);
  if (!step.ok()) return step.status();
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{
        {"run", options.new_run}, {"step", *step}, {"forked_from", ToJson(*origin)}});
  } else if (!context.quiet()) {
    context.PrintText("run " + Printable(options.new_run) + " starts from step " +
                      Printable(HumanId(*origin)) + "\n");
  }
  return {};
}

constexpr char kForkNotes[] =
    R"(The new run has that one step, with its metrics and without its tags.

JSON: run step forked_from[run step])";

}  // namespace

void AddFork(CLI::App& app, Context& context) {
  auto options = std::make_shared<ForkOptions>();
  CLI::App* verb =
      app.add_subcommand("fork", "Start a run from a checkpoint of another; copies nothing");
  verb->add_option("RUN", options->run, "The run to start from")->required();
  verb->add_option("NEWRUN", options->new_run, "The run to make")->required();
  verb->add_option("--at", options->at, "The step of RUN to start from")
      ->type_name("STEP")
      ->capture_default_str();
  verb->footer(kForkNotes);
  context.OnWriting(
      verb, [&context, options](Store& store) { return RunFork(context, store, *options); });
}

}  // namespace varve::internal::cli
