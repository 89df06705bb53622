// SPDX-License-Identifier: Apache-2.0
//
// What the tensors of a checkpoint take in their store. Functions are stateless.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/read/sharded_reader.h"

namespace varve::internal {

// Encoded bytes of the frames that hold the chunks of tensors. The frames that these are deltas of
// do not count. A chunk that is the rounded copy of another tensor's counts there alone.
struct StoredSizes {
  std::map<std::string, uint64_t> by_tensor;  // without those that cannot be read
  uint64_t total = 0;                         // a frame that several tensors name counts once
  std::vector<std::string> errors;            // one for each tensor that cannot be read
};

// Measures the tensors whose names match `glob`. It reads their lists of chunks, but no chunk.
Result<StoredSizes> MeasureStored(const ShardedReader& reader, std::string_view glob);

}  // namespace varve::internal
