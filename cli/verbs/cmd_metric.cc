// SPDX-License-Identifier: Apache-2.0
//
// varve metric: sets metrics of a checkpoint, also long after its save.
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/request.h"

namespace varve::internal::cli {
namespace {

struct MetricOptions {
  std::string step;
  std::vector<std::string> metrics;
  bool no_wait = false;
};

Result<std::map<std::string, double>> ParseMetrics(const std::vector<std::string>& texts) {
  std::map<std::string, double> metrics;
  for (const std::string& text : texts) {
    VARVE_ASSIGN_OR_RETURN(auto metric, ParseMetric(text));
    if (!metrics.insert(std::move(metric)).second) {
      return Status::InvalidArgument("\"" + text + "\": the metric is given twice");
    }
  }
  return metrics;
}

Outcome RunMetric(const Context& context, const MetricOptions& options) {
  auto metrics = ParseMetrics(options.metrics);
  if (!metrics.ok()) return metrics.status();
  std::vector<CheckpointId> ids;
  if (Outcome outcome = FindSteps(context, {&options.step, 1}, &ids); !outcome.ok()) return outcome;
  const SetMetricsRequest request{ids.front(), *std::move(metrics)};
  SubmitReport report;
  Outcome outcome = SubmitRequest(context, request, options.no_wait, &report);
  if (!outcome.ok()) return outcome;
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", request.id.run},
                                             {"step", request.id.step},
                                             {"metrics", ToJson(request.metrics)},
                                             {"applied_by", AppliedByName(report.applied_by)}});
  } else if (!context.quiet()) {
    context.PrintText("step " + Printable(HumanId(request.id)) + " given " +
                      Printable(HumanMetrics(request.metrics)) + AppliedByText(report.applied_by) +
                      "\n");
  }
  return {};
}

constexpr char kMetricNotes[] = "JSON: run step metrics applied_by";

}  // namespace

void AddMetric(CLI::App& app, Context& context) {
  auto options = std::make_shared<MetricOptions>();
  CLI::App* verb =
      app.add_subcommand("metric", "Set metrics of a checkpoint; its other metrics stay");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("METRIC", options->metrics, "METRIC=VALUE, such as loss=2.5; also nan and inf")
      ->required();
  AddNoWait(verb, &options->no_wait);
  verb->footer(kMetricNotes);
  context.OnAnything(verb, [&context, options] { return RunMetric(context, *options); });
}

}  // namespace varve::internal::cli
