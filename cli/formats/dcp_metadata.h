// SPDX-License-Identifier: Apache-2.0
//
// The `.metadata` of a folder of torch.distributed.checkpoint (DCP): which chunks make each tensor,
// and in which file each chunk and each value lies. It is a pickle, read as data. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/torch_types.h"
#include "varve/result.h"

namespace varve::internal::formats {

// A range of bytes in a file of the folder.
struct DcpPlace {
  std::string file;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Lengths and offsets are in elements of torch.
struct DcpChunk : DcpPlace {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
};

struct DcpTensor {
  std::string name;
  const TorchType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;  // each lies within the shape
};

// A value that is no tensor, as the bytes that DCP pickled.
struct DcpValue : DcpPlace {
  std::string name;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;
  std::vector<DcpValue> values;
  std::string planner_json;  // what DCP's planner wants back, as python/varve/torch/_trees.py says
};

// Reads it. kInvalidArgument names the offset, what was found and what was expected: a pickle with
// anything else than DCP's own classes, a chunk without a place, or one outside of its tensor.
Result<DcpMetadata> ParseDcpMetadata(std::span<const std::byte> bytes);

}  // namespace varve::internal::formats
