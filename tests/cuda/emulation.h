// SPDX-License-Identifier: Apache-2.0
//
// Runs device code on the CPU: each thread of a block is a coroutine that runs until it waits for
// others. What a kernel computes, and under ASan that it stays within its memory, is so tested
// without a GPU; races and speed are not.
//
// Include it before the .cuh under test. One block at a time on each thread of the host.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __device__

struct ulonglong2 {
  alignas(16) uint64_t x;
  uint64_t y;
};

namespace varve::testing {

class EmulatedBlock {
 public:
  static constexpr int kLanes = 32;

  // Runs `work` in `threads` threads, a multiple of 32.
  static void Run(int threads, const std::function<void()>& work) {
    EmulatedBlock block(threads, work);
    current_ = &block;
    block.RunAll();
    current_ = nullptr;
  }
  static EmulatedBlock& current() { return *current_; }

  unsigned running() const { return running_; }
  // Returns when all threads have come; those of one warp.
  void AwaitBlock() { Await(&barriers_.back(), static_cast<int>(threads_.size())); }
  void AwaitWarp() { Await(&barriers_[running_ / kLanes], kLanes); }
  // A place for each lane of the warp that runs.
  uint64_t* values() { return &values_[running_ / kLanes * kLanes]; }

 private:
  struct Thread {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    void* fake_stack = nullptr;  // of ASan
    bool is_done = false;
  };
  struct Barrier {
    int arrived = 0;
    uint64_t round = 0;
  };
  static constexpr size_t kStackBytes = size_t{256} << 10;

  EmulatedBlock(int threads, const std::function<void()>& work)
      : work_(work),
        threads_(static_cast<size_t>(threads)),
        barriers_(static_cast<size_t>(threads / kLanes) + 1),
        values_(static_cast<size_t>(threads)) {}

  void RunAll() {
    for (Thread& thread : threads_) {
      getcontext(&thread.context);
      thread.stack = std::make_unique<std::byte[]>(kStackBytes);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStackBytes;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, &EmulatedBlock::RunOne, 0);
    }
    for (size_t left = threads_.size(); left > 0;) {
      for (running_ = 0; running_ < threads_.size(); ++running_) {
        Thread& thread = threads_[running_];
        if (thread.is_done) continue;
        Switch(&main_, &thread.context, &main_fake_stack_, thread.stack.get(), kStackBytes);
        if (thread.is_done) --left;
      }
    }
  }
  static void RunOne() {
    EmulatedBlock& block = *current_;
    block.HasSwitched(nullptr, true);
    block.work_();
    block.threads_[block.running_].is_done = true;
    block.Yield();
  }
  void Await(Barrier* barrier, int threads) {
    const uint64_t round = barrier->round;
    if (++barrier->arrived == threads) {
      barrier->arrived = 0;
      ++barrier->round;
    }
    while (barrier->round == round) Yield();
  }
  void Yield() {
    Thread& thread = threads_[running_];
    Switch(&thread.context, &main_, thread.is_done ? nullptr : &thread.fake_stack, main_stack_,
           main_stack_bytes_);
  }

#if defined(__SANITIZE_ADDRESS__)
  void Switch(ucontext_t* from, ucontext_t* to, void** save, const void* stack, size_t bytes) {
    __sanitizer_start_switch_fiber(save, stack, bytes);
    swapcontext(from, to);
    HasSwitched(save == nullptr ? nullptr : *save, save != &main_fake_stack_);
  }
  // A thread learns of the stack that it came from, which is main's.
  void HasSwitched(void* fake_stack, bool is_thread) {
    const void* stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    if (is_thread) main_stack_ = stack, main_stack_bytes_ = bytes;
  }
#else
  void Switch(ucontext_t* from, ucontext_t* to, void**, const void*, size_t) {
    swapcontext(from, to);
  }
  void HasSwitched(void*, bool) {}
#endif

  inline static thread_local EmulatedBlock* current_ = nullptr;

  const std::function<void()>& work_;
  std::vector<Thread> threads_;
  std::vector<Barrier> barriers_;  // of each warp, and of the block
  std::vector<uint64_t> values_;
  ucontext_t main_;
  void* main_fake_stack_ = nullptr;
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
  unsigned running_ = 0;
};

// threadIdx of the thread that runs.
struct EmulatedThreadIndex {
  struct X {
    operator unsigned() const { return EmulatedBlock::current().running(); }  // as CUDA's
  } x;
};

}  // namespace varve::testing

inline constexpr varve::testing::EmulatedThreadIndex threadIdx;

inline uint64_t __shfl_sync(unsigned /*mask*/, uint64_t value, int from) {
  auto& block = varve::testing::EmulatedBlock::current();
  block.values()[threadIdx.x % 32] = value;
  block.AwaitWarp();
  const uint64_t found = block.values()[from];
  block.AwaitWarp();
  return found;
}
inline uint64_t __shfl_xor_sync(unsigned mask, uint64_t value, int lanes) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ lanes);
}
inline void __syncthreads() { varve::testing::EmulatedBlock::current().AwaitBlock(); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using uint128 = unsigned __int128;
  return static_cast<uint64_t>(static_cast<uint128>(a) * b >> 64);
}
inline uint32_t atomicAdd(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  *to += value;
  return before;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
