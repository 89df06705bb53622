// SPDX-License-Identifier: Apache-2.0
#include "varve/status.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "varve/result.h"

namespace varve::internal {

namespace {

TEST(StatusTest, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status::Ok().ToString(), "ok");
}

TEST(StatusTest, NamesCodeAndMessage) {
  EXPECT_EQ(Status::Corruption("chunk 3").ToString(), "corruption: chunk 3");
  EXPECT_EQ(Status::NotFound("").ToString(), "not found");
}

TEST(StatusTest, ContextGoesBeforeTheMessageAndKeepsTheCode) {
  const Status status = Status::IOError("disk is full").WithContext("step 5");
  EXPECT_EQ(status.code(), StatusCode::kIOError);
  EXPECT_EQ(status.message(), "step 5: disk is full");
  EXPECT_TRUE(Status::Ok().WithContext("step 5").ok());
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kAborted); ++code) {
    names.insert(StatusCodeName(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(StatusCode::kAborted) + 1);
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Status::InvalidArgument("odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  VARVE_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(ResultTest, CarriesValueOrStatus) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

// This holds in every build, because a check that NDEBUG leaves out does not protect trainers.
TEST(ResultDeathTest, ValueOfAnErrorPrintsItAndAborts) {
  constexpr char kSays[] =
      "the value of a Result was taken, which is an error: invalid argument: odd";
  const Result<int> constant = Half(1);
  Result<int> result = Half(1);
  Result<std::string> text = Status::InvalidArgument("odd");
  EXPECT_DEATH(static_cast<void>(*result), kSays);
  EXPECT_DEATH(static_cast<void>(*constant), kSays);
  EXPECT_DEATH(static_cast<void>(*Half(1)), kSays);
  EXPECT_DEATH(static_cast<void>(result.value()), kSays);
  EXPECT_DEATH(static_cast<void>(constant.value()), kSays);
  EXPECT_DEATH(static_cast<void>(Half(1).value()), kSays);
  EXPECT_DEATH(static_cast<void>(text->size()), kSays);
}

}  // namespace

}  // namespace varve::internal
