// SPDX-License-Identifier: Apache-2.0
//
// Shards by the plainest means, one element at a time: what tests compare the arithmetic with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "varve/shard_layout.h"

namespace varve::internal::testing {

inline constexpr int64_t kPaddingPlace = -1;

// Returns the place of each local element in the global tensor (row-major), and kPaddingPlace for
// padding.
inline std::vector<int64_t> PlacesOf(const ShardLayout& layout) {
  std::vector<int64_t> places{0};
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t place : places) {
      for (const Segment& segment : layout.axes[axis]) {
        for (int64_t i = 0; i < segment.length; ++i) {
          const bool padding = place == kPaddingPlace || segment.is_padding;
          next.push_back(padding ? kPaddingPlace
                                 : place * layout.global_shape[axis] + segment.begin + i);
        }
      }
    }
    places = std::move(next);
  }
  if (!layout.flat.has_value()) return places;
  std::vector<int64_t> flat;
  for (int64_t i = layout.flat->begin; i < layout.flat->end; ++i) {
    flat.push_back(i < static_cast<int64_t>(places.size()) ? places[static_cast<size_t>(i)]
                                                           : kPaddingPlace);
  }
  return flat;
}

// Returns the bytes of a shard, cut out of those of the global tensor. Padding gets `padding` in
// each byte.
inline std::vector<std::byte> CutShard(const std::vector<std::byte>& global, size_t element_bytes,
                                       const ShardLayout& layout, std::byte padding) {
  const std::vector<int64_t> places = PlacesOf(layout);
  std::vector<std::byte> local(places.size() * element_bytes, padding);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] == kPaddingPlace) continue;
    std::memcpy(&local[i * element_bytes], &global[static_cast<size_t>(places[i]) * element_bytes],
                element_bytes);
  }
  return local;
}

}  // namespace varve::internal::testing
