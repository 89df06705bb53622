// SPDX-License-Identifier: Apache-2.0
#include "cli/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace varve::cli {
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

}  // namespace
}  // namespace varve::cli
