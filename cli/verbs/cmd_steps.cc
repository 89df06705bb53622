// SPDX-License-Identifier: Apache-2.0
//
// varve steps: the checkpoints of a run, or of all runs.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct StepsOptions {
  std::string run;  // empty = all
};

Result<std::vector<CheckpointInfo>> ListSteps(const Store& store, const std::string& run) {
  if (!run.empty()) return store.ListCheckpoints(run);
  std::vector<CheckpointInfo> all;
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, store.ListRuns());
  for (const RunInfo& info : runs) {
    VARVE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> steps, store.ListCheckpoints(info.name));
    all.insert(all.end(), std::make_move_iterator(steps.begin()),
               std::make_move_iterator(steps.end()));
  }
  return all;
}

std::string ToText(const std::vector<CheckpointInfo>& steps) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"step", kRight},
               {"created"},
               {"logical", kRight},
               {"new", kRight},
               {"stored", kRight},
               {"metrics"},
               {"tags"}});
  for (const CheckpointInfo& info : steps) {
    table.AddRow({HumanId(info.id), HumanTime(info.created), HumanBytes(info.logical_bytes),
                  HumanBytes(info.new_bytes), HumanBytes(info.stored_bytes),
                  HumanMetrics(info.metrics), Join(info.tags, " ")});
  }
  return table.ToString();
}

Outcome RunSteps(const Context& context, const Store& store, const StepsOptions& options) {
  const auto steps = ListSteps(store, options.run);
  if (!steps.ok()) return steps.status();
  if (context.json()) {
    context.PrintJsonArray(steps->size(), [&](size_t i) { return ToJson((*steps)[i]); });
  } else {
    context.PrintText(ToText(*steps));
  }
  return {};
}

constexpr char kNotes[] = R"(JSON: array of run step created parent tensors logical_bytes new_bytes
stored_bytes metrics tags)";

}  // namespace

void AddSteps(CLI::App& app, Context& context) {
  auto options = std::make_shared<StepsOptions>();
  CLI::App* verb = app.add_subcommand("steps", "List the checkpoints of a run, or of all");
  verb->add_option("--run", options->run, "Only this run")->type_name("RUN");
  verb->footer(kNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunSteps(context, store, *options); });
}

}  // namespace varve::internal::cli
