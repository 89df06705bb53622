// SPDX-License-Identifier: Apache-2.0
//
// How much of a checkpoint is shared with the one before it, by group of tensors. Functions are
// stateless.
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

namespace varve::cli {

// Raw bytes of one checkpoint, on average over those that were looked at.
struct GroupSharing {
  std::string name;
  uint64_t bytes = 0;      // of all its tensors
  uint64_t new_bytes = 0;  // in chunks that differ from those of the step before, or of new tensors
};

struct Sharing {
  std::vector<GroupSharing> groups;  // by falling bytes
  uint64_t num_checkpoints = 0;      // looked at
};

// Compares checkpoints with the step before in their run. Cheap: it reads records, no tensor, and
// of at most 16 checkpoints, spread evenly. With not one pair of steps the newest counts as all
// new. A step that is dropped meanwhile is left out.
Result<Sharing> MeasureSharing(const Store& store);

struct TensorSharing {
  uint64_t bytes = 0;
  uint64_t new_bytes = 0;
};
// Gathers tensors by the first components of their names (which '.' and '/' part): as many, up to
// three, as leave at most `max_groups` groups. With one component and still too many, the smallest
// become "(others)".
std::vector<GroupSharing> GroupByName(const std::map<std::string, TensorSharing>& tensors,
                                      size_t max_groups);

}  // namespace varve::cli
