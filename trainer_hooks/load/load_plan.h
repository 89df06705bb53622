// SPDX-License-Identifier: Apache-2.0
//
// What a load will do, decided from names, shapes and dtypes alone: which place of the target's
// memory is filled from which tensor of the checkpoint, and everything that does not fit. No data
// is read and nothing is changed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/shards/strides.h"
#include "varve/load.h"

namespace varve {

// A tensor of the target with what follows from its shape.
struct LoadTarget {
  const StateTensor* tensor;
  Strides strides;
  int64_t elements;
  uint64_t bytes;
};

// What a tensor of the target holds of its global tensor.
ShardLayout LayoutOf(const StateTensor& tensor);

// A tensor of the checkpoint fills one place; of tied targets only the first is named.
struct Fill {
  LoadTarget target;
  const TensorInfo* source;
};

// A master that is made from its weight, when that has been filled.
struct MasterFill {
  LoadTarget weight;
  LoadTarget master;
};

// Two tensors of the checkpoint that go to one place, and so must be equal there.
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
  std::vector<std::string> faults;  // each names tensor, found and expected
  LoadReport report;                // numbers and names
};

// Whether the plan depends on roles and masters of tensors of the checkpoint, which an outline may
// not tell: what the target lacks may be left out by its role, and what the checkpoint lacks may be
// made from what says that it is derived from it.
bool NeedsDetails(std::span<const TensorInfo> outline, const LoadOptions& options,
                  const TrainingState& into);

// `stored`, all tensors of the checkpoint as List gives them, with details if they are needed, of
// those of single ranks only this rank's (FitRankTensors), and `into` must outlive the plan.
LoadPlan PlanLoad(std::span<const TensorInfo> stored, const LoadOptions& options,
                  const TrainingState& into);

}  // namespace varve
