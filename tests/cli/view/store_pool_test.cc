// SPDX-License-Identifier: Apache-2.0
#include "cli/view/store_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "store/read/sharded_reader.h"
#include "tests/support/temp_folder.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using ::testing::IsEmpty;

constexpr size_t kMaxStores = 3;

class StorePoolTest : public ::testing::Test {
 protected:
  using Taken = std::shared_ptr<const Store>;

  void SetUp() override {
    auto store = Store::Create(folder_.path() / "store");
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    writer_ = *std::move(store);
    Save(1);
  }
  void TearDown() override {
    const auto report = writer_->Check({.read_data = true});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->errors, IsEmpty());
  }

  void Save(uint64_t step) {
    auto save = writer_->Begin(step);
    ASSERT_TRUE(save.ok()) << save.status().ToString();
    ASSERT_TRUE((*save)->Commit().ok());
  }
  Taken Take(bool holds_state) {
    auto store = pool_.Take(holds_state);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *store : nullptr;
  }
  // Calls `during` while `store` shows one state.
  static void WhileItHoldsItsState(const Store& store, const std::function<void()>& during) {
    const auto reader = ShardedReader::Open(store, "main", 1);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    const Status status = (*reader)->WithFrozenView([&] {
      during();
      return Status::Ok();
    });
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void ExpectNewest(const Store& store, uint64_t step) {
    const auto newest = store.LatestStep("main");
    ASSERT_TRUE(newest.ok()) << newest.status().ToString();
    EXPECT_EQ(*newest, step);
  }

  testing::TempFolder folder_;
  std::unique_ptr<Store> writer_;
  size_t num_opened_ = 0;
  StorePool pool_{kMaxStores, [this] {
                    ++num_opened_;
                    return Store::OpenForReading(folder_.path() / "store");
                  }};
};

TEST_F(StorePoolTest, OneStoreDoesWhileNobodyHoldsAState) {
  const Taken one = Take(false);
  for (uint64_t step = 2; step < 5; ++step) {
    Save(step);
    ExpectNewest(*Take(false), step);
    ExpectNewest(*Take(true), step);
  }
  EXPECT_EQ(num_opened_, 1);
}

TEST_F(StorePoolTest, WhoeverComesLaterSeesWhatWasCommittedMeanwhile) {
  const Taken held = Take(true);
  WhileItHoldsItsState(*held, [&] {
    Save(2);
    ExpectNewest(*Take(false), 2);
    const Taken other = Take(true);
    WhileItHoldsItsState(*other, [&] {
      Save(3);
      ExpectNewest(*Take(false), 3);
    });
  });
  EXPECT_EQ(num_opened_, 3);
}

TEST_F(StorePoolTest, NoMoreStoresAreOpenThanMayBe) {
  std::vector<Taken> held = {Take(true), Take(true)};
  ExpectNewest(*Take(false), 1);
  EXPECT_EQ(num_opened_, kMaxStores);
  auto next = std::async(std::launch::async, [&] { return Take(true); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  Save(2);
  ExpectNewest(*Take(false), 2);  // it does not wait
  held.pop_back();
  ExpectNewest(*next.get(), 2);
  EXPECT_EQ(num_opened_, kMaxStores);
}

TEST_F(StorePoolTest, WithoutRoomForAnotherStoreItWaits) {
  std::atomic<int> left{1};
  StorePool pool(kMaxStores, [&]() -> Result<std::unique_ptr<Store>> {
    if (left-- <= 0) return Status::IOError("no descriptors");
    return Store::OpenForReading(folder_.path() / "store");
  });
  auto held = pool.Take(true);
  ASSERT_TRUE(held.ok()) << held.status().ToString();
  for (const bool holds_state : {false, true}) {
    auto next = std::async(std::launch::async, [&] { return pool.Take(holds_state); });
    EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    held = Status::NotFound("released");
    held = next.get();
    ASSERT_TRUE(held.ok()) << held.status().ToString();
    if (!holds_state) held = pool.Take(true);
  }
}

TEST_F(StorePoolTest, AStoreThatCannotBeOpenedIsAnErrorOnce) {
  bool fails = true;
  StorePool pool(kMaxStores, [&]() -> Result<std::unique_ptr<Store>> {
    if (fails) return Status::IOError("no descriptors");
    return Store::OpenForReading(folder_.path() / "store");
  });
  EXPECT_EQ(pool.Take(false).status().code(), StatusCode::kIOError);
  EXPECT_EQ(pool.Take(true).status().code(), StatusCode::kIOError);
  fails = false;
  EXPECT_TRUE(pool.Take(true).ok());
}

}  // namespace
}  // namespace varve::internal::cli
