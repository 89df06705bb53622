// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "base/guarded.h"
#include "varve/retention.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve {
using namespace internal;

namespace {

Status BadStep(std::string_view text, std::string_view problem) {
  return Status::InvalidArgument("\"" + std::string(text) +
                                 "\" names no step: " + std::string(problem));
}

bool IsAllDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Result<BestStep> ParseBest(std::string_view text, std::string_view metric) {
  BestStep best;
  for (const std::string_view direction : {":max", ":min"}) {
    if (!metric.ends_with(direction)) continue;
    best.highest = direction == ":max";
    metric.remove_suffix(direction.size());
    break;
  }
  if (metric.empty()) return BadStep(text, "best: needs a metric, as in best:loss");
  best.metric = metric;
  return best;
}

Status NoStep(const std::string& run, const std::string& what) {
  return Status::NotFound("run \"" + run + "\" has no " + what);
}

Result<uint64_t> FindLatest(const Store& store, const std::string& run) {
  VARVE_ASSIGN_OR_RETURN(const std::optional<uint64_t> latest, store.LatestStep(run));
  if (!latest) return NoStep(run, "steps");
  return *latest;
}

Result<uint64_t> FindBestOf(const Store& store, const std::string& run, const BestStep& best) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> checkpoints, store.ListCheckpoints(run));
  const std::optional<uint64_t> step = FindBest(checkpoints, best.metric, best.highest);
  if (!step) return NoStep(run, "step with a number for the metric \"" + best.metric + "\"");
  return *step;
}

Result<uint64_t> FindStep(const Store& store, const StepExpr& expr) {
  if (const auto* number = std::get_if<uint64_t>(&expr.step)) return *number;
  if (const auto* best = std::get_if<BestStep>(&expr.step)) {
    return FindBestOf(store, expr.run, *best);
  }
  if (const auto* tagged = std::get_if<TaggedStep>(&expr.step)) {
    return store.FindTag(expr.run, tagged->tag);
  }
  return FindLatest(store, expr.run);
}

Result<CheckpointId> ResolveExpr(const Store& store, const StepExpr& expr) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t step, FindStep(store, expr));
  return CheckpointId{expr.run, step};
}

Result<StepExpr> Parse(std::string_view text) {
  StepExpr expr;
  std::string_view step = text;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    expr.run = text.substr(0, at);
    step.remove_prefix(at + 1);
    const Status status = ValidateRun(expr.run);
    if (!status.ok()) return BadStep(text, status.message());
  }
  if (step.empty()) return BadStep(text, "it is empty");
  if (IsAllDigits(step)) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), number);
    if (error != std::errc()) return BadStep(text, "the number is above 2^64 - 1");
    expr.step = number;
  } else if (step == "latest") {
    expr.step = LatestStep{};
  } else if (constexpr std::string_view kBest = "best:"; step.starts_with(kBest)) {
    VARVE_ASSIGN_OR_RETURN(expr.step, ParseBest(text, step.substr(kBest.size())));
  } else {
    const Status status = ValidateTag(step);
    if (!status.ok()) return BadStep(text, status.message());
    expr.step = TaggedStep{std::string(step)};
  }
  return expr;
}

Result<StepExpr> ParseOfRun(std::string_view run, std::string_view text) {
  VARVE_RETURN_IF_ERROR(ValidateRun(run));
  VARVE_ASSIGN_OR_RETURN(StepExpr expr, Parse(text));
  const bool names_a_run = text.find('@') != std::string_view::npos;
  if (names_a_run && expr.run != run) {
    return Status::InvalidArgument("\"" + std::string(text) + "\" is not of run \"" +
                                   std::string(run) + "\"");
  }
  expr.run = run;
  return expr;
}

}  // namespace

Result<StepExpr> ParseStep(std::string_view text) {
  return Guarded("parsing a step", [&] { return Parse(text); });
}

Result<StepExpr> ParseStepOfRun(std::string_view run, std::string_view text) {
  return Guarded("parsing a step", [&] { return ParseOfRun(run, text); });
}

Result<CheckpointId> Store::Resolve(std::string_view text) const {
  return Guarded("resolving a step", [&]() -> Result<CheckpointId> {
    VARVE_ASSIGN_OR_RETURN(const StepExpr expr, Parse(text));
    return ResolveExpr(*this, expr);
  });
}

Result<CheckpointId> ResolveStepOfRun(const Store& store, std::string_view run,
                                      std::string_view text) {
  return Guarded("resolving a step", [&]() -> Result<CheckpointId> {
    VARVE_ASSIGN_OR_RETURN(const StepExpr expr, ParseOfRun(run, text));
    return ResolveExpr(store, expr);
  });
}

Result<std::vector<CheckpointId>> ResolveSteps(const Store& store,
                                               std::span<const std::string> texts) {
  return Guarded("resolving steps", [&]() -> Result<std::vector<CheckpointId>> {
    std::vector<CheckpointId> ids;
    for (const std::string& text : texts) {
      VARVE_ASSIGN_OR_RETURN(CheckpointId id, store.Resolve(text));
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(std::move(id));
    }
    return ids;
  });
}

}  // namespace varve
