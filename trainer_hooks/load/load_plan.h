// SPDX-License-Identifier: Apache-2.0
//
// What a load will do, decided from names, shapes and dtypes alone. It says which tensor of the
// checkpoint fills which place of the target's memory, and lists everything that does not fit. It
// reads no data and changes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/shards/strides.h"
#include "varve/load.h"

namespace varve::internal {

// A tensor of the target with what follows from its shape.
struct LoadTarget {
  const StateTensor* tensor;
  Strides strides;
  int64_t elements;
  uint64_t bytes;
};

// A tensor of the checkpoint that fills one place. Only the first of tied targets is named.
struct Fill {
  LoadTarget target;
  const TensorInfo* source;
};

// A master that is made from its weight after the weight has been filled.
struct MasterFill {
  LoadTarget weight;
  LoadTarget master;
};

// Two tensors of the checkpoint that go to one place, so they must be equal there.
struct TieCheck {
  const StateTensor* first;
  const StateTensor* second;
  const TensorInfo* first_source;
  const TensorInfo* second_source;
};

struct LoadPlan {
  std::vector<Fill> fills;
  std::vector<MasterFill> masters;
  std::vector<TieCheck> ties;
  std::vector<std::string> faults;  // each names the tensor, what was found and what was expected
  LoadReport report;                // numbers and names
};

// True when the plan depends on roles and masters of tensors of the checkpoint, which an outline
// may not tell. What the target lacks may be left out by its role. What the checkpoint lacks may be
// made from a tensor that is derived from it.
bool NeedsDetails(std::span<const TensorInfo> outline, const LoadOptions& options,
                  const TrainingState& into);

// `stored` has all tensors of the checkpoint as List returns them, with details if they are needed.
// If single ranks have tensors of their own, `stored` has only those of this rank (FitRankTensors).
// `stored` and `into` must outlive the plan.
LoadPlan PlanLoad(std::span<const TensorInfo> stored, const LoadOptions& options,
                  const TrainingState& into);

}  // namespace varve::internal
