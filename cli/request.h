// SPDX-License-Identifier: Apache-2.0
//
// Verbs that change a store by a request (varve/request.h), so that they work while a writer has
// the store open. A reader looks up what they name, and is closed before the request goes out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/context.h"
#include "varve/request.h"
#include "varve/store.h"

namespace varve::internal::cli {

// Adds --no-wait.
void AddNoWait(CLI::App* verb, bool* no_wait);

// Returns the checkpoints that STEP expressions name, without repetitions. Not found names every
// missing one. A request that nobody waits for is checked as well.
Outcome FindSteps(const Context& context, std::span<const std::string> texts,
                  std::vector<CheckpointId>* ids);

// The same for words that may also be ranges, as in ResolveStepsAndRanges.
Outcome FindStepsAndRanges(const Store& store, const std::string& run,
                           std::span<const std::string> texts, std::vector<CheckpointId>* ids);

// Has the request applied. With `no_wait` it only hands the request to a live writer.
Outcome SubmitRequest(const Context& context, const Request& request, bool no_wait,
                      SubmitReport* report);

// "caller", "writer" or "nobody", for JSON.
std::string AppliedByName(AppliedBy applied_by);
// Ends a sentence that says what was done: "", " by the live writer", or that it is still to be
// done.
std::string AppliedByText(AppliedBy applied_by);

// Says what a drop of `ids` would do. Bytes that would not come back at once are pending.
Result<DropReport> PreviewDrop(const Store& store, std::vector<CheckpointId> ids, bool no_reclaim);
// Returns lines that say which space would come back at once, and how to get the rest.
std::string PreviewText(const DropReport& preview, bool no_reclaim);
// Exit code 3, if the preview leaves something out.
Outcome PreviewOutcome(const DropReport& preview);

// The report of `drop` and `forget`.
nlohmann::ordered_json ToJson(const SubmitReport& report);
// Returns one line: "3 steps dropped by the live writer; 1.2 GiB freed, ...".
std::string DropText(const SubmitReport& report);

}  // namespace varve::internal::cli
