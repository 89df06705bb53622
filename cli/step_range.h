// SPDX-License-Identifier: Apache-2.0
//
// Words that name several checkpoints of a run: "10..90" is all steps from 10 to 90, both of them
// too. Either end may be any step expression, and may be left out: "warm..latest", "exp@500..".
// Functions are stateless.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"

namespace varve {
class Store;
}

namespace varve::internal::cli {

// The help text of a STEP argument that may be a range.
inline constexpr char kStepOrRangeHelp[] =
    "number, latest, best:METRIC[:max], tag, or range 10..90; as RUN@STEP for another run than "
    "main";

// Returns the checkpoints that the words name, in their order, each once. With a `run` all words
// are of it. A word with dots that names a step, such as a tag, is that step. kNotFound: a range
// holds no step, or what ResolveSteps says. kInvalidArgument: a range without ends, or with the
// later end first. If `unlisted` is set, it gets the checkpoints of words that are no range, which
// need not exist.
Result<std::vector<CheckpointId>> ResolveStepsAndRanges(
    const Store& store, const std::string& run, std::span<const std::string> texts,
    std::vector<CheckpointId>* unlisted = nullptr);

}  // namespace varve::internal::cli
