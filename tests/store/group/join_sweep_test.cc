// SPDX-License-Identifier: Apache-2.0
//
// What a rank finds to sweep when it joins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/group/group_store.h"
#include "tests/store/store_fixture.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

// A rank, alone.
class JoinSweepTest : public ::testing::Test {
 protected:
  void TearDown() override {
    const auto check = Store::OpenForReading(root())->get()->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
  }
  std::filesystem::path root() const { return folder_.path() / "root"; }
  std::unique_ptr<GroupStore> Join() {
    const uint64_t epoch = Group::StartEpoch(root(), 1).value();
    return GroupStore::Join(root(), {.rank = 0, .epoch = epoch}).value();
  }

 private:
  TempFolder folder_;
};

TEST_F(JoinSweepTest, TakesABoundedPartAndLeavesTheRestToItsThread) {
  constexpr uint64_t kSteps = 3 * kDropsARound;
  {
    const auto store = Join();
    std::vector<CheckpointId> old;
    for (uint64_t step = 0; step < kSteps; ++step) {
      const TestTensor tensor = NormalTensor("t", {10}, step);
      const auto writer = store->Begin(step, {}).value();
      VARVE_ASSERT_OK(writer->Put(tensor.view()));
      VARVE_ASSERT_OK(writer->Commit().status());
      if (step + 1 < kSteps) old.push_back({"main", step});
    }
    // The member is locked, so the command leaves it to its rank.
    VARVE_ASSERT_OK(Store::Open(root()).value()->Drop(old, {}).status());
  }
  {
    const uint64_t epoch = Group::StartEpoch(root(), 1).value();
    const auto log = GroupStore::OpenPath(root(), {}, /*for_writing=*/true).value();
    const OwnMember own = AdoptMember(log->place(), {.rank = 0, .epoch = epoch}).value();
    EXPECT_FALSE(own.is_swept);
    EXPECT_EQ(HeldAttempts(*own.store)->size(), kSteps - kDropsARound);
  }
  const auto store = Join();
  store->AwaitSweep();
  EXPECT_EQ(HeldAttempts(*store->own_member())->size(), 1u);
}

}  // namespace
}  // namespace varve::internal::testing
