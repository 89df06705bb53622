// SPDX-License-Identifier: Apache-2.0
#include "cli/step_range.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

constexpr std::string_view kDots = "..";

Result<CheckpointId> ResolveStep(const Store& store, const std::string& run,
                                 const std::string& text) {
  return run.empty() ? store.Resolve(text) : ResolveStepOfRun(store, run, text);
}

// Returns the checkpoints of a range, or nullopt when the word is no range.
Result<std::optional<std::vector<CheckpointId>>> ResolveRange(const Store& store, std::string run,
                                                              const std::string& text) {
  std::optional<std::vector<CheckpointId>> ids;
  const size_t dots = text.find(kDots);
  // Tags and metrics may have dots.
  if (dots == std::string::npos || ResolveStep(store, run, text).ok()) return ids;
  std::string first = text.substr(0, dots);
  const std::string last = text.substr(dots + kDots.size());
  if (const size_t at = first.find('@'); at != std::string::npos) {
    // With a run this also checks that the word names no other.
    const auto named = run.empty() ? ParseStep(first.substr(0, at) + "@latest")
                                   : ParseStepOfRun(run, first.substr(0, at) + "@latest");
    if (!named.ok()) return named.status();
    run = named->run;
    first.erase(0, at + 1);
  }
  if (run.empty()) run = "main";
  if (first.empty() && last.empty()) {
    return Status::InvalidArgument("\"" + text +
                                   "\" is a range without ends, such as 10..90, 10.. or ..90");
  }
  CheckpointId begin{run, 0};
  CheckpointId end{run, UINT64_MAX};
  if (!first.empty()) {
    VARVE_ASSIGN_OR_RETURN(begin, ResolveStepOfRun(store, run, first));
  }
  if (!last.empty()) {
    VARVE_ASSIGN_OR_RETURN(end, ResolveStepOfRun(store, run, last));
  }
  if (begin.step > end.step) {
    return Status::InvalidArgument("\"" + text + "\": step " + std::to_string(begin.step) +
                                   " comes after step " + std::to_string(end.step));
  }
  VARVE_ASSIGN_OR_RETURN(const auto infos, store.ListCheckpoints(run));
  ids.emplace();
  for (const CheckpointInfo& info : infos) {
    if (info.id.step >= begin.step && info.id.step <= end.step) ids->push_back(info.id);
  }
  if (ids->empty()) {
    return Status::NotFound("run \"" + run + "\" has no step in " + text);
  }
  return ids;
}

}  // namespace

Result<std::vector<CheckpointId>> ResolveStepsAndRanges(const Store& store, const std::string& run,
                                                        std::span<const std::string> texts,
                                                        std::vector<CheckpointId>* unlisted) {
  std::vector<CheckpointId> all;
  std::set<std::pair<std::string, uint64_t>> seen;
  for (const std::string& text : texts) {
    VARVE_ASSIGN_OR_RETURN(auto ids, ResolveRange(store, run, text));
    if (!ids) {
      VARVE_ASSIGN_OR_RETURN(CheckpointId id, ResolveStep(store, run, text));
      if (unlisted != nullptr) unlisted->push_back(id);
      ids.emplace().push_back(std::move(id));
    }
    for (CheckpointId& id : *ids) {
      if (seen.emplace(id.run, id.step).second) all.push_back(std::move(id));
    }
  }
  return all;
}

}  // namespace varve::internal::cli
