// SPDX-License-Identifier: Apache-2.0
//
// varve drop: drops checkpoints and gives their space back.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/request.h"
#include "cli/step_range.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct DropVerbOptions {
  std::vector<std::string> steps;  // empty = all of `run`
  std::string run;                 // empty = as the words say
  bool dry_run = false;
  bool no_reclaim = false;
  bool no_wait = false;
};

Outcome FindAll(const Store& store, const DropVerbOptions& options,
                std::vector<CheckpointId>* ids) {
  if (!options.steps.empty()) {
    return FindStepsAndRanges(store, options.run, options.steps, ids);
  }
  const auto infos = store.ListCheckpoints(options.run);
  if (!infos.ok()) return infos.status();
  for (const CheckpointInfo& info : *infos) ids->push_back(info.id);
  if (!ids->empty()) return {};
  return Status::NotFound("run \"" + options.run + "\" has no steps");
}

nlohmann::ordered_json ToObject(const SubmitReport& report, bool dry_run) {
  nlohmann::ordered_json object = ToJson(report);
  object["dry_run"] = dry_run;
  return object;
}

// Lists the steps that would be dropped. A step that cannot be read can be dropped, too.
std::string StepsText(const Store& store, const std::vector<CheckpointId>& ids) {
  std::map<std::pair<std::string, uint64_t>, CheckpointInfo> known;
  std::set<std::string> runs;
  for (const CheckpointId& id : ids) {
    if (!runs.insert(id.run).second) continue;
    auto infos = store.ListCheckpoints(id.run);
    if (!infos.ok()) continue;
    for (CheckpointInfo& info : *infos) {
      std::pair key(info.id.run, info.id.step);
      known.emplace(std::move(key), std::move(info));
    }
  }
  Table table({{"step", Table::Align::kRight}, {"saved"}, {"metrics"}, {"tags"}});
  for (const CheckpointId& id : ids) {
    const auto found = known.find({id.run, id.step});
    if (found == known.end()) {
      table.AddRow({HumanId(id), "?", "", ""});
      continue;
    }
    const CheckpointInfo& info = found->second;
    table.AddRow(
        {HumanId(id), HumanTime(info.created), HumanMetrics(info.metrics), Join(info.tags, " ")});
  }
  return table.ToString();
}

Outcome RunDryRun(const Context& context, const Store& store, const std::vector<CheckpointId>& ids,
                  const DropVerbOptions& options) {
  const auto preview = PreviewDrop(store, ids, options.no_reclaim);
  if (!preview.ok()) return preview.status();
  if (context.json()) {
    SubmitReport would_be;
    would_be.drop = *preview;
    context.PrintJson(ToObject(would_be, /*dry_run=*/true));
  } else {
    context.PrintText(StepsText(store, ids) + "would drop " + Count(ids.size(), "step") + "\n" +
                      PreviewText(*preview, options.no_reclaim));
  }
  return PreviewOutcome(*preview);
}

Outcome RunDrop(const Context& context, const DropVerbOptions& options) {
  if (options.steps.empty() && options.run.empty()) {
    return Outcome::Usage("drop needs a STEP, or --run for a whole run");
  }
  // All steps are resolved before any is dropped. So "latest 5" means the latest step before the
  // drop.
  DropRequest request{.ids = {}, .reclaim = !options.no_reclaim};
  Outcome outcome = context.Read([&](const Store& store) {
    Outcome found = FindAll(store, options, &request.ids);
    return found.ok() && options.dry_run ? RunDryRun(context, store, request.ids, options) : found;
  });
  if (!outcome.ok() || options.dry_run) return outcome;
  SubmitReport report;
  outcome = SubmitRequest(context, request, options.no_wait, &report);
  if (!outcome.ok()) return outcome;
  context.Warn(report.drop.warnings);
  if (context.json()) {
    context.PrintJson(ToObject(report, /*dry_run=*/false));
  } else if (!context.quiet()) {
    context.PrintText(DropText(report));
  }
  return {};
}

constexpr char kDropNotes[] =
    R"(All of them exist, or none is dropped. Bytes that other checkpoints share stay.

10..90 is every step from 10 to 90, these two included. One end may be left out,
and each may be any STEP: exp@500.., ..best:loss. With --run the words are of
that run. Without words it drops all steps of the run. A run that a fork or a
rewind has made goes with its last step. What was forked from it stays.

--dry-run counts as forget --dry-run does, and takes no lock. If it cannot tell
all bytes, it says what is left out, with exit code 3.

JSON: dropped[run step] freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after applied_by dry_run. With --dry-run, dropped,
freed_bytes (at once) and pending_bytes (later) say what would be)";

}  // namespace

void AddDrop(CLI::App& app, Context& context) {
  auto options = std::make_shared<DropVerbOptions>();
  CLI::App* verb = app.add_subcommand("drop", "Drop checkpoints and reclaim their space");
  verb->add_option("STEP", options->steps, kStepOrRangeHelp);
  verb->add_option("--run", options->run, "All steps of this run, or those that STEP names")
      ->type_name("RUN");
  verb->add_flag("--dry-run", options->dry_run,
                 "Only print what would be dropped, and the bytes that would come back");
  verb->add_flag("--no-reclaim", options->no_reclaim, "Leave the space to a later reclaim");
  verb->footer(kDropNotes);
  AddNoWait(verb, &options->no_wait);
  context.OnAnything(verb, [&context, options] { return RunDrop(context, *options); });
}

}  // namespace varve::internal::cli
