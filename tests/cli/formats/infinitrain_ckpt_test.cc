// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_ckpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/foreign_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

constexpr uint8_t kU8 = 1;
constexpr uint8_t kF32 = 11;

std::string ErrorOf(const std::string& file) {
  const auto tensors = ParseCkpt(BytesOf(file));
  EXPECT_FALSE(tensors.ok());
  EXPECT_EQ(tensors.status().code(), StatusCode::kInvalidArgument);
  return tensors.status().message();
}

std::string SmallFile() {
  return CkptFile(3, CkptEntry("w", kF32, {2, 1}, "12345678") +
                         CkptEntry("adam.t", 8, {}, "12345678") + CkptEntry("none", kU8, {0}, ""));
}

TEST(CkptTest, ReadsTensorsInTheOrderOfTheFile) {
  const std::string file = SmallFile();
  const auto tensors = ParseCkpt(BytesOf(file));
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "w");
  EXPECT_EQ((*tensors)[0].dtype, DType::kF32);
  EXPECT_EQ((*tensors)[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ((*tensors)[0].data.size(), 8u);
  EXPECT_EQ((*tensors)[1].dtype, DType::kI64);
  EXPECT_TRUE((*tensors)[1].shape.empty());
  EXPECT_EQ((*tensors)[2].data.size(), 0u);
}

TEST(CkptTest, BuildsWhatItReads) {
  const std::string file = SmallFile();
  std::string built = BuildCkptHeader(3);
  const auto tensors = ParseCkpt(BytesOf(file));
  for (const FileTensor& tensor : tensors.value()) {
    TensorInfo info{static_cast<const TensorSpec&>(tensor)};
    info.logical_bytes = tensor.data.size();
    built += BuildCkptEntry(info).value();
    built.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  EXPECT_EQ(built, file);
}

TEST(CkptTest, KnowsTheDtypesOfTheFormat) {
  const DType types[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                         DType::kU32,  DType::kI32, DType::kU64, DType::kI64, DType::kBF16,
                         DType::kF16,  DType::kF32, DType::kF64};
  for (uint8_t code = 0; code < std::size(types); ++code) {
    const std::string data(static_cast<size_t>(DTypeBits(types[code]) / 8), '\0');
    const std::string file = CkptFile(1, CkptEntry("x", code, {1}, data));
    EXPECT_EQ(ParseCkpt(BytesOf(file)).value()[0].dtype, types[code]);
  }
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("x", 13, {1}, "1"))),
              HasSubstr("tensor \"x\": at byte 17: the dtype is 13; expected 0 to 12"));
  EXPECT_THAT(BuildCkptEntry({{.name = "x", .dtype = DType::kF8E4M3}}).status().message(),
              HasSubstr("cannot hold F8_E4M3"));
}

TEST(CkptTest, RejectsAnotherMagicOrVersion) {
  std::string file = SmallFile();
  file[0] = 'c';
  EXPECT_THAT(ErrorOf(file), HasSubstr("at byte 0: the magic number is 1414548323; expected"));
  file = SmallFile();
  file[4] = 2;
  EXPECT_THAT(ErrorOf(file), HasSubstr("at byte 4: the version is 2; expected 1"));
}

TEST(CkptTest, RejectsBadNames) {
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("", kU8, {}, "1"))),
              HasSubstr("at byte 12: the name length is 0; expected 1 to 1024"));
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry(std::string(1025, 'n'), kU8, {}, "1"))),
              HasSubstr("the name length is 1025"));
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("\xff", kU8, {}, "1"))), HasSubstr("at byte 16: "));
  const std::string x = CkptEntry("x", kU8, {}, "1");
  EXPECT_THAT(ErrorOf(CkptFile(2, x + x)), HasSubstr("at byte 31: tensor \"x\" comes twice"));
}

TEST(CkptTest, RejectsLengthsThatLie) {
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("x", kU8, {2}, "1"))),
              HasSubstr("at byte 30: the byte count is 1; expected 2, which dtype and dims need"));
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("x", kU8, {-1}, "1"))),
              HasSubstr("at byte 22: a dim is"));
  EXPECT_THAT(ErrorOf(CkptFile(1, CkptEntry("x", kF32, {INT64_MAX, INT64_MAX}, "1"))),
              HasSubstr("at byte 38: "));
  std::string file = CkptFile(1, CkptEntry("x", kU8, {1}, "1"));
  file[21] = '\x7f';  // 2^30 dims and more
  EXPECT_THAT(ErrorOf(file), HasSubstr("at byte 18: ndim is 2130706433; expected at most 2"));
}

TEST(CkptTest, RejectsACountThatLies) {
  const std::string x = CkptEntry("x", kU8, {}, "1");
  EXPECT_THAT(ErrorOf(CkptFile(UINT32_MAX, x)),
              HasSubstr("tensor 2 of 4294967295: at byte 31: the name length needs 4 bytes"));
  EXPECT_THAT(ErrorOf(CkptFile(0, x)),
              HasSubstr("at byte 12: the file goes on for 19 bytes after the last of 0 tensors"));
}

TEST(CkptTest, RejectsEveryTruncationWithItsOffset) {
  const TryParse parse = [](auto file) { return ParseCkpt(file).status(); };
  ForEachTruncation(SmallFile(), parse, [](size_t size, const Status& status) {
    EXPECT_FALSE(status.ok()) << size;
    EXPECT_THAT(status.message(), HasSubstr("at byte ")) << size;
  });
}

TEST(CkptTest, SurvivesEveryFlip) {
  const TryParse parse = [](auto file) { return ParseCkpt(file).status(); };
  ForEachFlip(SmallFile(), parse, [](size_t at, const Status& status) {
    if (at < 12) {  // magic, version and count
      EXPECT_FALSE(status.ok()) << at;
    }
    if (!status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr("at byte ")) << at;
    }
  });
}

}  // namespace
}  // namespace varve::internal::formats
