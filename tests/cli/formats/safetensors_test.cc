// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

Result<SafetensorsHeader> Parse(const std::string& file) { return ParseSafetensors(AsBytes(file)); }

// The error of a file with this header and eight bytes of data.
std::string ErrorOf(std::string_view header, std::string_view data = "12345678") {
  const Result<SafetensorsHeader> parsed = Parse(SafetensorsText(header, data));
  EXPECT_FALSE(parsed.ok()) << header;
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}

// A header with one tensor "x", whose fields are given.
std::string OneTensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{\"x\":{\"dtype\":" + std::string(dtype) + ",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}}";
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string file =
      SafetensorsText(R"({"__metadata__":{"format":"pt"},)"
                      R"("a":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
                      R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                      R"("c":{"dtype":"U8","shape":[0,3],"data_offsets":[8,8]}}   )",
                      "12345678");
  const Result<SafetensorsHeader> header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "b");
  EXPECT_EQ(header->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header->tensors[1].name, "a");
  EXPECT_EQ(header->tensors[1].shape, std::vector<int64_t>());
  EXPECT_EQ(header->tensors[1].begin, 4u);
  EXPECT_EQ(header->tensors[1].end, 8u);
  EXPECT_EQ(header->tensors[2].name, "c");
  EXPECT_EQ(header->metadata, (SafetensorsMetadata{{"format", "pt"}}));
  EXPECT_EQ(header->data_begin, file.size() - 8);
}

// A parse that looks at all members again for each one takes minutes here.
TEST(SafetensorsTest, ReadsAHeaderOfManyTensors) {
  constexpr int kTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  const Result<SafetensorsHeader> parsed = Parse(SafetensorsText(header + "}", ""));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->tensors.size(), static_cast<size_t>(kTensors));
}

TEST(SafetensorsTest, ReadsAFileWithoutTensors) {
  const Result<SafetensorsHeader> header = Parse(SafetensorsText("{}", ""));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_TRUE(header->tensors.empty());
}

TEST(SafetensorsTest, RejectsAFileTooShortForALength) {
  EXPECT_THAT(Parse("1234567").status().message(), HasSubstr("has 7 bytes, too few"));
  EXPECT_THAT(Parse("").status().message(), HasSubstr("has 0 bytes, too few"));
}

TEST(SafetensorsTest, RejectsAHeaderAboveTheLimit) {
  EXPECT_THAT(Parse(LittleEndian64(100'000'001) + "{}").status().message(),
              HasSubstr("100000001 bytes long; the limit is 100000000"));
  EXPECT_THAT(Parse(LittleEndian64(UINT64_MAX) + "{}").status().message(), HasSubstr("the limit"));
}

TEST(SafetensorsTest, RejectsAHeaderLongerThanTheFile) {
  EXPECT_THAT(Parse(LittleEndian64(3) + "{}").status().message(),
              HasSubstr("3 bytes long; the file has only 2 bytes after it"));
}

TEST(SafetensorsTest, RejectsAHeaderThatIsNoObject) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("does not start with '{'"));
  EXPECT_THAT(ErrorOf(" {}"), HasSubstr("does not start with '{'"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("does not start with '{'"));
}

TEST(SafetensorsTest, RejectsTextThatIsNotJson) {
  EXPECT_THAT(ErrorOf("{\"x\":"), HasSubstr("header: not JSON"));
  EXPECT_THAT(ErrorOf("{} {}"), HasSubstr("header: not JSON"));
  EXPECT_THAT(ErrorOf(std::string("{}\0", 3)), HasSubstr("header: not JSON"));
}

TEST(SafetensorsTest, RejectsAKeyThatComesTwice) {
  const std::string x = R"("x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_THAT(ErrorOf("{" + x + "," + x + "}"), HasSubstr("the key \"x\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"x":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})"),
              HasSubstr("the key \"dtype\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":"1","a":"2"}})"),
              HasSubstr("the key \"a\" comes twice"));
}

TEST(SafetensorsTest, TakesOneKeyInTwoObjects) {
  const std::string header = R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
  EXPECT_TRUE(Parse(SafetensorsText(header, "12345678")).ok());
}

TEST(SafetensorsTest, RejectsDeepNesting) {
  std::string deep = "{\"x\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"x\":";
  EXPECT_THAT(ErrorOf(deep + "1" + std::string(100'001, '}')), HasSubstr("nested too deeply"));
  std::string brackets = "{\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(ErrorOf(brackets), HasSubstr("nested too deeply"));
}

TEST(SafetensorsTest, RejectsMetadataThatIsNoText) {
  EXPECT_THAT(ErrorOf(R"({"__metadata__":[]})"), HasSubstr("__metadata__ is no object"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":1}})"),
              HasSubstr("__metadata__ holds \"a\", whose value is no string"));
}

TEST(SafetensorsTest, RejectsAnEntryThatIsNoTensor) {
  EXPECT_THAT(ErrorOf(R"({"x":1})"), HasSubstr("tensor \"x\": its entry is no object"));
  EXPECT_THAT(ErrorOf(R"({"x":{"dtype":"U8","shape":[8]}})"),
              HasSubstr("tensor \"x\": \"data_offsets\" is missing"));
}

TEST(SafetensorsTest, RejectsABadDtype) {
  EXPECT_THAT(ErrorOf(OneTensor("\"F7\"", "[8]", "[0,8]")), HasSubstr("unknown dtype \"F7\""));
  EXPECT_THAT(ErrorOf(OneTensor("\"f32\"", "[2]", "[0,8]")), HasSubstr("unknown dtype \"f32\""));
  EXPECT_THAT(ErrorOf(OneTensor("7", "[8]", "[0,8]")), HasSubstr("dtype is no string"));
}

TEST(SafetensorsTest, RejectsABadShape) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "8", "[0,8]")), HasSubstr("shape is no array"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[-8]", "[0,8]")), HasSubstr("shape holds -8"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8.0]", "[0,8]")), HasSubstr("shape holds 8.0"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[\"8\"]", "[0,8]")), HasSubstr("shape holds string"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[9223372036854775808]", "[0,8]")),
              HasSubstr("shape holds 9223372036854775808"));
}

TEST(SafetensorsTest, RejectsAShapeThatOverflows) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[4294967296,4294967296]", "[0,8]")),
              HasSubstr("tensor \"x\""));
  EXPECT_THAT(ErrorOf(OneTensor("\"F64\"", "[2305843009213693953]", "[0,8]")),
              HasSubstr("tensor \"x\""));
}

TEST(SafetensorsTest, RejectsElementsThatFillNoWholeByte) {
  EXPECT_THAT(ErrorOf(OneTensor("\"F4\"", "[15]", "[0,8]")), HasSubstr("tensor \"x\""));
}

TEST(SafetensorsTest, RejectsBadOffsets) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "[0]")), HasSubstr("1 numbers instead of 2"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "[8,0]")),
              HasSubstr("start at 8 and end before, at 0"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "[-8,0]")), HasSubstr("data_offsets holds -8"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "{}")), HasSubstr("data_offsets is no array"));
}

TEST(SafetensorsTest, RejectsASizeThatIsNotThatOfTheShape) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U16\"", "[8]", "[0,8]")),
              HasSubstr("need 16 bytes; data_offsets give it 8"));
}

TEST(SafetensorsTest, RejectsAnOverlap) {
  const std::string header = R"({"x":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                             R"("y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
  EXPECT_THAT(ErrorOf(header), HasSubstr("\"y\" starts at byte 4 of the data, inside the tensor "
                                         "before it, which ends at 6"));
}

TEST(SafetensorsTest, RejectsAnEmptyTensorInsideAnother) {
  const std::string header = R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                             R"("y":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})";
  EXPECT_THAT(ErrorOf(header), HasSubstr("\"y\" starts at byte 4"));
}

TEST(SafetensorsTest, RejectsAHole) {
  const std::string header = R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
  EXPECT_THAT(ErrorOf(header),
              HasSubstr("\"y\" starts at byte 4 of the data, after a hole, which ends at 2"));
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[4]", "[4,8]")), HasSubstr("after a hole"));
}

TEST(SafetensorsTest, RejectsATruncatedFile) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "[0,8]"), "1234567"),
              HasSubstr("the file is cut short: the tensors need 8 bytes of data and it has 7"));
}

TEST(SafetensorsTest, RejectsBytesAfterTheLastTensor) {
  EXPECT_THAT(ErrorOf(OneTensor("\"U8\"", "[8]", "[0,8]"), "123456789"),
              HasSubstr("goes on after the last tensor: the tensors need 8 bytes"));
  EXPECT_THAT(ErrorOf("{}", "1"), HasSubstr("goes on after the last tensor"));
}

TEST(SafetensorsTest, RejectsBadNames) {
  const std::string tensor = ":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
  EXPECT_THAT(ErrorOf("{\"\"" + tensor), HasSubstr("name"));
  EXPECT_THAT(ErrorOf("{\"a\\u0000b\"" + tensor), HasSubstr("NUL"));
  EXPECT_THAT(ErrorOf("{\"" + std::string(1025, 'n') + "\"" + tensor), HasSubstr("1025"));
  EXPECT_THAT(ErrorOf("{\"\xff\"" + tensor), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{\"\\ud800\"" + tensor), HasSubstr("not JSON"));
}

// A liar may not crash the reader, whichever byte it lies with.
TEST(SafetensorsTest, SurvivesEveryChangedByte) {
  const std::string file = SafetensorsText(
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      "12345678");
  std::mt19937 random(7);
  for (size_t at = 0; at < file.size(); ++at) {
    std::string changed = file;
    changed[at] = static_cast<char>(random());
    const Result<SafetensorsHeader> header = Parse(changed);
    if (!header.ok()) continue;
    for (const SafetensorsTensor& tensor : header->tensors) {
      EXPECT_LE(header->data_begin + tensor.end, changed.size()) << at;
    }
  }
}

TEST(SafetensorsTest, SurvivesEveryTruncation) {
  const std::string file = OneTensorFile("x", "12345678");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
  }
}

TensorInfo Info(std::string name, DType dtype, std::vector<int64_t> shape) {
  TensorInfo info{{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)}};
  info.logical_bytes = NumBytes(info.dtype, info.shape).value();
  return info;
}

TEST(SafetensorsTest, SortsWideTypesFirstThenByName) {
  std::vector<TensorInfo> tensors = {Info("c", DType::kU8, {1}), Info("b", DType::kF32, {1}),
                                     Info("a", DType::kBF16, {1}), Info("a", DType::kF32, {1}),
                                     Info("z", DType::kI64, {1})};
  SortForSafetensors(&tensors);
  std::string order;
  for (const TensorInfo& tensor : tensors) {
    order += tensor.name + ":" + std::string(DTypeName(tensor.dtype)) + " ";
  }
  EXPECT_EQ(order, "z:I64 a:F32 b:F32 a:BF16 c:U8 ");
}

// The expected text is what version 0.8.0 of the safetensors package writes.
TEST(SafetensorsTest, BuildsTheHeaderOfTheStockPackage) {
  const std::vector<TensorInfo> tensors = {Info("a", DType::kF32, {}),
                                           Info("é\"\n\x01/\x7f", DType::kF32, {0, 3})};
  const Result<std::string> header = BuildSafetensorsHeader(tensors, {{"a", "b"}});
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  const std::string text =
      "{\"__metadata__\":{\"a\":\"b\"},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
      "\"é\\\"\\n\\u0001/\x7f\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[4,4]}}";
  const size_t padded = (text.size() + 7) / 8 * 8;
  EXPECT_EQ(*header, LittleEndian64(padded) + text + std::string(padded - text.size(), ' '));
}

TEST(SafetensorsTest, BuildsAHeaderThatParses) {
  std::vector<TensorInfo> tensors;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    tensors.push_back(Info("t" + std::to_string(dtype), static_cast<DType>(dtype), {2, 4}));
  }
  SortForSafetensors(&tensors);
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.logical_bytes;
  const Result<std::string> built = BuildSafetensorsHeader(tensors, {});
  ASSERT_TRUE(built.ok());
  const Result<SafetensorsHeader> parsed = Parse(*built + std::string(total, 'x'));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_EQ(parsed->tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(parsed->tensors[i].name, tensors[i].name);
    EXPECT_EQ(parsed->tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(parsed->tensors[i].shape, tensors[i].shape);
  }
}

TEST(SafetensorsTest, BuildsAnEmptyHeader) {
  EXPECT_EQ(BuildSafetensorsHeader({}, {}).value(), LittleEndian64(8) + "{}      ");
}

TEST(SafetensorsTest, RefusesToNameATensorMetadata) {
  const std::vector<TensorInfo> tensors = {Info("__metadata__", DType::kU8, {1})};
  EXPECT_THAT(BuildSafetensorsHeader(tensors, {}).status().message(), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace varve::internal::formats
