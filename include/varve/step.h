// SPDX-License-Identifier: Apache-2.0
//
// Step expressions: how people name a checkpoint. "100" is a number, "latest" the newest step of
// its run, "best:loss" the step with the lowest loss, "best:accuracy:max" that with the highest
// accuracy, and any other word a tag. "RUN@" before any of them names the run. Without it the run
// is "main". The command and the flags of trainers take the same expressions:
//
//   VARVE_ASSIGN_OR_RETURN(const varve::CheckpointId best, store->Resolve("finetune@best:loss"));
//   VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint(best.run, best.step));
//
// Parsing is pure. Resolving asks a store. The functions are stateless, and any thread may call
// them.
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

struct StepExpr {
  std::string run = "main";
  std::variant<uint64_t, LatestStep, BestStep, TaggedStep> step;
  bool operator==(const StepExpr&) const = default;
};

// kInvalidArgument says which part is wrong and what would be right.
Result<StepExpr> ParseStep(std::string_view text);
// A step of this run: "RUN@" may be left out, and another run is kInvalidArgument.
Result<StepExpr> ParseStepOfRun(std::string_view run, std::string_view text);

// As Store::Resolve, of a step of this run. "RUN@" may be left out, and another run is
// kInvalidArgument.
Result<CheckpointId> ResolveStepOfRun(const Store& store, std::string_view run,
                                      std::string_view text);
// As Store::Resolve of each, without repetitions, in the order given.
Result<std::vector<CheckpointId>> ResolveSteps(const Store& store,
                                               std::span<const std::string> texts);

}  // namespace varve
