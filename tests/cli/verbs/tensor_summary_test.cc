// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/tensor_summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace varve::internal::cli {
namespace {

template <typename T>
TensorSummary Summarize(DType dtype, const std::vector<T>& values) {
  TensorSummary summary(dtype);
  summary.Add(std::as_bytes(std::span(values)));
  return summary;
}

TEST(TensorSummaryTest, ShowsMinMaxMeanAndFirstValues) {
  const TensorSummary summary = Summarize<float>(DType::kF32, {3, -1, 2.5, 0});
  EXPECT_EQ(summary.ToText(), "min     -1\nmax     3\nmean    1.125\nvalues  3 -1 2.5 0\n");
  EXPECT_EQ(summary.ToJson().dump(),
            R"({"min":-1.0,"max":3.0,"mean":1.125,"nan":0,"values":[3.0,-1.0,2.5,0.0]})");
}

TEST(TensorSummaryTest, ShowsOnlyTheFirstEight) {
  const TensorSummary summary = Summarize<int8_t>(DType::kI8, {1, 2, 3, 4, 5, 6, 7, 8, -9});
  EXPECT_EQ(summary.ToText(), "min     -9\nmax     8\nmean    3\nvalues  1 2 3 4 5 6 7 8 ...\n");
}

TEST(TensorSummaryTest, ShowsAsManyAsAskedInRows) {
  const std::vector<int8_t> values = {1, 2, 3, 4, 5, 6};
  const auto shown = [&](uint64_t max_values) {
    TensorSummary summary(DType::kI8, max_values);
    summary.Add(std::as_bytes(std::span(values)));
    const std::string text = summary.ToText(3);
    return text.substr(text.find("values"));
  };
  EXPECT_EQ(shown(99), "values\n1 2 3\n4 5 6\n");
  EXPECT_EQ(shown(6), "values\n1 2 3\n4 5 6\n");
  EXPECT_EQ(shown(4), "values\n1 2 3\n4 ...\n");
  EXPECT_EQ(shown(3), "values\n1 2 3 ...\n");
  EXPECT_EQ(shown(0), "values\n");
  TensorSummary complex(DType::kC64, 2);
  const std::vector<float> parts = {1, -2, 3, 4, 5, 6};
  complex.Add(std::as_bytes(std::span(parts)));
  EXPECT_EQ(complex.ToText(1), "values\n1-2j\n3+4j ...\n");
  EXPECT_EQ(TensorSummary(DType::kF32, 2).ToText(0), "values\n");  // no element
}

TEST(TensorSummaryTest, CountsNaNs) {
  const TensorSummary summary = Summarize<double>(DType::kF64, {NAN, 1, INFINITY});
  EXPECT_EQ(summary.ToText(),
            "min     1\nmax     inf\nmean    inf\nNaN     1 element\nvalues  nan 1 inf\n");
  EXPECT_EQ(
      summary.ToJson().dump(),
      R"({"min":1.0,"max":"Infinity","mean":"Infinity","nan":1,"values":["NaN",1.0,"Infinity"]})");
}

TEST(TensorSummaryTest, KeepsLargeIntegersExact) {
  const TensorSummary summary = Summarize<uint64_t>(DType::kU64, {UINT64_MAX, UINT64_MAX - 1});
  EXPECT_EQ(summary.ToJson()["min"], UINT64_MAX - 1);
  EXPECT_EQ(summary.ToJson()["max"], UINT64_MAX);
}

TEST(TensorSummaryTest, ShowsComplexValues) {
  const TensorSummary summary = Summarize<float>(DType::kC64, {1, -2, 3, 4});
  EXPECT_EQ(summary.ToText(), "values  1-2j 3+4j\n");
  EXPECT_TRUE(summary.ToJson()["min"].is_null());
}

TEST(TensorSummaryTest, ShowsAnEmptyTensor) {
  EXPECT_EQ(TensorSummary(DType::kF32).ToText(), "values \n");
  EXPECT_TRUE(TensorSummary(DType::kF32).ToJson()["mean"].is_null());
}

TEST(TensorSummaryTest, GivesTheSameInPieces) {
  const std::vector<uint8_t> values(100'000, 0x3c);
  const TensorSummary whole = Summarize(DType::kF6E2M3, values);
  TensorSummary pieces(DType::kF6E2M3);
  const auto bytes = std::as_bytes(std::span(values)).first(99'990);
  for (size_t at = 0; at < bytes.size(); at += 3'333) pieces.Add(bytes.subspan(at, 3'333));
  TensorSummary expected(DType::kF6E2M3);
  expected.Add(bytes);
  EXPECT_EQ(pieces.ToText(), expected.ToText());
}

}  // namespace
}  // namespace varve::internal::cli
