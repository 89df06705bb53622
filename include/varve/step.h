// SPDX-License-Identifier: Apache-2.0
//
// A step expression names a checkpoint. "100" is the step of that number. "latest" is the newest
// step of its run. "best:loss" is the step with the lowest metric loss, and "best:accuracy:max" is
// the step with the highest metric accuracy. "best:loss:min" is the same as "best:loss". Any other
// word is a tag. "RUN@" in front names the run. Without it the run is "main". The command and the
// flags of trainers take the same expressions:
//
//   VARVE_ASSIGN_OR_RETURN(const varve::CheckpointId best, store->Resolve("finetune@best:loss"));
//   VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint(best.run, best.step));
//
// The Parse functions look at the text alone. The Resolve functions ask a store. All are stateless,
// and any thread may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"

namespace varve {

class Store;

struct LatestStep {
  bool operator==(const LatestStep&) const = default;
};
struct BestStep {
  std::string metric;
  bool highest = false;
  bool operator==(const BestStep&) const = default;
};
struct TaggedStep {
  std::string tag;
  bool operator==(const TaggedStep&) const = default;
};

// A parsed step expression. A number is held as uint64_t.
struct StepExpr {
  std::string run = "main";
  std::variant<uint64_t, LatestStep, BestStep, TaggedStep> step;
  bool operator==(const StepExpr&) const = default;
};

// Parses a step expression. kInvalidArgument says which part is wrong and what would be right.
Result<StepExpr> ParseStep(std::string_view text);
// Parses a step expression for a step of `run`. Without "RUN@" the run is `run`, not "main".
// kInvalidArgument also means that the text names another run.
Result<StepExpr> ParseStepOfRun(std::string_view run, std::string_view text);

// As Store::Resolve, for a step of `run`. `text` is as in ParseStepOfRun.
Result<CheckpointId> ResolveStepOfRun(const Store& store, std::string_view run,
                                      std::string_view text);
// Resolves each expression as Store::Resolve does. The result is in the order of `texts`. A step
// that several texts name is in it once.
Result<std::vector<CheckpointId>> ResolveSteps(const Store& store,
                                               std::span<const std::string> texts);

}  // namespace varve
