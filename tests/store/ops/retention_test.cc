// SPDX-License-Identifier: Apache-2.0
#include "varve/retention.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CheckpointInfo Info(uint64_t step, int64_t seconds = 0) {
  CheckpointInfo info;
  info.id = {"main", step};
  info.created = std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
  return info;
}

std::vector<CheckpointInfo> Steps(const std::vector<uint64_t>& steps) {
  std::vector<CheckpointInfo> infos;
  for (const uint64_t step : steps) infos.push_back(Info(step));
  return infos;
}

std::vector<uint64_t> Kept(const RetentionPolicy& policy, std::span<const CheckpointInfo> infos) {
  std::vector<uint64_t> kept;
  const auto decisions = DecideRetention(policy, infos);
  EXPECT_TRUE(decisions.ok()) << decisions.status().ToString();
  for (const RetentionDecision& d : *decisions) {
    EXPECT_EQ(d.keep, !d.reasons.empty());
    if (d.keep) kept.push_back(d.id.step);
  }
  return kept;
}

TEST(RetentionTest, KeepsTheLastByNumber) {
  const auto infos = Steps({2, 9, 10, 999999, 1000001});
  EXPECT_THAT(Kept({.keep_last = 1}, infos), ElementsAre(1000001));
  EXPECT_THAT(Kept({.keep_last = 2}, infos), ElementsAre(999999, 1000001));
  EXPECT_THAT(Kept({.keep_last = 99}, infos), ElementsAre(2, 9, 10, 999999, 1000001));
}

TEST(RetentionTest, KeepsMultiples) {
  EXPECT_THAT(Kept({.keep_every = 10}, Steps({0, 5, 10, 19, 20})), ElementsAre(0, 10, 20));
}

TEST(RetentionTest, KeepsTheBestAndOfEqualOnesTheNewest) {
  auto infos = Steps({1, 2, 3, 4, 5});
  infos[0].metrics["loss"] = 2;
  infos[1].metrics["loss"] = 1;
  infos[2].metrics["loss"] = kNaN;
  infos[3].metrics["loss"] = 1;
  EXPECT_THAT(Kept({.keep_best = {{"loss"}}}, infos), ElementsAre(4));
  EXPECT_THAT(Kept({.keep_best = {{"loss", false, 2}}}, infos), ElementsAre(2, 4));
  EXPECT_THAT(Kept({.keep_best = {{"loss", true, 1}}}, infos), ElementsAre(1));
  EXPECT_THAT(Kept({.keep_best = {{"loss", false, 9}}}, infos), ElementsAre(1, 2, 4));
  EXPECT_EQ(FindBest(infos, "loss", false), 4);
  EXPECT_EQ(FindBest(infos, "accuracy", false), std::nullopt);
}

TEST(RetentionTest, KeepsWhatWasSavedShortlyBeforeTheNewest) {
  std::vector<CheckpointInfo> infos{Info(1, 100), Info(2, 150), Info(3, 200), Info(4, 190)};
  EXPECT_THAT(Kept({.keep_within = std::chrono::seconds(50)}, infos), ElementsAre(2, 3, 4));
  EXPECT_THAT(Kept({.keep_within = std::chrono::seconds(49)}, infos), ElementsAre(3, 4));
  EXPECT_THAT(Kept({.keep_within = std::chrono::hours(1000000)}, infos), ElementsAre(1, 2, 3, 4));
}

TEST(RetentionTest, ByAgeTheNewestStaysWhenTheClockWasSetBack) {
  std::vector<CheckpointInfo> infos{Info(1, 100), Info(2, 5000), Info(3, 150)};
  EXPECT_THAT(Kept({.keep_within = std::chrono::seconds(60)}, infos), ElementsAre(2, 3));
}

TEST(RetentionTest, KeepsTags) {
  auto infos = Steps({1, 2, 3});
  infos[0].tags = {"a", "b"};
  infos[2].tags = {"c"};
  EXPECT_THAT(Kept({.keep_tags = {"b"}}, infos), ElementsAre(1));
  EXPECT_THAT(Kept({.keep_tags = {"*"}}, infos), ElementsAre(1, 3));
}

TEST(RetentionTest, UnitesRulesAndNamesThem) {
  auto infos = Steps({10, 20, 30});
  infos[0].tags = {"first"};
  infos[2].metrics["loss"] = 1;
  const auto decisions = DecideRetention(
      {.keep_last = 1, .keep_every = 30, .keep_best = {{"loss"}}, .keep_tags = {"first"}}, infos);
  ASSERT_TRUE(decisions.ok());
  EXPECT_THAT((*decisions)[0].reasons, ElementsAre("tag first"));
  EXPECT_THAT((*decisions)[1].reasons, IsEmpty());
  EXPECT_THAT((*decisions)[2].reasons, ElementsAre("last 1", "every 30", "best loss"));
  EXPECT_THAT(DroppedBy(*decisions), ElementsAre(CheckpointId{"main", 20}));
}

TEST(RetentionTest, RefusesToKeepNothing) {
  const auto infos = Steps({1, 2});
  EXPECT_THAT(DecideRetention({}, infos), FailsWith(StatusCode::kInvalidArgument, "no rule"));
  EXPECT_THAT(DecideRetention({.keep_best = {{"loss", false, 0}}}, infos),
              FailsWith(StatusCode::kInvalidArgument, "no rule"));
  EXPECT_THAT(DecideRetention({.keep_best = {{"loss"}}}, infos),
              FailsWith(StatusCode::kInvalidArgument, "none of the 2 steps of run main"));
  EXPECT_THAT(Kept({.keep_last = 1}, {}), IsEmpty());
}

}  // namespace

}  // namespace varve::internal
