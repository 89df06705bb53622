// SPDX-License-Identifier: Apache-2.0
#include "cli/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/context.h"

namespace varve::internal::cli {
namespace {

TEST(OutcomeTest, GivesEachStatusItsExitCode) {
  EXPECT_TRUE(Outcome().ok());
  EXPECT_TRUE(Outcome(Status::Ok()).ok());
  EXPECT_EQ(Outcome(Status::IOError("x")).code(), ExitCode::kFailed);
  EXPECT_EQ(Outcome(Status::FailedPrecondition("x")).code(), ExitCode::kFailed);
  EXPECT_EQ(Outcome(Status::Aborted("x")).code(), ExitCode::kFailed);
  EXPECT_EQ(Outcome(Status::InvalidArgument("x")).code(), ExitCode::kUsage);
  EXPECT_EQ(Outcome(Status::Corruption("x")).code(), ExitCode::kDamaged);
  EXPECT_EQ(Outcome(Status::Locked("x")).code(), ExitCode::kLocked);
  EXPECT_EQ(Outcome(Status::NotFound("x")).code(), ExitCode::kNotFound);
  EXPECT_EQ(Outcome(Status::AlreadyExists("x")).code(), ExitCode::kAlreadyExists);
  EXPECT_EQ(Outcome(Status::NotFound("no step 5")).message(), "no step 5");
}

TEST(OutcomeTest, TellsAMissingStoreFromAMissingStep) {
  EXPECT_EQ(OpenOutcome(Status::NotFound("x")).code(), ExitCode::kNoStore);
  EXPECT_EQ(OpenOutcome(Status::Locked("x")).code(), ExitCode::kLocked);
  EXPECT_EQ(Outcome::Failed(Status::NotFound("x")).code(), ExitCode::kFailed);
}

TEST(OutcomeTest, AnIncompleteAnswerIsDamage) {
  EXPECT_TRUE(Outcome::Incomplete("the list leaves out", {}).ok());
  std::vector<std::string> errors = {"run a: x", "run b: y"};
  const Outcome two = Outcome::Incomplete("the list leaves out", errors);
  EXPECT_EQ(two.code(), ExitCode::kDamaged);
  EXPECT_EQ(two.message(), "the list leaves out what cannot be read: run a: x; run b: y");
  errors.resize(12, "z");
  EXPECT_THAT(Outcome::Incomplete("it leaves out", errors).message(),
              ::testing::EndsWith("; z; and 2 more"));
}

TEST(OutcomeTest, KeepsTheNumbersOfTheContract) {
  EXPECT_EQ(static_cast<int>(ExitCode::kFailed), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::kUsage), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::kDamaged), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::kNoStore), 10);
  EXPECT_EQ(static_cast<int>(ExitCode::kLocked), 11);
  EXPECT_EQ(static_cast<int>(ExitCode::kNotFound), 12);
  EXPECT_EQ(static_cast<int>(ExitCode::kAlreadyExists), 13);
}

}  // namespace
}  // namespace varve::internal::cli
