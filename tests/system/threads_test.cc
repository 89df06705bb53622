// SPDX-License-Identifier: Apache-2.0
//
// One store handle, many threads: savers of several runs, a dropper, readers, and the calls that
// look at everything. It is meant for the thread sanitizer, but the bits are checked in any case.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/step_content.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kSteps = 30;
constexpr uint64_t kKeep = 5;
constexpr ContentPlan kPlan{
    .seed = 61, .num_tensors = 7, .max_tensor_bytes = uint64_t{300} << 10, .period = 2};

void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

class ThreadsTest : public ::testing::Test {
 protected:
  // Uses one worker. The thread sanitizer does not see the hand-overs between TBB's workers, and
  // would take each for a race. It shall judge the threads of this test.
  void SetUp() override {
    CreateOptions options;
    options.store.num_threads = 1;
    auto store = Store::Create(folder_.path() / "store", options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }

  void TearDown() override {
    const auto check = store_->Check({.read_data = true, .progress = {}});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_TRUE(check->ok()) << check->errors.front();
  }

  // Saves the steps of one run and drops all but the newest of them on the way.
  void SaveAndDrop(const std::string& run) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      ExpectOk(SaveContent(store_.get(), kPlan, step, step, {.run = run, .parent = {}}).status());
      if (step < kKeep) continue;
      const CheckpointId old{run, step - kKeep};
      ExpectOk(store_->Drop({&old, 1}).status());
    }
  }

  // A step may be dropped while it is read. Nothing else may go wrong.
  void ReadNewest(const std::string& run) {
    const auto newest = store_->LatestStep(run);
    if (newest.status().code() == StatusCode::kNotFound) return;
    ASSERT_TRUE(newest.ok()) << newest.status().ToString();
    if (!newest->has_value()) return;
    const auto reader = store_->OpenCheckpoint(run, **newest);
    const Status status = reader.ok() ? VerifyContent(**reader, kPlan) : reader.status();
    if (status.ok()) ++whole_;
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << status.ToString();
  }

  void LookAround() {
    ExpectOk(store_->ListRuns().status());
    ExpectOk(store_->Stats().status());
    const auto check = store_->Check();
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_TRUE(check->ok()) << check->errors.front();
  }

  // Calls `work` again and again in a thread of its own until the savers are done.
  std::thread Meanwhile(std::function<void()> work) {
    return std::thread([this, work = std::move(work)] {
      while (!done_) work();
    });
  }

  const TempFolder folder_;
  std::unique_ptr<Store> store_;
  std::atomic<bool> done_ = false;
  std::atomic<int> whole_ = 0;
};

TEST_F(ThreadsTest, SaveReadDropAndCheckOnOneHandle) {
  std::vector<std::thread> savers;
  for (const char* run : {"a", "b"}) savers.emplace_back([this, run] { SaveAndDrop(run); });
  std::vector<std::thread> others;
  for (const char* run : {"a", "b"}) others.push_back(Meanwhile([this, run] { ReadNewest(run); }));
  others.push_back(Meanwhile([this] { ExpectOk(store_->Reclaim({.all = true}).status()); }));
  others.push_back(Meanwhile([this] { LookAround(); }));
  for (std::thread& saver : savers) saver.join();
  done_ = true;
  for (std::thread& other : others) other.join();
  EXPECT_GT(whole_, 0);
  for (const char* run : {"a", "b"}) {
    EXPECT_EQ(store_->ListCheckpoints(run).value().size(), kKeep);
  }
}

TEST_F(ThreadsTest, OfTwoWritersOfOneStepOneWins) {
  constexpr int kThreads = 4;
  for (uint64_t step = 0; step < 5; ++step) {
    std::atomic<int> saved = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const uint64_t content = step * kThreads + static_cast<uint64_t>(i);
        const auto report = SaveContent(store_.get(), kPlan, step, content);
        if (report.ok()) ++saved;
        EXPECT_TRUE(report.ok() || report.status().code() == StatusCode::kAlreadyExists)
            << report.status().ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(saved, 1);
    const auto reader = store_->OpenCheckpoint("main", step);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    ExpectOk(VerifyContent(**reader, kPlan));
  }
}

}  // namespace
}  // namespace varve::internal::testing
