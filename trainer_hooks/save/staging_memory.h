// SPDX-License-Identifier: Apache-2.0
//
// One region of memory. Any thread fills it, from its start on. It is emptied as a whole, and given
// back to the system when asked. Pages are taken as they are written to, or all at once by Prewarm.
// Thread rule: any thread may call Take. One thread calls the rest, while no other thread is in
// Take.
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

  // Makes the region `bytes` large, and empty. kUnavailable: the system does not have that much
  // address space.
  Status Resize(uint64_t bytes);
  // Takes all pages of the region from the system.
  void Prewarm();
  // Empties the region. Its pages stay.
  void Clear() { used_ = 0; }
  // Gives all pages back.
  void Release();

  // Returns memory for `bytes`. It is empty if there is no room.
  std::span<std::byte> Take(uint64_t bytes);
  // Returns how many bytes of the region such a Take uses.
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

// Returns half of the memory that this process could still take without anything being swapped out.
// The limits of the machine and of its control group count.
uint64_t HalfOfFreeMemory();

}  // namespace varve::internal
