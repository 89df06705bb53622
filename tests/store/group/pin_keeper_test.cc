// SPDX-License-Identifier: Apache-2.0
//
// Pins of readers that stay open for longer than a pin lives.
#include "store/group/pin_keeper.h"

#include "store/format/group_file.h"
#include "store/group/posix_record_log.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kLife = PinKeeper::kSavesInALife;  // of a group of one rank

class PinKeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Append({{}, EpochRecord{1, 1, 1}});
    Append({rank_, OwnRecord{"host"}});
    Append({rank_, BeginRecord{1, 1, step_.id, 0, OnExisting::kError}});
    Append({rank_, PreparedRecord{1, {.member = rank_.member}}});
    Append({rank_, CommitRecord{.attempt = 1, .catalogue = {}, .metrics = {}, .tags = {}}});
  }

  void Append(const GroupRecord& record) {
    bool done = false;
    VARVE_ASSERT_OK(log_.Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
      if (std::exchange(done, true)) return std::optional<GroupRecord>();
      return std::optional(record);
    }));
  }
  // Appends as ranks do that go on saving.
  void AppendMany(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) Append({{}, UntagRecord{"main", "none"}});
  }
  void DropTheStep() { Append({{}, DropRecord{{step_}}}); }
  bool IsThere() {
    return log_.With([](const GroupState& state) { return state.FindAttempt(1) != nullptr; });
  }
  size_t NumPins() {
    return log_.With([](const GroupState& state) { return state.pins.size(); });
  }

  const TempFolder folder_;
  const Author rank_{1, 0, 11};
  const NamedAttempt step_{{"main", 10}, 1};
  GroupLog log_{MakePosixRecordLog(LogFolder(folder_.path())),
                CreateOrReadGroup(folder_.path()).value().digest_seed};
};

TEST_F(PinKeeperTest, APinIsRenewedWhileItIsHeld) {
  PinKeeper keeper(&log_, /*least_life=*/1);
  const auto ticket = keeper.Pin(1);
  ASSERT_TRUE(ticket.ok()) << ticket.status().ToString();
  DropTheStep();
  for (int i = 0; i < 8; ++i) {
    AppendMany(kLife / 3);
    keeper.RenewOld();
    EXPECT_EQ(NumPins(), 1u);
    ASSERT_TRUE(IsThere());
  }
  keeper.Unpin(*ticket);
  EXPECT_EQ(NumPins(), 0u);
  EXPECT_FALSE(IsThere());
}

TEST_F(PinKeeperTest, APinOfOneWhoDiedEnds) {
  {
    PinKeeper keeper(&log_, /*least_life=*/1);
    VARVE_ASSERT_OK(keeper.Pin(1).status());
  }
  DropTheStep();
  EXPECT_TRUE(IsThere());
  AppendMany(kLife);
  EXPECT_FALSE(IsThere());
}

TEST_F(PinKeeperTest, WhatIsGoneIsNotPinned) {
  PinKeeper keeper(&log_, /*least_life=*/1);
  DropTheStep();
  EXPECT_THAT(keeper.Pin(1), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_EQ(NumPins(), 0u);
}

}  // namespace
}  // namespace varve::internal::testing
