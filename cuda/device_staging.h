// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device for chunks on their way to the host. It is filled from its start and emptied
// as a whole. Thread rule: one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/resources.h"
#include "varve/result.h"

namespace varve::internal::gpu {

class DeviceStaging {
 public:
  // Allocates it on the current device.
  static Result<DeviceStaging> Create(uint64_t bytes) {
    DeviceStaging staging;
    if (bytes == 0) return staging;
    VARVE_ASSIGN_OR_RETURN(staging.memory_, AllocateOnDevice<std::byte>(bytes));
    return staging;
  }

  uint64_t room() const { return memory_.size() - used_; }
  // Returns null when there is no room.
  std::byte* Take(uint64_t bytes) {
    if (bytes > room()) return nullptr;
    std::byte* const taken = memory_.data() + used_;
    used_ = std::min<uint64_t>(memory_.size(), used_ + (bytes + kLine - 1) / kLine * kLine);
    return taken;
  }
  // Frees all that was taken.
  void Clear() { used_ = 0; }
  uint64_t size() const { return memory_.size(); }

 private:
  static constexpr uint64_t kLine = 256;  // chunks of whole lines lie next to each other
  DeviceBuffer<std::byte> memory_;
  uint64_t used_ = 0;
};

}  // namespace varve::internal::gpu
