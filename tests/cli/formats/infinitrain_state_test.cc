// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

constexpr char kWritten[] =
    "{\n  \"global_step\": 5,\n  \"vocab_size\": 50304\n  \"ddp_size\": 1\n}\n";

std::string ErrorOf(std::string_view text) {
  const auto parsed = ParseInfiniTrainState(text);
  EXPECT_FALSE(parsed.ok()) << text;
  return parsed.status().message();
}

TEST(InfiniTrainStateTest, TakesTheMissingComma) {
  const auto parsed = ParseInfiniTrainState(kWritten);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->dump(), R"({"ddp_size":1,"global_step":5,"vocab_size":50304})");
  EXPECT_TRUE(ParseInfiniTrainState(R"({"vocab_size":1"ddp_size":1})").ok());
}

TEST(InfiniTrainStateTest, TakesValidJson) {
  EXPECT_TRUE(ParseInfiniTrainState(R"({"vocab_size":1, "ddp_size":1})").ok());
  EXPECT_TRUE(ParseInfiniTrainState(R"({"vocab_size":1})").ok());
  EXPECT_TRUE(ParseInfiniTrainState("{}").ok());
}

TEST(InfiniTrainStateTest, RejectsEveryOtherDefectAndSaysWhere) {
  for (const char* text :
       {"", "{", R"({"a":1 "ddp_size":1})", R"({"vocab_size":1 "ddp_size":1 "tp_size":1})",
        R"({"vocab_size":1 ddp_size:1})", R"({"vocab_size": "ddp_size":1})", R"({"vocab_size")",
        R"({"vocab_size":)", R"({"vocab_size":1)", R"({"vocab_size":1 )",
        R"({"vocab_size" 1 "a":1})", R"({"vocab_size":1.5 "a":1})",
        R"({"in":{"vocab_size":1 "a":1}})", R"({"vocab_size":1 "a":1}})"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("not JSON: parse error at line 1, column ")) << text;
  }
  EXPECT_THAT(ErrorOf(R"({"vocab_size":1 "vocab_size":1})"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(R"({"a":1,"a":1})"), HasSubstr("the key \"a\" comes twice"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("at byte 0: it holds no JSON object"));
}

TEST(InfiniTrainStateTest, RejectsEveryTruncation) {
  const std::string text(kWritten);
  for (size_t size = 0; size + 2 < text.size(); ++size) {  // the last newline may go
    EXPECT_FALSE(ParseInfiniTrainState(text.substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace varve::internal::formats
