// SPDX-License-Identifier: Apache-2.0
//
// varve runs: the runs of a store.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/verbs/reports.h"
#include "varve/store.h"

namespace varve::internal::cli {

using nlohmann::ordered_json;

Result<KnownRuns> ListKnownRuns(const Store& store) {
  auto runs = store.ListRuns();
  if (runs.ok()) return KnownRuns{*std::move(runs), {}};
  if (runs.status().code() != StatusCode::kCorruption) return runs.status();
  auto steps = ListKnownSteps(store, {});
  if (!steps.ok()) return runs.status();
  KnownRuns known{{}, {"what runs were forked from"}};
  if (steps->errors.empty()) known.errors.push_back(runs.status().message());
  known.errors.insert(known.errors.end(), steps->errors.begin(), steps->errors.end());
  for (const CheckpointInfo& info : steps->checkpoints) {  // ordered by run
    if (known.runs.empty() || known.runs.back().name != info.id.run) {
      known.runs.emplace_back().name = info.id.run;
    }
    ++known.runs.back().num_steps;
  }
  return known;
}

ordered_json ToJson(std::span<const RunInfo> runs) {
  ordered_json array = ordered_json::array();
  for (const RunInfo& run : runs) {
    array.push_back({{"run", run.name},
                     {"steps", run.num_steps},
                     {"forked_from", run.forked_from ? ToJson(*run.forked_from) : ordered_json()}});
  }
  return array;
}

namespace {

std::string ToText(const std::vector<RunInfo>& runs) {
  Table table({{"run"}, {"steps", Table::Align::kRight}, {"forked from"}});
  for (const RunInfo& run : runs) {
    const std::string origin =
        run.forked_from ? run.forked_from->run + "@" + std::to_string(run.forked_from->step) : "";
    table.AddRow({run.name, std::to_string(run.num_steps), origin});
  }
  return table.ToString();
}

Outcome RunRuns(const Context& context, const Store& store) {
  const auto known = ListKnownRuns(store);
  if (!known.ok()) return known.status();
  context.json() ? context.PrintJson(ToJson(known->runs)) : context.PrintText(ToText(known->runs));
  if (known->errors.empty()) return {};
  return Outcome::Incomplete("the list leaves out", known->errors);
}

constexpr char kRunsNotes[] =
    R"(If records of steps or runs are lost or damaged, the runs with a step that can
be read are listed, with the number of these steps. Nothing then says what runs
were forked from. An error names what is left out, and the exit code is 3. A run
whose name is lost is named #ID.

JSON: array of run steps forked_from)";

}  // namespace

void AddRuns(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("runs", "List the runs of the store");
  verb->footer(kRunsNotes);
  context.OnReading(verb, [&context](const Store& store) { return RunRuns(context, store); });
}

}  // namespace varve::internal::cli
