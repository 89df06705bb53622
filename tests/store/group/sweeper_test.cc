// SPDX-License-Identifier: Apache-2.0
#include "store/group/sweeper.h"

#include <gtest/gtest.h>

#include <atomic>

namespace varve::internal::testing {
namespace {

TEST(SweeperTest, GoesOnUntilNothingIsLeft) {
  int rounds = 0;
  Sweeper sweeper([&]() -> Result<bool> { return ++rounds % 5 != 0; });
  sweeper.Await();  // nothing was asked for
  EXPECT_EQ(rounds, 0);
  sweeper.Ask();
  sweeper.Await();
  EXPECT_EQ(rounds, 5);
  sweeper.Ask();
  sweeper.Await();
  EXPECT_EQ(rounds, 10);
}

TEST(SweeperTest, AnErrorEndsTheWorkUntilItIsAskedForAgain) {
  int rounds = 0;
  Sweeper sweeper([&]() -> Result<bool> {
    if (++rounds == 2) return Status::IOError("disk");
    return rounds < 4;
  });
  sweeper.Ask();
  sweeper.Await();
  EXPECT_EQ(rounds, 2);
  sweeper.Ask();
  sweeper.Await();
  EXPECT_EQ(rounds, 4);
}

// One round starts for the last request. Endless work delays nobody.
TEST(SweeperTest, ItsEndIsSoon) {
  std::atomic<int> rounds = 0;
  {
    Sweeper sweeper([&]() -> Result<bool> {
      ++rounds;
      return true;
    });
    sweeper.Ask();
  }
  EXPECT_GE(rounds, 1);
}

}  // namespace
}  // namespace varve::internal::testing
