// SPDX-License-Identifier: Apache-2.0
//
// Answers about runs and their steps.
#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "cli/json.h"
#include "cli/view/answers.h"
#include "objects/url.h"
#include "varve/group.h"
#include "varve/version.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

// Tags of one run that the graph shows. The table of steps has all of them.
constexpr size_t kMaxTagsOfRun = 50;
constexpr uint64_t kDefaultPoints = 400;
constexpr uint64_t kMaxPoints = 2000;

struct RunSteps {
  RunInfo run;
  std::vector<CheckpointInfo> steps;
};

struct AllRuns {
  std::vector<RunSteps> runs;
  std::vector<std::string> errors;  // of a damaged store: what the runs leave out
};

Result<std::vector<RunSteps>> ListRunSteps(const Store& store) {
  std::vector<RunSteps> all;
  VARVE_ASSIGN_OR_RETURN(std::vector<RunInfo> runs, store.ListRuns());
  for (RunInfo& run : runs) {
    auto steps = store.ListCheckpoints(run.name);
    if (steps.status().code() == StatusCode::kNotFound) continue;  // dropped meanwhile
    if (!steps.ok()) return steps.status();
    all.push_back({std::move(run), *std::move(steps)});
  }
  return all;
}

// What is known of a damaged store, run by run.
AllRuns ByRun(KnownCheckpoints known) {
  AllRuns all{.errors = std::move(known.errors)};
  for (CheckpointInfo& info : known.checkpoints) {  // ordered by run
    if (all.runs.empty() || all.runs.back().run.name != info.id.run) {
      all.runs.emplace_back().run.name = info.id.run;
    }
    RunSteps& run = all.runs.back();
    ++run.run.num_steps;
    run.steps.push_back(std::move(info));
  }
  return all;
}

Result<AllRuns> ListAll(const Store& store) {
  auto runs = ListRunSteps(store);
  if (runs.ok()) return AllRuns{*std::move(runs), {}};
  if (runs.status().code() != StatusCode::kCorruption) return runs.status();
  auto known = ListKnownSteps(store, {});
  if (!known.ok()) return runs.status();
  return ByRun(*std::move(known));
}

ordered_json TagsOf(std::span<const CheckpointInfo> steps) {
  auto tags = ordered_json::array();
  for (const CheckpointInfo& info : steps) {
    for (const std::string& tag : info.tags) {
      if (tags.size() == kMaxTagsOfRun) return tags;
      tags.push_back({{"tag", tag}, {"step", info.id.step}});
    }
  }
  return tags;
}

ordered_json EndOf(const CheckpointInfo& info) {
  return {{"step", info.id.step}, {"created", IsoTime(info.created)}};
}

// The names of all metrics. "loss" comes first, because it is what most people look for.
std::vector<std::string> MetricsOf(std::span<const RunSteps> all) {
  std::set<std::string> names;
  for (const RunSteps& run : all) {
    for (const CheckpointInfo& info : run.steps) {
      for (const auto& [name, value] : info.metrics) names.insert(name);
    }
  }
  std::vector<std::string> sorted(names.begin(), names.end());
  std::ranges::stable_partition(sorted, [](const std::string& name) { return name == "loss"; });
  return sorted;
}

// A point of a curve: a step, or several steps that follow each other.
struct CurvePoint {
  uint64_t first = 0;
  uint64_t last = 0;
  uint64_t num_values = 0;
  double min = INFINITY;
  double max = -INFINITY;
  long double sum = 0;  // of doubles that may be close to the largest there is

  void Add(uint64_t step, double value) {
    if (num_values == 0) first = step;
    last = step;
    ++num_values;
    min = std::min(min, value);
    max = std::max(max, value);
    sum += value;
  }
  ordered_json ToObject() const {
    return {{"first", first},
            {"last", last},
            {"values", num_values},
            {"min", min},
            {"max", max},
            {"mean", static_cast<double>(sum / static_cast<long double>(num_values))}};
  }
};

struct Curve {
  std::vector<CurvePoint> points;
  uint64_t num_left_out = 0;  // values that are infinite or NaN
};

Curve MakeCurve(std::span<const CheckpointInfo> steps, const std::string& metric,
                size_t steps_a_point) {
  Curve curve;
  for (size_t begin = 0; begin < steps.size(); begin += steps_a_point) {
    CurvePoint point;
    for (const CheckpointInfo& info :
         steps.subspan(begin, std::min(steps_a_point, steps.size() - begin))) {
      const auto value = info.metrics.find(metric);
      if (value == info.metrics.end()) continue;
      if (std::isfinite(value->second)) {
        point.Add(info.id.step, value->second);
      } else {
        ++curve.num_left_out;
      }
    }
    if (point.num_values > 0) curve.points.push_back(point);
  }
  return curve;
}

// Puts the step of best:METRIC and its value, which may be infinite, into a curve.
void AddBest(std::span<const CheckpointInfo> steps, const std::string& metric, bool highest,
             ordered_json* curve) {
  const std::string side = highest ? "highest" : "lowest";
  const auto best = FindBest(steps, metric, highest);
  (*curve)[side] = best ? ordered_json(*best) : ordered_json();
  if (!best) return;
  const auto info = std::ranges::find(steps, *best, [](const auto& step) { return step.id.step; });
  (*curve)[side + "_value"] = ToJson(info->metrics.at(metric));
}

ordered_json CurveOf(const RunSteps& run, const std::string& metric, uint64_t max_points) {
  const size_t steps_a_point =
      std::max<size_t>(1, (run.steps.size() + max_points - 1) / max_points);
  const Curve curve = MakeCurve(run.steps, metric, steps_a_point);
  auto points = ordered_json::array();
  for (const CurvePoint& point : curve.points) points.push_back(point.ToObject());
  ordered_json object = {
      {"run", run.run.name}, {"steps_a_point", steps_a_point}, {"left_out", curve.num_left_out}};
  AddBest(run.steps, metric, /*highest=*/false, &object);
  AddBest(run.steps, metric, /*highest=*/true, &object);
  object["points"] = std::move(points);
  return object;
}

std::string KindOf(const std::string& path) {
  if (LooksLikeUrl(path)) return "remote";
  return Group::IsRoot(path) ? "group" : "store";
}

}  // namespace

ordered_json CutRows(const PageOfRows& page, ordered_json rows) {
  const auto [begin, end] = page.Of(rows.size());
  auto cut = ordered_json::array();
  for (size_t i = begin; i < end; ++i) cut.push_back(std::move(rows[i]));
  return {{"total", rows.size()}, {"offset", begin}, {"rows", std::move(cut)}};
}

Answer AnswerStore(const Ask& ask) {
  ordered_json object = {
      {"path", ask.path}, {"kind", KindOf(ask.path)}, {"version", VARVE_VERSION_STRING}};
  if (!ask.snapshot.empty()) object["snapshot"] = ask.snapshot;
  if (!ask.warning.empty()) object["warning"] = ask.warning;
  return object;
}

Answer AnswerRuns(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, ask.store.ListRuns());
  return ToJson(runs);
}

// The elements of `runs`, each with its ends and tags.
Answer AnswerLineage(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const AllRuns all, ListAll(ask.store));
  auto array = ordered_json::array();
  for (const RunSteps& run : all.runs) {
    ordered_json object = ToJson(std::span(&run.run, 1))[0];
    object["first"] = run.steps.empty() ? ordered_json() : EndOf(run.steps.front());
    object["last"] = run.steps.empty() ? ordered_json() : EndOf(run.steps.back());
    object["tags"] = TagsOf(run.steps);
    array.push_back(std::move(object));
  }
  return array;
}

Answer AnswerSteps(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const std::string order, ask.query.OneOf("order", "up down newest"));
  VARVE_ASSIGN_OR_RETURN(KnownCheckpoints known,
                         ListKnownSteps(ask.store, {.run = ask.query.Text("run"),
                                                    .last = ask.query.Text("last"),
                                                    .sort = ask.query.Text("sort")}));
  std::vector<CheckpointInfo>& steps = known.checkpoints;
  if (order == "down") std::ranges::reverse(steps);
  if (order == "newest") {
    std::ranges::stable_sort(steps, [](const CheckpointInfo& a, const CheckpointInfo& b) {
      return a.created > b.created;
    });
  }
  const auto [begin, end] = page.Of(steps.size());
  auto rows = ordered_json::array();
  for (size_t i = begin; i < end; ++i) rows.push_back(ToJson(steps[i]));
  ordered_json object = {{"total", steps.size()}, {"offset", begin}, {"rows", std::move(rows)}};
  if (!known.errors.empty()) object["errors"] = known.errors;
  return object;
}

// The steps of the same run before and after a step, or null.
Answer AnswerNear(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const std::string step, ask.query.Needed("step"));
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, ask.store.Resolve(step));
  VARVE_ASSIGN_OR_RETURN(const auto infos, ask.store.ListCheckpoints(id.run));
  ordered_json near = {{"before", nullptr}, {"after", nullptr}};
  for (const CheckpointInfo& info : infos) {
    if (info.id.step < id.step) near["before"] = ToJson(info.id);
    if (info.id.step > id.step) {
      near["after"] = ToJson(info.id);
      break;
    }
  }
  return near;
}

Answer AnswerCurves(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t max_points,
                         ask.query.Number("points", kDefaultPoints, kMaxPoints));
  if (max_points == 0) return Status::InvalidArgument("the parameter \"points\" is 0");
  VARVE_ASSIGN_OR_RETURN(const AllRuns all, ListAll(ask.store));
  const std::vector<std::string> metrics = MetricsOf(all.runs);
  const std::string metric = ask.query.Text("metric", metrics.empty() ? "" : metrics[0]);
  auto curves = ordered_json::array();
  for (const RunSteps& run : all.runs) {
    ordered_json curve = CurveOf(run, metric, max_points);
    if (!curve["points"].empty() || curve["left_out"] > 0) curves.push_back(std::move(curve));
  }
  ordered_json object = {{"metrics", metrics}, {"metric", metric}, {"runs", std::move(curves)}};
  if (!all.errors.empty()) object["errors"] = all.errors;
  return object;
}

}  // namespace varve::internal::cli
