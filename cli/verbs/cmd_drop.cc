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
#include "cli/request.h"

namespace varve::internal::cli {
namespace {

struct DropVerbOptions {
  std::vector<std::string> steps;
  bool no_reclaim = false;
  bool no_wait = false;
};

Outcome RunDrop(const Context& context, const DropVerbOptions& options) {
  // All steps are resolved before any is dropped. So "latest 5" means the latest step before the
  // drop.
  DropRequest request{.ids = {}, .reclaim = !options.no_reclaim};
  if (Outcome outcome = FindSteps(context, options.steps, &request.ids); !outcome.ok()) {
    return outcome;
  }
  SubmitReport report;
  Outcome outcome = SubmitRequest(context, request, options.no_wait, &report);
  if (!outcome.ok()) return outcome;
  if (context.json()) {
    context.PrintJson(ToJson(report));
  } else if (!context.quiet()) {
    context.PrintText(DropText(report));
  }
  return {};
}

constexpr char kNotes[] =
    R"(All of them exist, or none is dropped. Bytes that other checkpoints share stay.

JSON: dropped[run step] freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after applied_by)";

}  // namespace

void AddDrop(CLI::App& app, Context& context) {
  auto options = std::make_shared<DropVerbOptions>();
  CLI::App* verb = app.add_subcommand("drop", "Drop checkpoints and reclaim their space");
  verb->add_option("STEP", options->steps, kStepHelp)->required();
  verb->add_flag("--no-reclaim", options->no_reclaim, "Leave the space to a later reclaim");
  verb->footer(kNotes);
  AddNoWait(verb, &options->no_wait);
  context.OnAnything(verb, [&context, options] { return RunDrop(context, *options); });
}

}  // namespace varve::internal::cli
