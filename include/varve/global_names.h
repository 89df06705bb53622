// SPDX-License-Identifier: Apache-2.0
//
// Turns a rank's own tensor names into names of the whole model. A pipeline stage counts its layers
// from 0, an expert-parallel rank counts its experts from 0, and wrappers add prefixes.
//
//   varve::Pipeline pipeline{.layers = 7, .stages = 2, .chunks = 2};
//   varve::GlobalNames names;
//   VARVE_ASSIGN_OR_RETURN(const auto layers, varve::LayersOfStage(pipeline, /*stage=*/1));
//   VARVE_RETURN_IF_ERROR(names.AddNumbers("transformer.h", layers));  // 2, 3, 6
//   // "transformer.h.6.ln_1.weight":
//   VARVE_ASSIGN_OR_RETURN(auto name, names.Apply("module.transformer.h.2.ln_1.weight"));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/layouts.h"
#include "varve/result.h"

namespace varve {

// Says how layers are divided among pipeline stages. The layers are cut into stages * chunks
// consecutive pieces. The first `layers % (stages * chunks)` pieces have one layer more than the
// others. Chunk c of stage s is piece number c * stages + s.
struct Pipeline {
  int64_t layers = 0;
  int64_t stages = 1;
  int64_t chunks = 1;  // of each stage, for virtual pipeline parallelism
};
// The place of a layer. All numbers count from 0.
struct PipelinePlace {
  int64_t stage = 0;
  int64_t chunk = 0;  // within the stage
  int64_t layer = 0;  // within the chunk
  bool operator==(const PipelinePlace&) const = default;
};

// LayersOfChunk returns the global layers of one chunk. LayersOfStage returns the global layers of
// a stage, chunk after chunk, so that result[i] is the global number of the stage's own layer i.
// kInvalidArgument says what is out of range. All functions here are stateless.
Result<Range> LayersOfChunk(const Pipeline& pipeline, int64_t stage, int64_t chunk);
Result<std::vector<int64_t>> LayersOfStage(const Pipeline& pipeline, int64_t stage);
// Returns the place of a global layer. kInvalidArgument says what is out of range.
Result<PipelinePlace> FindLayer(const Pipeline& pipeline, int64_t layer);

// Returns the global numbers of a rank's experts. Each rank has an equal part of `experts`, in
// order. kInvalidArgument: the ranks do not divide the experts, or there is no such rank.
Result<std::vector<int64_t>> ExpertsOfRank(int64_t experts, RankOf ep);

// Holds rules by which names are turned into global names.
//
// Thread rule: one thread at a time while rules are added. Then any thread may call Apply.
class GlobalNames {
 public:
  // Adds a rule for numbers after `prefix`, which is one or more dotted components of a name. If a
  // name has these components in a row, anywhere, and then a number N, the rule replaces N by
  // numbers[N]. Only the first such place in a name counts. kInvalidArgument: the prefix is empty,
  // or has numbers already.
  Status AddNumbers(std::string_view prefix, std::vector<int64_t> numbers);

  // Returns the global name: numbers are replaced, and the names of torch's wrappers are removed.
  // These components are removed anywhere in the name: "_orig_mod", "_fsdp_wrapped_module" and
  // "_checkpoint_wrapped_module". All components "module" at the front of the name are removed,
  // too. If the name starts with a kind of optimizer state, "module" is also removed directly after
  // this kind. The kinds are exp_avg, exp_avg_sq, max_exp_avg_sq, momentum, momentum_buffer,
  // master, fp32_param and main_param. "optimizer." or "optimizer.state." may come before the kind.
  //
  // nullopt: a component begins with "__pp". The caller skips such a tensor, because InfiniTrain
  // lists it a second time, under its usual name. kInvalidArgument names a number N for which the
  // `numbers` of its rule have no entry.
  Result<std::optional<std::string>> Apply(std::string_view name) const;

 private:
  struct Rule {
    std::vector<std::string> prefix;  // components
    std::vector<int64_t> numbers;
  };
  std::vector<Rule> rules_;
};

}  // namespace varve
