// SPDX-License-Identifier: Apache-2.0
#include "cli/request.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/util.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/step_range.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

bool IsListed(const Store& store, const CheckpointId& id) {
  const auto steps = store.ListCheckpoints(id.run);
  return steps.ok() && std::any_of(steps->begin(), steps->end(), [&](const CheckpointInfo& info) {
           return info.id.step == id.step;
         });
}

// Damaged steps count as well, because they can be dropped.
Status CheckAllThere(const Store& store, std::span<const CheckpointId> ids) {
  std::vector<std::string> missing;
  for (const CheckpointId& id : ids) {
    const Status status = store.OpenCheckpoint(id.run, id.step).status();
    if (status.ok() || IsListed(store, id)) continue;
    if (status.code() == StatusCode::kNotFound) {
      missing.push_back(status.message());
    } else {
      return status;
    }
  }
  return missing.empty() ? Status::Ok() : Status::NotFound(Join(missing, "; "));
}

}  // namespace

void AddNoWait(CLI::App* verb, bool* no_wait) {
  verb->add_flag("--no-wait", *no_wait,
                 "With a live writer: hand it over and return at once, without knowing the result");
}

Outcome FindSteps(const Context& context, std::span<const std::string> texts,
                  std::vector<CheckpointId>* ids) {
  return context.Read([texts, ids](const Store& store) -> Outcome {
    auto found = ResolveSteps(store, texts);
    if (!found.ok()) return found.status();
    *ids = *std::move(found);
    return CheckAllThere(store, *ids);
  });
}

Outcome FindStepsAndRanges(const Store& store, const std::string& run,
                           std::span<const std::string> texts, std::vector<CheckpointId>* ids) {
  std::vector<CheckpointId> unlisted;
  auto found = ResolveStepsAndRanges(store, run, texts, &unlisted);
  if (!found.ok()) return found.status();
  *ids = *std::move(found);
  return CheckAllThere(store, unlisted);
}

Outcome SubmitRequest(const Context& context, const Request& request, bool no_wait,
                      SubmitReport* report) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  SubmitOptions options;
  options.wait = !no_wait;
  const Result<std::string> key = context.ReadKey();
  if (!key.ok()) return key.status();
  options.key = *key;
  auto submitted = Submit(path, request, options);
  if (!submitted.ok()) return submitted.status();
  *report = *std::move(submitted);
  return {};
}

std::string AppliedByName(AppliedBy applied_by) {
  switch (applied_by) {
    case AppliedBy::kCaller:
      return "caller";
    case AppliedBy::kWriter:
      return "writer";
    case AppliedBy::kNobody:
      break;
  }
  return "nobody";
}

std::string AppliedByText(AppliedBy applied_by) {
  switch (applied_by) {
    case AppliedBy::kCaller:
      return "";
    case AppliedBy::kWriter:
      return " by the live writer";
    case AppliedBy::kNobody:
      break;
  }
  return ": handed to the live writer, not waited for";
}

Result<DropReport> PreviewDrop(const Store& store, std::vector<CheckpointId> ids, bool no_reclaim) {
  DropReport preview;
  VARVE_ASSIGN_OR_RETURN(const StoreStats stats, store.Stats());
  preview.reclaim = {.pending_bytes = stats.pending_bytes,
                     .disk_bytes_before = stats.disk_bytes,
                     .disk_bytes_after = stats.disk_bytes};
  if (ids.empty()) {
    preview.warnings = stats.warnings;
  } else {
    VARVE_ASSIGN_OR_RETURN(DropForecast forecast, store.ForecastDrop(ids));
    preview.reclaim.freed_bytes = no_reclaim ? 0 : forecast.freed_now;
    preview.reclaim.pending_bytes = forecast.freed_later + (no_reclaim ? forecast.freed_now : 0);
    preview.warnings = std::move(forecast.warnings);
    for (const std::string& warning : stats.warnings) {
      if (IsAboutDiskBytes(warning)) preview.warnings.push_back(warning);
    }
  }
  preview.dropped = std::move(ids);
  return preview;
}

std::string PreviewText(const DropReport& preview, bool no_reclaim) {
  const auto bytes_text = [](uint64_t bytes) {
    return HumanBytes(bytes) + " (" + Count(bytes, "byte") + ")";
  };
  const ReclaimReport& report = preview.reclaim;
  if (no_reclaim) {
    return bytes_text(report.pending_bytes) + " would wait for \"varve reclaim\", of which " +
           "files that are mostly alive come back by \"varve reclaim --all\"\n" +
           WarningsText(preview.warnings);
  }
  std::string text = bytes_text(report.freed_bytes) + " would come back at once\n";
  if (report.pending_bytes > 0) {
    text += bytes_text(report.pending_bytes) +
            " lie in files that are mostly alive: they would come back with later drops, or by "
            "\"varve reclaim --all\"\n";
  }
  return text + WarningsText(preview.warnings);
}

Outcome PreviewOutcome(const DropReport& preview) {
  return Outcome::Incomplete("the bytes leave out", preview.warnings);
}

nlohmann::ordered_json ToJson(const SubmitReport& report) {
  nlohmann::ordered_json object = ToJson(report.drop.dropped, report.drop.reclaim);
  object["applied_by"] = AppliedByName(report.applied_by);
  if (!report.drop.warnings.empty()) object["warnings"] = report.drop.warnings;
  return object;
}

std::string DropText(const SubmitReport& report) {
  if (report.applied_by == AppliedBy::kNobody) {
    return "drop" + AppliedByText(report.applied_by) + "\n";
  }
  return Count(report.drop.dropped.size(), "step") + " dropped" + AppliedByText(report.applied_by) +
         "; " + ReclaimText(report.drop.reclaim) + "\n";
}

}  // namespace varve::internal::cli
