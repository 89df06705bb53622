// SPDX-License-Identifier: Apache-2.0
//
// One region of memory that is filled from its begin by any thread, emptied as a whole, and given
// back to the system when asked. Pages are taken as they are written to, or all at once by Prewarm.
// Thread rule: Take from any thread; all else by one thread while nobody takes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "varve/result.h"

namespace varve::internal {

class StagingMemory {
 public:
  StagingMemory() = default;
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Makes it `bytes` large, and empty. kUnavailable: the system has no such address space.
  Status Resize(uint64_t bytes);
  // Takes all of its pages from the system.
  void Prewarm();
  // Forgets what was taken; pages stay.
  void Clear() { used_ = 0; }
  // Gives all pages back.
  void Release();

  // Empty when there is no room.
  std::span<std::byte> Take(uint64_t bytes);
  // What a Take of so many bytes takes.
  static uint64_t Rounded(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  uint64_t room() const { return size_ - used_; }
  std::span<std::byte> all() const { return {data_, size_}; }
  uint64_t size() const { return size_; }

 private:
  static constexpr uint64_t kLine = 64;

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  bool is_warm_ = false;  // all pages are there
  std::atomic<uint64_t> used_{0};
};

// Half of the memory that this process could still take without anything being swapped out, by the
// machine and by its control group.
uint64_t HalfOfFreeMemory();

}  // namespace varve::internal
