// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/llmc_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/foreign_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kParameters = 6;
constexpr size_t kGenerator = 2520;

std::string StateText(int32_t processes, int32_t rank, int32_t master, int32_t shuffle,
                      size_t elements) {
  std::string file = LlmcHeaderText({20240527, 1, processes, rank, master, shuffle});
  SetInt(10, 7, &file);
  SetInt(20, 99, &file);
  SetInt(30, 3, &file);
  SetInt(33, 1, &file);  // the upper half of the sample
  file.append(4 * elements * (master != 0 ? 3 : 2), 'x');
  if (shuffle != 0) {
    file += LittleEndian(uint64_t{2}) + "11112222" + LittleEndian(uint64_t{1}) + "1111" +
            std::string(kGenerator, 'g');
  }
  return file;
}

std::string ErrorOf(const std::string& file) {
  const auto state = ParseLlmcState(BytesOf(file), kParameters);
  EXPECT_FALSE(state.ok());
  return state.status().message();
}

TEST(LlmcStateTest, ReadsVectorsWithAndWithoutMasters) {
  for (const int32_t master : {0, 1}) {
    const std::string file = StateText(1, 0, master, 0, kParameters);
    const auto state = ParseLlmcState(BytesOf(file), kParameters);
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    ASSERT_EQ(state->tensors.size(), master != 0 ? 3u : 2u);
    EXPECT_EQ(state->tensors[0].name, "adam.m");
    EXPECT_EQ(state->tensors[1].name, "adam.v");
    EXPECT_EQ(state->tensors[1].shape, std::vector<int64_t>{6});
    EXPECT_EQ(state->tensors[1].data.data(), BytesOf(file).data() + 1024 + 24);
    if (master != 0) {
      EXPECT_EQ(state->tensors[2].name, "adam.master");
    }
    EXPECT_EQ(state->header.step, 7u);
    EXPECT_EQ(static_cast<int>(state->header.rng[0]), 99);
    EXPECT_EQ(state->header.shard_index, 3u);
    EXPECT_EQ(state->header.sample_index, uint64_t{1} << 32);
    EXPECT_TRUE(state->loader.empty());
  }
}

TEST(LlmcStateTest, TellsWhetherTheVectorsAreSharedOut) {
  for (const size_t elements : {size_t{3}, size_t{6}}) {
    const std::string file = StateText(2, 1, 1, 1, elements);
    const auto state = ParseLlmcState(BytesOf(file), kParameters);
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    EXPECT_EQ(state->is_sharded, elements == 3);
    EXPECT_EQ(state->tensors[2].shard, 1u);
    EXPECT_EQ(state->tensors[2].data.size(), 4 * elements);
    EXPECT_EQ(state->loader.size(), 8 + 8 + 8 + 4 + kGenerator);
  }
  EXPECT_THAT(ErrorOf(StateText(2, 0, 0, 0, 4)), HasSubstr("after its vectors"));
}

TEST(LlmcStateTest, RejectsEveryFieldThatCannotBe) {
  const auto error_with = [](size_t index, int32_t value) {
    std::string file = StateText(2, 1, 1, 0, kParameters);
    SetInt(index, value, &file);
    return ErrorOf(file);
  };
  EXPECT_THAT(error_with(0, 20240326),
              HasSubstr("at byte 0: the magic number is 20240326; expected"));
  EXPECT_THAT(error_with(1, 2), HasSubstr("at byte 4: the version is 2; expected 1"));
  EXPECT_THAT(error_with(2, 0), HasSubstr("at byte 8: the number of processes is 0"));
  EXPECT_THAT(error_with(3, 2), HasSubstr("at byte 12: the rank is 2; expected 0 to 1"));
  EXPECT_THAT(error_with(4, 2), HasSubstr("at byte 16: the flag of masters is 2"));
  EXPECT_THAT(error_with(5, -1), HasSubstr("at byte 20: the flag of shuffling is -1"));
  EXPECT_THAT(error_with(10, -1), HasSubstr("at byte 40: the step is -1"));
}

TEST(LlmcStateTest, RejectsALoaderWhoseListsLie) {
  std::string file = StateText(1, 0, 0, 1, kParameters);
  const size_t loader = 1024 + 2 * 24;
  file[loader + 7] = '\x7f';
  EXPECT_THAT(ErrorOf(file),
              HasSubstr("at byte 1072: the loader's list of files has 9151314442816847874"));
  file = StateText(1, 0, 0, 1, kParameters) + "x";
  EXPECT_THAT(ErrorOf(file), HasSubstr("the file goes on for 1 bytes after the loader's state"));
}

TEST(LlmcStateTest, RejectsEveryTruncationWithItsOffset) {
  const TryParse parse = [](auto file) { return ParseLlmcState(file, kParameters).status(); };
  for (const std::string& file :
       {StateText(1, 0, 1, 0, kParameters), StateText(1, 0, 1, 1, kParameters),
        StateText(2, 1, 0, 1, kParameters / 2)}) {
    ForEachTruncation(file, parse, [](size_t size, const Status& status) {
      ASSERT_FALSE(status.ok()) << size;
      ASSERT_THAT(status.message(), HasSubstr("at byte ")) << size;
    });
  }
}

TEST(LlmcStateTest, SurvivesEveryFlip) {
  const TryParse parse = [](auto file) { return ParseLlmcState(file, kParameters).status(); };
  ForEachFlip(StateText(2, 1, 1, 1, kParameters), parse, [](size_t at, const Status& status) {
    if (at < 8) {  // magic and version
      EXPECT_FALSE(status.ok()) << at;
    }
    if (!status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr("at byte ")) << at;
    }
  });
}

}  // namespace
}  // namespace varve::internal::formats
