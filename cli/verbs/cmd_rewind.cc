// SPDX-License-Identifier: Apache-2.0
//
// varve rewind: makes an earlier step the newest of its run. The later ones move to a fork.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

struct RewindOptions {
  std::string run;
  std::string to;
};

ordered_json ToObject(const CheckpointId& to, const RewindReport& report) {
  return {{"run", to.run},
          {"step", to.step},
          {"fork", report.fork.empty() ? ordered_json() : ordered_json(report.fork)},
          {"moved", report.moved}};
}

std::string ToText(const CheckpointId& to, const RewindReport& report) {
  const std::string newest = "step " + std::to_string(to.step) + " is the newest of run " + to.run;
  if (report.moved.empty()) return Printable(newest + " already") + "\n";
  return Printable(newest + "; " + Count(report.moved.size(), "later step") + " moved to run " +
                   report.fork) +
         "\n";
}

Outcome RunRewind(const Context& context, Store& store, const RewindOptions& options) {
  const auto to = ResolveStepOfRun(store, options.run, options.to);
  if (!to.ok()) return to.status();
  const auto report = store.Rewind(to->run, to->step);
  if (!report.ok()) return report.status();
  if (context.json()) {
    context.PrintJson(ToObject(*to, *report));
  } else if (!context.quiet()) {
    context.PrintText(ToText(*to, *report));
  }
  return {};
}

constexpr char kRewindNotes[] =
    R"(The later steps keep their tags. A save that is based on one of them must end
first.

JSON: run step fork moved; fork is null when there was nothing to move)";

}  // namespace

void AddRewind(CLI::App& app, Context& context) {
  auto options = std::make_shared<RewindOptions>();
  CLI::App* verb = app.add_subcommand(
      "rewind", "Make a step the newest of its run; later ones move to a run RUN~1 (or ~2 ...)");
  verb->add_option("RUN", options->run, "The run to rewind")->required();
  verb->add_option("--to", options->to, "The step of RUN that becomes its newest")
      ->type_name("STEP")
      ->required();
  verb->footer(kRewindNotes);
  context.OnWriting(
      verb, [&context, options](Store& store) { return RunRewind(context, store, *options); });
}

}  // namespace varve::internal::cli
