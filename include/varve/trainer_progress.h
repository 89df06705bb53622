// SPDX-License-Identifier: Apache-2.0
//
// TrainerProgress holds what a trainer must remember besides tensors and items
// (varve/state_item.h). Topology says how its ranks are laid out. Both are plain values. Every
// field has a default. What a load returns is exactly what was saved (doubles bit for bit).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace varve {

// A typed setting: an integer, a double, a string, or a list of doubles.
using StateValue = std::variant<int64_t, double, std::string, std::vector<double>>;

// The state of one random number generator of one rank, as opaque bytes.
struct RngState {
  uint32_t rank = 0;
  std::string generator;  // e.g. "cpu", "cuda:0", "dropout"
  std::vector<uint8_t> state;
};

// TrainerHooks uses `global_step`, and loads by many ranks use `rng`. varve stores the other fields
// as they are.
struct TrainerProgress {
  int64_t global_step = 0;  // optimizer steps done
  int64_t epoch = 0;
  int64_t consumed_samples = 0;
  // The default stands for "none yet" if a lower metric is better.
  double best_metric = std::numeric_limits<double>::infinity();
  double last_loss = 0;
  std::map<std::string, StateValue> lr_scheduler;
  std::map<std::string, StateValue> loss_scaler;
  std::vector<RngState> rng;                // with many ranks, each lists its own
  std::map<std::string, StateValue> extra;  // keys and values that the trainer chooses
};

// Describes how the ranks of a job are laid out: the degrees of data (dp), tensor (tp), pipeline
// (pp), virtual pipeline (vpp), sequence (sp), context (cp) and expert (ep) parallelism. A degree
// is 1 where that kind is not used.
struct Topology {
  uint32_t dp = 1;
  uint32_t tp = 1;
  uint32_t pp = 1;
  uint32_t vpp = 1;
  uint32_t sp = 1;
  uint32_t cp = 1;
  uint32_t ep = 1;
  uint32_t zero_stage = 0;  // 0: ZeRO is not used
  // The number of ranks. Loads compare it to find out whether the number has changed (RankStates).
  uint32_t world_size = 1;
  // The order of the kinds of parallelism. Neighbouring ranks differ in the first kind. The text is
  // the `order` that Megatron's initialize_model_parallel takes.
  std::string rank_order = "tp-cp-ep-dp-pp";

  bool operator==(const Topology&) const = default;
};

}  // namespace varve
