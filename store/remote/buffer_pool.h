// SPDX-License-Identifier: Apache-2.0
//
// Buffers of some megabytes for bytes that are fetched and copied on. New memory of this size costs
// more than the copy, so those that are given back are used again. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/reused_memory.h"

namespace varve::internal {

class BufferPool {
 public:
  // One that was taken. It goes back to the pool, which must outlive it.
  class Buffer {
   public:
    explicit Buffer(BufferPool* pool) : pool_(pool), memory_(pool->Take()) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { pool_->Give(std::move(memory_)); }
    std::span<std::byte> Resize(size_t bytes) { return memory_.Resize(bytes); }

   private:
    BufferPool* const pool_;
    ReusedBuffer memory_;
  };

 private:
  static constexpr size_t kMaxKept = 4;

  ReusedBuffer Take() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return {};
    ReusedBuffer memory = std::move(kept_.back());
    kept_.pop_back();
    return memory;
  }
  void Give(ReusedBuffer memory) {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kMaxKept) kept_.push_back(std::move(memory));
  }

  std::mutex mutex_;
  std::vector<ReusedBuffer> kept_;  // guarded by mutex_
};

}  // namespace varve::internal
