// SPDX-License-Identifier: Apache-2.0
#include "cli/view/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>

#include "varve/stop.h"

namespace varve::internal::cli {
namespace {

Result<int> Make(int value) { return value; }

TEST(CacheTest, WhatIsKeptIsMadeOnce) {
  Cache<int> cache(2);
  int times = 0;
  for (int i = 0; i < 3; ++i) {
    const auto kept = cache.Get("a", [&] { return Make(++times); });
    ASSERT_TRUE(kept.ok());
    EXPECT_EQ(**kept, 1);
  }
}

TEST(CacheTest, TheOldestGoes) {
  Cache<int> cache(2);
  for (const char* key : {"a", "b", "a", "c"})
    ASSERT_TRUE(cache.Get(key, [] { return Make(1); }).ok());
  EXPECT_EQ(**cache.Get("a", [] { return Make(2); }), 1);
  EXPECT_EQ(**cache.Get("b", [] { return Make(2); }), 2);
}

TEST(CacheTest, AnErrorIsNotKept) {
  Cache<int> cache(2);
  const auto failed =
      cache.Get("a", []() -> Result<int> { return Status::NotFound("nothing there"); });
  EXPECT_EQ(failed.status().code(), StatusCode::kNotFound);
  const auto thrown = cache.Get("a", []() -> Result<int> { throw std::runtime_error("thrown"); });
  EXPECT_EQ(thrown.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(**cache.Get("a", [] { return Make(3); }), 3);
}

TEST(CacheTest, WhatTakesLongStopsNobodyElse) {
  Cache<int> cache(4);
  ASSERT_TRUE(cache.Get("kept", [] { return Make(1); }).ok());
  std::latch started(1), may_end(1);
  std::atomic<int> times{0};
  const auto slow = [&] {
    ++times;
    started.count_down();
    may_end.wait();
    return Make(7);
  };
  std::jthread maker([&] { EXPECT_EQ(**cache.Get("slow", slow), 7); });
  started.wait();
  std::jthread waiter([&] { EXPECT_EQ(**cache.Get("slow", slow), 7); });
  EXPECT_EQ(**cache.Get("kept", [] { return Make(2); }), 1);
  EXPECT_EQ(**cache.Get("other", [] { return Make(3); }), 3);
  may_end.count_down();
  maker.join();
  waiter.join();
  EXPECT_EQ(times, 1);
}

TEST(CacheTest, WhoWaitsMakesItIfTheMakerIsStopped) {
  Cache<int> cache(2);
  std::latch started(1), may_end(1);
  std::jthread maker([&] {
    const auto stopped = cache.Get("a", [&]() -> Result<int> {
      started.count_down();
      may_end.wait();
      return Status::Aborted("stopped");
    });
    EXPECT_EQ(stopped.status().code(), StatusCode::kAborted);
  });
  started.wait();
  std::jthread waiter([&] { EXPECT_EQ(**cache.Get("a", [] { return Make(2); }), 2); });
  may_end.count_down();
}

TEST(CacheTest, WhoIsStoppedDoesNotMakeIt) {
  Cache<int> cache(2);
  const std::atomic<bool> stop{true};
  const StopScope scope(&stop);
  std::latch started(1), may_end(1);
  std::jthread maker([&] {
    cache
        .Get("a",
             [&]() -> Result<int> {
               started.count_down();
               may_end.wait();
               return Status::Aborted("stopped");
             })
        .status()
        .IgnoreError();
  });
  started.wait();
  std::jthread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    may_end.count_down();
  });
  int times = 0;
  const auto got = cache.Get("a", [&]() -> Result<int> {  // only if the other maker has ended
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    return Make(++times);
  });
  EXPECT_EQ(got.status().code(), StatusCode::kAborted);
  EXPECT_EQ(times, 0);
}

}  // namespace
}  // namespace varve::internal::cli
