// SPDX-License-Identifier: Apache-2.0
//
// varve steps: the checkpoints of a run, or of all runs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/verbs/reports.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

// The values of the text options, after they have been checked.
struct StepsPlan {
  std::string run;
  uint64_t last = UINT64_MAX;  // of each run
  std::optional<BestStep> sort;
};

Result<StepsPlan> Plan(const StepsOptions& options) {
  StepsPlan plan{.run = options.run};
  if (!options.last.empty()) {
    VARVE_ASSIGN_OR_RETURN(plan.last, ParseNumber("--last", options.last));
    if (plan.last == 0) return Status::InvalidArgument("--last: 0 lists nothing");
  }
  if (options.sort.empty()) return plan;
  // A metric is named as in best:METRIC, so that the first step of the list is that one.
  const Result<StepExpr> best = ParseStep("best:" + options.sort);
  if (!best.ok() || !std::holds_alternative<BestStep>(best->step)) {
    return Status::InvalidArgument("--sort: \"" + options.sort +
                                   "\" is not of the form METRIC[:max|:min]");
  }
  plan.sort = std::get<BestStep>(best->step);
  return plan;
}

Status AddStepsOf(const Store& store, const std::string& run, uint64_t last,
                  std::vector<CheckpointInfo>* all) {
  VARVE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> steps, store.ListCheckpoints(run));
  const size_t num_kept = std::min<uint64_t>(last, steps.size());
  all->insert(all->end(), std::make_move_iterator(steps.end() - static_cast<ptrdiff_t>(num_kept)),
              std::make_move_iterator(steps.end()));
  return Status::Ok();
}

Result<std::vector<CheckpointInfo>> ListPlanned(const Store& store, const StepsPlan& plan) {
  std::vector<CheckpointInfo> all;
  if (!plan.run.empty()) {
    VARVE_RETURN_IF_ERROR(AddStepsOf(store, plan.run, plan.last, &all));
    return all;
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_RETURN_IF_ERROR(AddStepsOf(store, run.name, plan.last, &all));
  }
  return all;
}

// Puts the best step first, as best:METRIC orders them. Steps without a number come last. If
// steps are equally good, the later ones of the list come first.
Status SortByMetric(const BestStep& best, std::vector<CheckpointInfo>* steps) {
  const auto value_of = [&best](const CheckpointInfo& info) {
    const auto metric = info.metrics.find(best.metric);
    return metric == info.metrics.end() ? NAN : metric->second;
  };
  const auto has_number = [&](const CheckpointInfo& info) { return !std::isnan(value_of(info)); };
  if (steps->empty()) return Status::Ok();
  std::reverse(steps->begin(), steps->end());
  const auto rest = std::stable_partition(steps->begin(), steps->end(), has_number);
  if (rest == steps->begin()) {
    return Status::NotFound("none of the steps has a number for the metric \"" + best.metric +
                            "\"");
  }
  std::stable_sort(steps->begin(), rest, [&](const CheckpointInfo& a, const CheckpointInfo& b) {
    return best.highest ? value_of(a) > value_of(b) : value_of(a) < value_of(b);
  });
  return Status::Ok();
}

}  // namespace

Result<std::vector<CheckpointInfo>> ListSteps(const Store& store, const StepsOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const StepsPlan plan, Plan(options));
  VARVE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> steps, ListPlanned(store, plan));
  if (plan.sort) VARVE_RETURN_IF_ERROR(SortByMetric(*plan.sort, &steps));
  return steps;
}

namespace {

// Takes what --run and --last name out of all steps, which are ordered by run and step.
std::vector<CheckpointInfo> Choose(std::vector<CheckpointInfo> all, const StepsPlan& plan) {
  std::vector<CheckpointInfo> chosen;
  for (auto first = all.begin(); first != all.end();) {
    const std::string run = first->id.run;
    const auto end =
        std::find_if(first, all.end(), [&](const auto& info) { return info.id.run != run; });
    const auto num_left_out = static_cast<ptrdiff_t>(static_cast<uint64_t>(end - first) -
                                                     std::min<uint64_t>(plan.last, end - first));
    if (plan.run.empty() || plan.run == run) {
      std::move(first + num_left_out, end, std::back_inserter(chosen));
    }
    first = end;
  }
  return chosen;
}

}  // namespace

Result<KnownCheckpoints> ListKnownSteps(const Store& store, const StepsOptions& options) {
  auto steps = ListSteps(store, options);
  if (steps.ok()) return KnownCheckpoints{*std::move(steps), {}};
  if (steps.status().code() != StatusCode::kCorruption) return steps.status();
  const Result<StepsPlan> plan = Plan(options);
  Result<KnownCheckpoints> known = store.ListKnownCheckpoints();
  if (!plan.ok() || !known.ok()) return steps.status();
  if (known->errors.empty()) known->errors.push_back(steps.status().message());
  std::vector<CheckpointInfo>& rest = known->checkpoints;
  rest = Choose(std::move(rest), *plan);
  const bool is_sorted = !plan->sort || SortByMetric(*plan->sort, &rest).ok();
  if (rest.empty() || !is_sorted) return steps.status();
  return known;
}

namespace {

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

void Print(const Context& context, const std::vector<CheckpointInfo>& steps) {
  if (context.json()) {
    context.PrintJsonArray(steps.size(), [&](size_t i) { return ToJson(steps[i]); });
  } else {
    context.PrintText(ToText(steps));
  }
}

Outcome RunSteps(const Context& context, const Store& store, const StepsOptions& options) {
  const auto steps = ListKnownSteps(store, options);
  if (!steps.ok()) return steps.status();
  Print(context, steps->checkpoints);
  if (steps->errors.empty()) return {};
  return Outcome::Incomplete("the list leaves out", steps->errors);
}

constexpr char kStepsNotes[] =
    R"(--sort puts the best step first: the one with the lowest value of the metric, or
with METRIC:max the highest. The newest of equal steps comes first. Steps
without the metric, or with NaN, come last. --last takes the newest steps of
each run, by number, and --sort then sorts these.

If records of steps are lost or damaged, the other steps are listed, an error
names what is not, and the exit code is 3. Newer steps may be missing, and steps
that were dropped may be there. A run whose name is lost is named #ID.

JSON: array of run step created parent tensors logical_bytes new_bytes
stored_bytes metrics tags)";

}  // namespace

void AddSteps(CLI::App& app, Context& context) {
  auto options = std::make_shared<StepsOptions>();
  CLI::App* verb = app.add_subcommand("steps", "List the checkpoints of a run, or of all");
  verb->add_option("--run", options->run, "Only this run")->type_name("RUN");
  verb->add_option("-n,--last", options->last, "Only the N newest steps of each run")
      ->type_name("N");
  verb->add_option("--sort", options->sort, "By this metric, the best step first")
      ->type_name("METRIC[:max|:min]");
  verb->footer(kStepsNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunSteps(context, store, *options); });
}

}  // namespace varve::internal::cli
