// SPDX-License-Identifier: Apache-2.0
#include "cli/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace varve::internal::cli {
namespace {

using ::testing::HasSubstr;

TEST(ParseTest, ReadsNumbers) {
  EXPECT_EQ(ParseNumber("--step", "0").value(), 0u);
  EXPECT_EQ(ParseNumber("--step", "010").value(), 10u);
  EXPECT_EQ(ParseNumber("--step", "18446744073709551615").value(), UINT64_MAX);
  for (const char* text : {"", "-1", "+1", " 1", "1.0", "0x10", "1e3", "18446744073709551616"}) {
    EXPECT_THAT(ParseNumber("--step", text).status().message(), HasSubstr("--step: ")) << text;
  }
  EXPECT_FALSE(ParseNumber("--shard", "4", 3).ok());
}

TEST(ParseTest, ReadsByteSizes) {
  EXPECT_EQ(ParseByteSize("1").value(), 1u);
  EXPECT_EQ(ParseByteSize("1024B").value(), 1024u);
  EXPECT_EQ(ParseByteSize("5GB").value(), 5'000'000'000u);
  EXPECT_EQ(ParseByteSize("5G").value(), 5'000'000'000u);
  EXPECT_EQ(ParseByteSize("2GiB").value(), uint64_t{2} << 30);
  EXPECT_EQ(ParseByteSize("1.5KiB").value(), 1536u);
  EXPECT_EQ(ParseByteSize("3TB").value(), 3'000'000'000'000u);
}

TEST(ParseTest, RejectsBadByteSizes) {
  for (const char* text :
       {"", "0", "-5GB", "GB", "5 GB", "5gb", "5XB", "nan", "inf", "1e30", "0.5"}) {
    EXPECT_THAT(ParseByteSize(text).status().message(), HasSubstr("is no size")) << text;
  }
}

TEST(ParseTest, ReadsPercents) {
  EXPECT_EQ(ParsePercent("5%").value(), 0.05);
  EXPECT_EQ(ParsePercent("100%").value(), 1.0);
  for (const char* text : {"", "5", "0%", "101%", "-1%", "nan%", "%", "5%%"}) {
    EXPECT_THAT(ParsePercent(text).status().message(), HasSubstr("is no share")) << text;
  }
}

TEST(ParseTest, ReadsMetrics) {
  EXPECT_EQ(ParseMetric("loss=2.5").value(), std::pair(std::string("loss"), 2.5));
  EXPECT_EQ(ParseMetric("a/b c=-1e-3").value(), std::pair(std::string("a/b c"), -1e-3));
  EXPECT_EQ(ParseMetric("x=inf").value().second, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(ParseMetric("x=nan").value().second));
}

TEST(ParseTest, RejectsBadMetrics) {
  EXPECT_THAT(ParseMetric("loss").status().message(), HasSubstr("METRIC=VALUE"));
  EXPECT_THAT(ParseMetric("=1").status().message(), HasSubstr("METRIC=VALUE"));
  for (const char* text : {"x=", "x=a", "x=1a", "x= 1", "x=1,5", "x=1e999"}) {
    EXPECT_THAT(ParseMetric(text).status().message(), HasSubstr("no number")) << text;
  }
}

TEST(ParseTest, ReadsDurations) {
  using namespace std::chrono_literals;
  EXPECT_EQ(ParseDuration("90s").value(), 90s);
  EXPECT_EQ(ParseDuration("45m").value(), 45min);
  EXPECT_EQ(ParseDuration("12h").value(), 12h);
  EXPECT_EQ(ParseDuration("7d").value(), 7 * 24h);
  EXPECT_EQ(ParseDuration("4w").value(), 28 * 24h);
  EXPECT_EQ(ParseDuration("1y").value(), 365 * 24h);
  EXPECT_EQ(ParseDuration("1d12h").value(), 36h);
  EXPECT_EQ(ParseDuration("1w2d3h4m5s").value(), (7 + 2) * 24h + 3h + 4min + 5s);
  EXPECT_EQ(ParseDuration("100y").value(), 36500 * 24h);
}

TEST(ParseTest, RejectsBadDurations) {
  for (const char* text :
       {"", "0s", "7", "d", "-1d", "1.5d", "7 d", "7D", "1d12", "7days", "1d-1h", "101y", "100y1s",
        "9223372036854775807s", "99999999999999999999s", "3153600001s", "50y50y50y"}) {
    EXPECT_THAT(ParseDuration(text).status().message(), HasSubstr("is no time such as")) << text;
  }
}

TEST(ParseTest, ReadsWhatToKeepAsBest) {
  const auto expect = [](const char* text, const char* metric, bool highest, uint64_t count) {
    const Result<KeepBest> best = ParseKeepBest(text);
    ASSERT_TRUE(best.ok()) << best.status().ToString();
    EXPECT_EQ(best->metric, metric) << text;
    EXPECT_EQ(best->highest, highest) << text;
    EXPECT_EQ(best->count, count) << text;
  };
  expect("loss:3", "loss", false, 3);
  expect("loss:min:2", "loss", false, 2);
  expect("accuracy:max:1", "accuracy", true, 1);
  expect("max:1", "max", false, 1);
  expect("eval:top:5:max:1", "eval:top:5", true, 1);
}

TEST(ParseTest, RejectsWhatKeepsNothingAsBest) {
  for (const char* text : {"", "loss", "loss:", "loss:0", "loss:x", "loss:-1", ":3", ":max:3",
                           "loss:max", "loss:3:max", "loss:1.5"}) {
    EXPECT_EQ(ParseKeepBest(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(ParseKeepBest("loss").status().message(), HasSubstr("METRIC[:max|:min]:N"));
}

TEST(ParseTest, ReadsWhatToDoWithAnExistingStep) {
  EXPECT_EQ(ParseOnExisting("error").value(), OnExisting::kError);
  EXPECT_EQ(ParseOnExisting("replace").value(), OnExisting::kReplace);
  EXPECT_EQ(ParseOnExisting("fork").value(), OnExisting::kFork);
  EXPECT_THAT(ParseOnExisting("keep").status().message(),
              HasSubstr("\"keep\" is unknown, expected error, replace or fork"));
}

}  // namespace
}  // namespace varve::internal::cli
