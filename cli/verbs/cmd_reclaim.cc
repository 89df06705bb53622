// SPDX-License-Identifier: Apache-2.0
//
// varve reclaim: gives back the space of chunks that no step uses.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

Outcome RunReclaim(const Context& context, Store& store, const ReclaimOptions& options) {
  const auto report = store.Reclaim(options);
  if (!report.ok()) return report.status();
  if (context.json()) {
    context.PrintJson(ToJson({}, *report));
  } else if (!context.quiet()) {
    context.PrintText(ReclaimText(*report) + "\n");
  }
  return {};
}

constexpr char kNotes[] = R"(JSON: dropped (always empty) freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after)";

}  // namespace

void AddReclaim(CLI::App& app, Context& context) {
  auto options = std::make_shared<ReclaimOptions>();
  CLI::App* verb = app.add_subcommand("reclaim", "Give back the space of dropped checkpoints");
  verb->add_flag("--all", options->all, "Rewrite also files that are mostly alive");
  verb->footer(kNotes);
  context.OnWriting(
      verb, [&context, options](Store& store) { return RunReclaim(context, store, *options); });
}

}  // namespace varve::internal::cli
