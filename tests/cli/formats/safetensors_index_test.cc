// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

TEST(SafetensorsIndexTest, ReadsWhatItBuilds) {
  const WeightMap weight_map = {{"a", "model-1"}, {"b", "model-2"}};
  const std::string text = BuildSafetensorsIndex(weight_map, 42);
  EXPECT_THAT(text, HasSubstr("\"total_size\": 42"));
  const Result<WeightMap> parsed = ParseSafetensorsIndex(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, weight_map);
}

TEST(SafetensorsIndexTest, RejectsWhatIsNoIndex) {
  EXPECT_THAT(ParseSafetensorsIndex("").status().message(), HasSubstr("not JSON"));
  EXPECT_THAT(ParseSafetensorsIndex("[]").status().message(), HasSubstr("\"weight_map\""));
  EXPECT_THAT(ParseSafetensorsIndex(R"({"weight_map":[]})").status().message(),
              HasSubstr("\"weight_map\""));
}

TEST(SafetensorsIndexTest, RejectsATensorNamedTwice) {
  EXPECT_THAT(ParseSafetensorsIndex(R"({"weight_map":{"a":"x","a":"y"}})").status().message(),
              HasSubstr("the key \"a\" comes twice"));
}

TEST(SafetensorsIndexTest, RejectsFilesElsewhere) {
  for (const char* name : {"\"\"", "\".\"", "\"..\"", "\"../x\"", "\"/etc/passwd\"", "\"a/b\"",
                           "\"a\\u0000\"", "1", "null"}) {
    const std::string text = "{\"weight_map\":{\"a\":" + std::string(name) + "}}";
    EXPECT_THAT(ParseSafetensorsIndex(text).status().message(),
                HasSubstr("tensor \"a\" a name that is no file in the folder of the index"))
        << name;
  }
}

std::string SplitText(const std::vector<uint64_t>& sizes, uint64_t max_bytes) {
  std::vector<TensorInfo> tensors;
  for (const uint64_t size : sizes) {
    TensorInfo tensor;
    tensor.name = std::to_string(size);
    tensor.logical_bytes = size;
    tensors.push_back(std::move(tensor));
  }
  std::string text;
  for (const auto& group : SplitBySize(tensors, max_bytes)) {
    text += "|";
    for (const TensorInfo& tensor : group) text += " " + tensor.name;
  }
  return text;
}

TEST(SafetensorsIndexTest, SplitsAtTheLimit) {
  EXPECT_EQ(SplitText({5, 5, 1}, 10), "| 5 5| 1");
  EXPECT_EQ(SplitText({5, 5, 1}, 11), "| 5 5 1");
  EXPECT_EQ(SplitText({5, 5, 1}, 9), "| 5| 5 1");
  EXPECT_EQ(SplitText({20, 1, 30, 0}, 10), "| 20| 1| 30| 0");
  EXPECT_EQ(SplitText({}, 10), "|");
  EXPECT_EQ(SplitText({1, 2}, UINT64_MAX), "| 1 2");
}

TEST(SafetensorsIndexTest, NamesFilesAsOthersDo) {
  EXPECT_EQ(ShardFileName("d/model.safetensors", 2, 13), "d/model-00002-of-00013.safetensors");
  EXPECT_EQ(ShardFileName("m.v1.safetensors", 1, 2), "m.v1-00001-of-00002.safetensors");
  EXPECT_EQ(IndexFileName("d/model.safetensors"), "d/model.safetensors.index.json");
}

}  // namespace
}  // namespace varve::internal::formats
