// SPDX-License-Identifier: Apache-2.0
//
// The state of a training as its trainer holds it: tensors in the trainer's own memory, and the
// rest as values. The hooks save it and load into it.
//
//   varve::TrainingState state;
//   state.tensors.push_back({{.name = "model.wte", .dtype = varve::DType::kBF16, .shape = {V, C},
//                             .role = varve::TensorRole::kParameter,
//                             .derived_from = "master.wte"}, wte});
//   state.tensors.push_back({{.name = "exp_avg.wte", .shape = {V, C},
//                             .role = varve::TensorRole::kOptimizer}, exp_avg});
//   state.trainer.global_step = step;
//
// Optimizer state is named by its parameter, never by an index, so that the order of parameters may
// change; its shape may differ from its parameter's. A trainer without optimizer state lists none.
// Plain values without hidden sharing; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"
#include "varve/trainer_progress.h"

namespace varve {

// A tensor in the trainer's memory, e.g. {{.name = "wte", .shape = {V, C}}, wte}.
//
// A tensor with `derived_from` is the rounded copy of its master. A load makes the one from the
// other where a checkpoint has only one of them. A save sets `alias_of` of tied tensors itself, and
// ignores what was there. A rank that holds several shards of a tensor lists each of them under its
// name. Their layouts have no element in common, and they agree on dtype, role and derived_from. A
// load fills what the layout says from whatever shards the checkpoint has.
struct StateTensor : TensorSpec {
  void* data = nullptr;  // the trainer's; AsyncCheckpointer says how long it must stay
  // The device in whose memory `data` lies, dense; see varve/cuda.h.
  int device = kHost;
  std::vector<int64_t> strides{};  // elements; empty = dense row-major
};

// Opaque bytes, up to 64 MiB: the state of a data loader, a pickled object.
struct StateItem {
  std::string name;
  std::optional<uint32_t> rank;  // unset: of the whole job
  std::vector<std::byte> value;
};

// Two tensors of equal data, dtype, shape and strides are tied: staged and stored once, and a load
// gives both the same values or fails. Tensors whose contents have diverged are two.
struct TrainingState {
  std::vector<StateTensor> tensors;
  std::vector<StateItem> items;
  TrainerProgress trainer;
  std::optional<Topology> topology;  // of the ranks; saved, and compared by a load, not replaced
  std::map<std::string, double> metrics;  // of this step; not loaded
  std::vector<std::string> tags;          // that will name this step; not loaded
};

}  // namespace varve
