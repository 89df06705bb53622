// SPDX-License-Identifier: Apache-2.0
//
// A part of a tensor that is digested, compared and moved as one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::internal::gpu {

struct DeviceChunk {
  const std::byte* data = nullptr;  // on the device, with any alignment
  uint64_t bytes = 0;
  std::byte* copy =
      nullptr;  // where on the device it is copied to, a multiple of 16. Null = it is not copied
};

// XXH3 has another algorithm for shorter chunks, which is left to the host.
inline constexpr uint64_t kMinDigestBytes = 241;

}  // namespace varve::internal::gpu
