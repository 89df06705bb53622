// SPDX-License-Identifier: Apache-2.0
//
// varve drop: drops checkpoints and gives their space back.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/step_expr.h"
#include "varve/store.h"

namespace varve::cli {
namespace {

struct DropVerbOptions {
  std::vector<std::string> steps;
  bool no_reclaim = false;
};

Outcome RunDrop(const Context& context, Store& store, const DropVerbOptions& options) {
  // All are resolved before any goes: "latest 5" means the latest of now.
  const auto ids = ResolveSteps(store, options.steps);
  if (!ids.ok()) return ids.status();
  const auto report = store.Drop(*ids, {.reclaim = !options.no_reclaim});
  if (!report.ok()) return report.status();
  if (context.json()) {
    context.PrintJson(ToJson(report->dropped, report->reclaim));
  } else if (!context.quiet()) {
    context.PrintText(Count(report->dropped.size(), "step") + " dropped; " +
                      ReclaimText(report->reclaim) + "\n");
  }
  return {};
}

constexpr char kNotes[] =
    R"(All of them exist, or none is dropped. Bytes that other checkpoints share stay.

JSON: dropped[run step] freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after)";

}  // namespace

void AddDrop(CLI::App& app, Context& context) {
  auto options = std::make_shared<DropVerbOptions>();
  CLI::App* verb = app.add_subcommand("drop", "Drop checkpoints and reclaim their space");
  verb->add_option("STEP", options->steps, kStepHelp)->required();
  verb->add_flag("--no-reclaim", options->no_reclaim, "Leave the space to a later reclaim");
  verb->footer(kNotes);
  context.OnWriting(
      verb, [&context, options](Store& store) { return RunDrop(context, store, *options); });
}

}  // namespace varve::cli
