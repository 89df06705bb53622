// SPDX-License-Identifier: Apache-2.0
//
// A part of a tensor that is digested, compared and moved as one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::gpu {

struct DeviceChunk {
  const std::byte* data = nullptr;  // on the device, of any alignment
  uint64_t bytes = 0;
  std::byte* copy =
      nullptr;  // where on the device it is copied to, a multiple of 16; null = nowhere
};

// Shorter chunks have another algorithm of XXH3, which is left to the host.
inline constexpr uint64_t kMinDigestBytes = 241;

}  // namespace varve::gpu
