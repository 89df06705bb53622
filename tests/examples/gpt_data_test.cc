// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "gpt/data.h"
#include "tests/support/temp_folder.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

class DataTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  varve::testing::TempFolder temp_;
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
  std::mt19937_64 rng(1);
  const std::string text = "0123456789";
  const Batch batch = DrawBatch(text, 3, 4, &rng);
  ASSERT_EQ(batch.inputs.size(), 12u);
  ASSERT_EQ(batch.targets.size(), 12u);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
}

TEST(DrawBatchTest, ReachesBothEndsOfTheText) {
  std::mt19937_64 rng(1);
  std::set<uint8_t> first;
  for (int i = 0; i < 100; ++i) first.insert(DrawBatch("abcd", 1, 2, &rng).inputs[0]);
  EXPECT_EQ(first, (std::set<uint8_t>{'a', 'b'}));
}

TEST(DrawBatchTest, GeneratorIsThePosition) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  std::mt19937_64 rng(1);
  DrawBatch(text, 2, 8, &rng);
  std::mt19937_64 copy = rng;
  EXPECT_EQ(DrawBatch(text, 2, 8, &rng).inputs, DrawBatch(text, 2, 8, &copy).inputs);
}

}  // namespace
}  // namespace gpt
