// SPDX-License-Identifier: Apache-2.0
//
// The objects that handles name, and the values that several of them share. The order of the
// members matters: what uses a store is destroyed before it.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capi/handles.h"
#include "varve/c.h"
#include "varve/flags.h"
#include "varve/store.h"
#include "varve/training_state.h"

namespace varve::internal::capi {

struct StoreObject : Object {
  static constexpr const char* kKind = "store";
  const char* kind() const override { return kKind; }
  std::unique_ptr<Store> store;
};

struct FlagsObject : Object {
  static constexpr const char* kKind = "flags";
  const char* kind() const override { return kKind; }
  CheckpointFlags flags;
};

// What a varve_step_info points to. It stays where it is.
class StepText {
 public:
  explicit StepText(CheckpointInfo info);
  StepText(const StepText&) = delete;
  StepText& operator=(const StepText&) = delete;
  varve_step_info View() const;

 private:
  const CheckpointInfo info_;
  std::vector<varve_metric> metrics_;
  std::vector<const char*> tags_;
};

struct StateObject : Object {
  static constexpr const char* kKind = "state";
  const char* kind() const override { return kKind; }
  TrainingState state;
};

// Checks a tensor of the caller and copies what describes it.
struct TensorArgument {
  TensorSpec spec;
  std::vector<int64_t> strides;
  void* data = nullptr;
};
Result<TensorArgument> ReadTensor(const varve_tensor* tensor);

// Sets the fields of a varve_progress and leaves the others.
Status ReadProgress(const varve_progress* from, TrainerProgress* to);
varve_progress ViewProgress(const TrainerProgress& progress);

}  // namespace varve::internal::capi
