// SPDX-License-Identifier: Apache-2.0
#include "store/save/chunk_source.h"

namespace varve::internal {

namespace {

constexpr uint32_t kElementsPerChunk = 262144;
constexpr uint32_t kByteElementsPerChunk = uint32_t{1} << 20;

}  // namespace

uint32_t ElementsPerChunk(DType dtype) {
  // Weights, masters and moments are cut at the same elements whatever their type.
  // Tensors of plain bytes (data, masks) have no such partner, and are cut at 1 MiB.
  const bool bytes = dtype == DType::kU8 || dtype == DType::kI8 || dtype == DType::kBool;
  return bytes ? kByteElementsPerChunk : kElementsPerChunk;
}

}  // namespace varve::internal
