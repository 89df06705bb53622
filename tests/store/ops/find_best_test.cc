// SPDX-License-Identifier: Apache-2.0
//
// FindBest of varve/retention.h.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <span>

#include "varve/retention.h"

namespace varve::internal {

namespace {

CheckpointInfo Step(uint64_t step, double loss) {
  CheckpointInfo info;
  info.id = {"main", step};
  info.metrics["loss"] = loss;
  return info;
}

TEST(FindBestTest, TakesTheLowestOrTheHighest) {
  const CheckpointInfo steps[] = {Step(1, 3), Step(2, 1), Step(3, 2)};
  EXPECT_EQ(FindBest(steps, "loss", false), 2u);
  EXPECT_EQ(FindBest(steps, "loss", true), 1u);
  EXPECT_EQ(FindBest(steps, "other", true), std::nullopt);
  EXPECT_EQ(FindBest({}, "loss", true), std::nullopt);
}

TEST(FindBestTest, TiesGoToTheNewest) {
  const CheckpointInfo steps[] = {Step(1, 1), Step(2, 1), Step(3, 2)};
  EXPECT_EQ(FindBest(steps, "loss", false), 2u);
}

TEST(FindBestTest, NaNNeverWins) {
  const CheckpointInfo steps[] = {Step(1, NAN), Step(2, 5), Step(3, NAN), Step(4, INFINITY)};
  EXPECT_EQ(FindBest(steps, "loss", false), 2u);
  EXPECT_EQ(FindBest(steps, "loss", true), 4u);
  EXPECT_EQ(FindBest(std::span(steps).first(1), "loss", false), std::nullopt);
}

}  // namespace

}  // namespace varve::internal
