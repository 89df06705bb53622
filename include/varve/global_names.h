// SPDX-License-Identifier: Apache-2.0
//
// Names of the whole model for what a rank calls by its own: layers that a pipeline stage counts
// from 0, experts that an expert-parallel rank counts from 0, wrappers in front.
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

// Layers on a pipeline. There are stages x chunks pieces in order of depth, and the first
// layers % pieces of them have one layer more. Piece number chunk * stages + stage is that chunk of
// that stage.
struct Pipeline {
  int64_t layers = 0;
  int64_t stages = 1;
  int64_t chunks = 1;  // of each stage: virtual pipeline parallelism
};
struct PipelinePlace {
  int64_t stage = 0;
  int64_t chunk = 0;  // of the stage
  int64_t layer = 0;  // of the chunk
  bool operator==(const PipelinePlace&) const = default;
};

// The global layers of one chunk, and the global layers of a stage, chunk after chunk, as a stage
// numbers them. kInvalidArgument says what is out of range. These functions are stateless.
Result<Range> LayersOfChunk(const Pipeline& pipeline, int64_t stage, int64_t chunk);
Result<std::vector<int64_t>> LayersOfStage(const Pipeline& pipeline, int64_t stage);
// Where a global layer is. kInvalidArgument says what is out of range.
Result<PipelinePlace> FindLayer(const Pipeline& pipeline, int64_t layer);

// The global numbers of the experts of a rank: equal parts of `experts`, in order.
// kInvalidArgument: the ranks do not divide the experts, or there is no such rank.
Result<std::vector<int64_t>> ExpertsOfRank(int64_t experts, RankOf ep);

// Thread rule: one thread at a time while rules are added. Then any thread may call Apply.
class GlobalNames {
 public:
  // In a name that has the dotted `prefix` followed by a number N, whole components wherever they
  // stand, N becomes numbers[N]. Of several places the first counts. kInvalidArgument: an empty
  // prefix, or one that has numbers already.
  Status AddNumbers(std::string_view prefix, std::vector<int64_t> numbers);

  // The global name, with global numbers and without torch's wrappers. The wrappers are
  // "_orig_mod",
  // "_fsdp_wrapped_module" and "_checkpoint_wrapped_module" wherever they stand, and "module" in
  // front, however many times. "In front" also means behind what optimizer state is called by:
  // exp_avg, exp_avg_sq, max_exp_avg_sq, momentum, momentum_buffer, master, fp32_param, main_param,
  // each also behind "optimizer." or "optimizer.state.".
  // nullopt: a component begins with "__pp". InfiniTrain gives such names to modules that are there
  // under their own names, too. kInvalidArgument names the component whose number has no global
  // one.
  Result<std::optional<std::string>> Apply(std::string_view name) const;

 private:
  struct Rule {
    std::vector<std::string> prefix;  // components
    std::vector<int64_t> numbers;
  };
  std::vector<Rule> rules_;
};

}  // namespace varve
