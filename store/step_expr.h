// SPDX-License-Identifier: Apache-2.0
//
// How people name a checkpoint: "100", "latest", "best:loss", "best:accuracy:max", a tag, each also
// as "RUN@...". Parsing is pure; resolving asks a store. Functions are stateless.
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
}

namespace varve {

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

// Parses and asks the store. kNotFound names what is missing. A plain number is not looked up: what
// the caller does next finds out whether it is there.
Result<CheckpointId> ResolveStep(const Store& store, std::string_view text);
Result<CheckpointId> ResolveStepOfRun(const Store& store, std::string_view run,
                                      std::string_view text);
// The same for several, without repetitions, in the order given.
Result<std::vector<CheckpointId>> ResolveSteps(const Store& store,
                                               std::span<const std::string> texts);

}  // namespace varve
