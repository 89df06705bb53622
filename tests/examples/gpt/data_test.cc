// SPDX-License-Identifier: Apache-2.0
#include "gpt/data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/support/temp_folder.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

class DataTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  varve::internal::testing::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

TEST_F(DataTest, ReadsRegularFilesByRisingName) {
  Write("b", "world");
  Write("a", std::string("hello \0", 7));
  fs::create_symlink(folder_ / "a", folder_ / "c");
  fs::create_directory(folder_ / "d");
  EXPECT_EQ(ReadText(folder_).value(), std::string("hello \0world", 12));
}

TEST_F(DataTest, ReadsOneFile) {
  Write("a", "text");
  EXPECT_EQ(ReadText(folder_ / "a").value(), "text");
}

TEST_F(DataTest, NamesWhatIsMissing) {
  const auto text = ReadText(folder_ / "none");
  EXPECT_EQ(text.status().code(), varve::StatusCode::kNotFound);
  EXPECT_NE(text.status().message().find("none"), std::string::npos);
}

TEST(DrawBatchTest, TargetsFollowInputs) {
  const std::string text = "0123456789";
  const Batch batch = DrawBatch(text, 1, 0, 3, 4);
  ASSERT_EQ(batch.inputs.size(), 12u);
  ASSERT_EQ(batch.targets.size(), 12u);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
}

TEST(DrawBatchTest, ReachesBothEndsOfTheText) {
  const Batch batch = DrawBatch("abcd", 1, 0, 100, 2);
  std::set<uint8_t> first;
  for (int i = 0; i < 100; ++i) first.insert(batch.inputs[2 * i]);
  EXPECT_EQ(first, (std::set<uint8_t>{'a', 'b'}));
}

TEST(DrawBatchTest, SamplesDoNotDependOnTheBatch) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  const Batch together = DrawBatch(text, 1, 6, 3, 8);
  std::vector<uint8_t> apart;
  for (int64_t sample = 6; sample < 9; ++sample) {
    const Batch one = DrawBatch(text, 1, sample, 1, 8);
    apart.insert(apart.end(), one.inputs.begin(), one.inputs.end());
  }
  EXPECT_EQ(apart, together.inputs);
}

TEST(SampleStartTest, SpreadsEvenly) {
  constexpr int kStarts = 10, kSamples = 10'000;
  std::vector<int> counts(kStarts);
  for (int64_t sample = 0; sample < kSamples; ++sample) ++counts[SampleStart(7, sample, kStarts)];
  for (const int count : counts) EXPECT_NEAR(count, kSamples / kStarts, 150);  // 5 deviations
}

TEST(SampleStartTest, OtherSeedOtherSamples) {
  int equal = 0;
  for (int64_t sample = 0; sample < 1000; ++sample) {
    if (SampleStart(1, sample, 1'000'000) == SampleStart(2, sample, 1'000'000)) ++equal;
  }
  EXPECT_LT(equal, 10);
}

}  // namespace
}  // namespace gpt
