// SPDX-License-Identifier: Apache-2.0
//
// TrainingState describes the state of a training: tensors, which stay in the trainer's own memory,
// and values such as the step. The hooks save it and load into it.
//
//   varve::TrainingState state;
//   state.tensors.push_back({{.name = "model.wte", .dtype = varve::DType::kBF16, .shape = {V, C},
//                             .role = varve::TensorRole::kParameter,
//                             .derived_from = "master.wte"}, wte});
//   state.tensors.push_back({{.name = "exp_avg.wte", .shape = {V, C},
//                             .role = varve::TensorRole::kOptimizer}, exp_avg});
//   state.items.push_back(varve::ItemOf("loader", &loader_position));
//   state.trainer.global_step = step;
//
// Name optimizer state after its parameter, never by an index, so that the order of parameters may
// change. A tensor of optimizer state may have another shape than its parameter. A trainer without
// optimizer state lists none.
//
// Thread rule: all types are plain values. One thread at a time uses an object.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/optimizer_step.h"
#include "varve/shard_layout.h"
#include "varve/state_item.h"
#include "varve/tensor.h"
#include "varve/trainer_progress.h"

namespace varve {

// A tensor in the trainer's memory:
//
//   state.tensors.push_back({{.name = "wte", .shape = {V, C}}, wte});
//
// A tensor with `derived_from` is the rounded copy of its master. If a checkpoint has only one of
// the two, a load makes the other one from it. A save ignores `alias_of`, and finds tied tensors
// itself. A rank that holds several shards of a tensor lists each of them under the tensor's name.
// These shards must not overlap, and must agree on dtype, role and derived_from. `layout` says
// which part of the global tensor is in `data`. A load reads this part from the shards of the
// checkpoint that hold it, however they are cut.
struct StateTensor : TensorSpec {
  // The first element. The trainer owns the memory. AsyncCheckpointer says how long it must stay
  // valid and unchanged.
  void* data = nullptr;
  // The device in whose memory `data` lies (varve/cuda.h). A tensor on a device must be dense.
  int device = kHost;
  std::vector<int64_t> strides{};  // in elements. Empty = dense row-major
};

// Two tensors are tied when their data pointers, dtypes, shapes, strides, layouts and devices are
// equal. A save stages and stores tied tensors once. A load gives them the same values, and fails
// if the checkpoint has different ones.
struct TrainingState {
  std::vector<StateTensor> tensors;
  std::vector<StateItem> items;
  TrainerProgress trainer;
  // How the ranks are laid out. A load compares it with the checkpoint's, and does not replace it.
  std::optional<Topology> topology;
  // The metrics of the step that is saved, and the tags that will name it. Neither a load nor a
  // save changes them. Clear `tags` after AfterStep, or the next save moves them to its step.
  std::map<std::string, double> metrics;
  std::vector<std::string> tags;
  // What the optimizer did in its last step. Set it anew after each step. A save of this step then
  // stores little more than the gradients (varve/optimizer_step.h). The optimizer step has an
  // effect only if the last save or Restore was of the step directly before this one. At a step
  // that RetentionPolicy::keep_every keeps, it is ignored, unless keep_every is 1. With many ranks,
  // give an optimizer step to each save or to none. If only some saves get one, replicas of moments
  // may move to other ranks, which store them anew.
  std::shared_ptr<const OptimizerStep> optimizer_step;
};

}  // namespace varve
