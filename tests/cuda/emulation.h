// SPDX-License-Identifier: Apache-2.0
//
// Runs device code on the CPU. Each thread of a block is a coroutine that runs until it waits for
// others. This tests without a GPU what a kernel computes and, under ASan, that it stays within its
// memory. It does not test races and speed.
//
// Include it before the .cuh under test. One block at a time on each thread of the host.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

namespace varve::internal::testing {

// A stack that can be left and come back to.
struct Coroutine {
  ucontext_t begin;  // of one that has not run yet
  bool has_begun = false;
  void* place[5];  // where it was left: swapcontext is slow, as it asks the kernel for signal masks
  // ASan needs it.
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;

  void Prepare(std::byte* new_stack, size_t bytes, void (*run)()) {
    getcontext(&begin);
    begin.uc_stack.ss_sp = new_stack;
    begin.uc_stack.ss_size = bytes;
    begin.uc_link = nullptr;
    makecontext(&begin, run, 0);
    stack = new_stack;
    stack_bytes = bytes;
  }
  // Switches from this coroutine, which runs, to another. Returns when another switches back. ASan
  // is told about the stacks. Its cleanup after a function that does not return would be slow.
  [[gnu::noinline, gnu::no_sanitize_address]] void SwitchTo(Coroutine* other) {
    has_begun = true;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack, other->stack, other->stack_bytes);
#endif
    if (__builtin_setjmp(place) == 0) other->Enter();
    HasEntered(nullptr);
  }
  // `main` learns of its stack when another one is entered from there.
  void HasEntered([[maybe_unused]] Coroutine* main) {
#if defined(__SANITIZE_ADDRESS__)
    const bool is_from_main = main != nullptr && main->stack == nullptr;
    __sanitizer_finish_switch_fiber(fake_stack, is_from_main ? &main->stack : nullptr,
                                    is_from_main ? &main->stack_bytes : nullptr);
#endif
  }

 private:
  [[noreturn, gnu::noinline, gnu::no_sanitize_address]] void Enter() {
    if (has_begun) __builtin_longjmp(place, 1);
    setcontext(&begin);
    std::abort();
  }
};

class EmulatedBlock {
 public:
  static constexpr unsigned kLanes = 32;

  // Runs `work` in `threads` threads, a multiple of 32.
  static void Run(int threads, const std::function<void()>& work) {
    EmulatedBlock block(static_cast<unsigned>(threads), work);
    current_ = &block;
    block.main_.SwitchTo(&block.threads_[0].coroutine);
    current_ = nullptr;
  }
  static EmulatedBlock& current() { return *current_; }

  unsigned running() const { return running_; }
  // Returns when all threads of the block have come. The next waits for the threads of one warp.
  void AwaitBlock() { Await(&barriers_.back(), static_cast<unsigned>(threads_.size())); }
  void AwaitWarp() { Await(&barriers_[running_ / kLanes], kLanes); }
  // Returns the value of lane `from` of the warp. Each lane must call it.
  uint64_t Exchange(uint64_t value, unsigned from) {
    // Two places in turn, so that nobody overwrites what others have still to read.
    Thread& thread = threads_[running_];
    const size_t place = thread.exchanges++ % 2;
    thread.given[place] = value;
    AwaitWarp();
    return threads_[running_ / kLanes * kLanes + from].given[place];
  }

 private:
  struct Barrier {
    unsigned arrived = 0;
    uint64_t round = 0;
  };
  struct Thread {
    Coroutine coroutine;
    bool is_done = false;
    const Barrier* awaited = nullptr;
    uint64_t round = 0;  // of `awaited`, which must end
    size_t exchanges = 0;
    uint64_t given[2];
    bool CanRun() const { return !is_done && (awaited == nullptr || awaited->round != round); }
  };
  static constexpr size_t kStackBytes = size_t{64} << 10;

  EmulatedBlock(unsigned threads, const std::function<void()>& work)
      : work_(work),
        stacks_(new std::byte[threads * kStackBytes]),
        threads_(threads),
        barriers_(threads / kLanes + 1) {
    for (size_t i = 0; i < threads; ++i) {
      threads_[i].coroutine.Prepare(&stacks_[i * kStackBytes], kStackBytes, &RunOne);
    }
  }

  static void RunOne() {
    EmulatedBlock& block = *current_;
    Thread& thread = block.threads_[block.running_];
    thread.coroutine.HasEntered(&block.main_);
    block.work_();
    thread.is_done = true;
    ++block.num_done_;
    block.RunNext();
  }
  void Await(Barrier* barrier, unsigned threads) {
    if (++barrier->arrived == threads) {
      barrier->arrived = 0;
      ++barrier->round;
      return;
    }
    Thread& thread = threads_[running_];
    thread.awaited = barrier;
    thread.round = barrier->round;
    RunNext();
  }
  // Any that can, or main when all are done.
  void RunNext() {
    Coroutine& left = threads_[running_].coroutine;
    if (num_done_ == threads_.size()) return left.SwitchTo(&main_);
    for (size_t i = 0; i < threads_.size(); ++i) {
      running_ = running_ + 1 == threads_.size() ? 0 : running_ + 1;
      if (threads_[running_].CanRun()) return left.SwitchTo(&threads_[running_].coroutine);
    }
    std::fputs("the threads of a block wait for each other\n", stderr);
    std::abort();
  }

  inline static thread_local EmulatedBlock* current_ = nullptr;

  const std::function<void()>& work_;
  const std::unique_ptr<std::byte[]> stacks_;
  Coroutine main_;
  std::vector<Thread> threads_;
  std::vector<Barrier> barriers_;  // of each warp, and of the block
  unsigned running_ = 0;
  size_t num_done_ = 0;
};

// threadIdx of the thread that runs.
struct EmulatedThreadIndex {
  struct X {
    // As CUDA's. NOLINTNEXTLINE(google-explicit-constructor)
    operator unsigned() const { return EmulatedBlock::current().running(); }
  } x;
};

}  // namespace varve::internal::testing

inline constexpr varve::internal::testing::EmulatedThreadIndex threadIdx;

inline uint64_t __shfl_sync(unsigned /*mask*/, uint64_t value, int from) {
  return varve::internal::testing::EmulatedBlock::current().Exchange(value,
                                                                     static_cast<unsigned>(from));
}
inline uint64_t __shfl_xor_sync(unsigned mask, uint64_t value, int lanes) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ lanes);
}
inline void __syncthreads() { varve::internal::testing::EmulatedBlock::current().AwaitBlock(); }
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
