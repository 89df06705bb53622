// SPDX-License-Identifier: Apache-2.0
//
// Measures how much of a checkpoint is shared with the one before it, by group of tensors.
// Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve {
class Store;
}

namespace varve::internal::cli {

// Raw bytes of one checkpoint: the mean over the checkpoints that were looked at.
struct GroupSharing {
  std::string name;
  uint64_t bytes = 0;      // of all its tensors
  uint64_t new_bytes = 0;  // of new tensors, and of chunks that differ from the step before
};

struct Sharing {
  std::vector<GroupSharing> groups;  // by falling bytes
  uint64_t num_checkpoints = 0;      // looked at
};

// Compares checkpoints with the step before in their run. It is cheap: it reads records but no
// tensor, and looks at no more than 16 checkpoints, spread evenly. If there is no pair of steps,
// the newest counts as all new. A step that is dropped meanwhile is left out.
Result<Sharing> MeasureSharing(const Store& store);

struct TensorSharing {
  uint64_t bytes = 0;
  uint64_t new_bytes = 0;
};
// Groups tensors by the first components of their names, which '.' and '/' part. It uses as many
// components, up to three, as give at most `max_groups` groups. If one component still gives too
// many, the smallest groups become "(others)".
std::vector<GroupSharing> GroupByName(const std::map<std::string, TensorSharing>& tensors,
                                      size_t max_groups);

}  // namespace varve::internal::cli
