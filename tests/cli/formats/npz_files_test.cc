// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/npz_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/safetensors_builder.h"
#include "tests/cli/formats/zip_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

std::string Npy(const std::string& dictionary, const std::string& data = "") {
  return std::string("\x93NUMPY\x01\x00", 8) + Little(dictionary.size(), 2) + dictionary + data;
}

std::string Described(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

std::string HeaderError(const std::string& header) {
  const auto array = ParseNpyHeader(AsBytes(header));
  EXPECT_FALSE(array.ok()) << header;
  EXPECT_EQ(array.status().code(), StatusCode::kInvalidArgument);
  return array.status().message();
}

std::string OpenError(const std::string& content) {
  const FileFolder folder;
  const std::filesystem::path paths[] = {folder.Write("x.npz", content)};
  const auto files = NpzFiles::Open(paths);
  EXPECT_FALSE(files.ok());
  EXPECT_THAT(files.status().message(), HasSubstr("x.npz"));
  return files.status().message();
}

TEST(NpyParseTest, ReadsWhatItBuilds) {
  for (const DType dtype : {DType::kBool, DType::kI8, DType::kU16, DType::kF16, DType::kF32,
                            DType::kI64, DType::kC64}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {7}, {0, 3}, std::vector<int64_t>(40, 1)}) {
      const std::string header = BuildNpyHeader(NpyTypeOf(dtype, shape));
      const auto array = ParseNpyHeader(AsBytes(header));
      ASSERT_TRUE(array.ok()) << array.status().ToString();
      EXPECT_EQ(array->dtype, dtype);
      EXPECT_EQ(array->shape, shape);
      EXPECT_FALSE(array->is_fortran);
      EXPECT_EQ(array->num_bytes, NumBytes(dtype, shape).value());
    }
  }
}

TEST(NpyParseTest, ReadsKeysInAnyOrderAndFortranOrder) {
  const std::string text = Npy("{\"shape\":(2,3),'fortran_order':True,'descr':'<f4'}\n");
  const auto array = ParseNpyHeader(AsBytes(text));
  ASSERT_TRUE(array.ok()) << array.status().ToString();
  EXPECT_TRUE(array->is_fortran);
  EXPECT_EQ(array->shape, (std::vector<int64_t>{2, 3}));
}

TEST(NpyParseTest, NamesTypesThatVarveDoesNotHave) {
  EXPECT_THAT(HeaderError(Npy(Described(">f4", "()"))), HasSubstr("'>f4' is big-endian"));
  EXPECT_THAT(HeaderError(Npy(Described("|O", "()"))),
              HasSubstr("Python objects, which are pickled"));
  for (const char* descr : {"<U5", "|S3", "<M8[ns]", "<c16", "|V2", "<f16", "", "f4", "<f44"}) {
    EXPECT_THAT(HeaderError(Npy(Described(descr, "()"))), HasSubstr("none that varve has"));
  }
  EXPECT_THAT(HeaderError(Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}")),
              HasSubstr("at byte 20: the dtype has fields"));
}

TEST(NpyParseTest, RefusesHeadersThatLie) {
  EXPECT_THAT(HeaderError(Npy(Described("<f4", "(-1,)"))), HasSubstr("no length here"));
  EXPECT_THAT(HeaderError(Npy(Described("<f4", "(3)"))), HasSubstr("no tuple"));
  EXPECT_THAT(HeaderError(Npy(Described("<f4", "(9223372036854775807, 9)"))),
              HasSubstr("has more than 2^63 - 1 elements"));
  EXPECT_THAT(HeaderError(Npy(Described("<f4", "(99999999999999999999,)"))),
              HasSubstr("no length here"));
  EXPECT_THAT(HeaderError(Npy("{'descr': '<f4', 'shape': ()}")), HasSubstr("lacks one of"));
  EXPECT_THAT(HeaderError(Npy("{'shape': (), 'shape': ()}")), HasSubstr("'shape' comes twice"));
  EXPECT_THAT(HeaderError(Npy("{'os': 'system'}")), HasSubstr("'os' comes twice, or is none"));
  EXPECT_THAT(HeaderError(Npy(Described("<f4", "()") + "x")), HasSubstr("goes on after"));
  EXPECT_THAT(HeaderError(Npy("__import__('os')")), HasSubstr("no '{' here"));
  EXPECT_THAT(HeaderError("\x93NUMPZ      "), HasSubstr("no .npy file"));
  EXPECT_THAT(HeaderError("\x93NUMPY\x04" + std::string(9, ' ')), HasSubstr("the version is 4"));
  EXPECT_THAT(HeaderError(std::string("\x93NUMPY\x02\x00", 8) + Little(1 << 30, 4)),
              HasSubstr("the header has 1073741824 bytes"));
  std::string deep = "(";
  for (int i = 0; i < 65; ++i) deep += "1,";
  EXPECT_THAT(HeaderError(Npy(Described("<f4", deep + ")"))), HasSubstr("more than 64 axes"));
}

TEST(NpzFilesTest, ReadsStoredAndDeflatedArrays) {
  const FileFolder folder;
  const std::string header = BuildNpyHeader(NpyTypeOf(DType::kU8, std::vector<int64_t>{5}));
  ZipBuilder builder;
  builder.Add({.name = "a.npy", .contents = header + "hello"});
  builder.Add({.name = "b/c.npy", .contents = header + "world", .deflate = true});
  const std::filesystem::path paths[] = {folder.Write("x.npz", builder.Build()),
                                         folder.Write("d.npy", header + "12345")};
  const auto files = NpzFiles::Open(paths);
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  ASSERT_EQ(files->arrays().size(), 3u);
  EXPECT_EQ(files->arrays()[0].name, "a");
  EXPECT_EQ(files->arrays()[1].name, "b/c");
  EXPECT_EQ(files->arrays()[2].name, "d");
  EXPECT_FALSE(files->arrays()[2].entry);
}

TEST(NpzFilesTest, RefusesEachTruncation) {
  const FileFolder folder;
  const std::string header = BuildNpyHeader(NpyTypeOf(DType::kU8, std::vector<int64_t>{5}));
  const std::string npy = header + "hello";
  const std::string npz = ZipBuilder()
                              .Add({.name = "a.npy", .contents = npy, .deflate = true})
                              .Add({.name = "b.npy", .contents = npy})
                              .Build();
  for (const std::string& content : {npy, npz}) {
    for (size_t size = 0; size < content.size(); ++size) {
      const std::filesystem::path paths[] = {folder.Write("x", content.substr(0, size))};
      EXPECT_EQ(NpzFiles::Open(paths).status().code(), StatusCode::kInvalidArgument) << size;
    }
  }
}

TEST(NpzFilesTest, NamesTheEntryThatIsWrong) {
  const auto with = [](const std::string& name, const std::string& contents) {
    return OpenError(ZipBuilder().Add({.name = name, .contents = contents}).Build());
  };
  EXPECT_THAT(with("a.txt", ""), HasSubstr("entry \"a.txt\": it is no array"));
  EXPECT_THAT(with("a.npy", ""), HasSubstr("entry \"a.npy\": at byte 0: this is no .npy file"));
  EXPECT_THAT(with(".npy", Npy(Described("<f4", "(0,)"))), HasSubstr("name"));
  EXPECT_THAT(with("a.npy", Npy(Described("<f4", "(3,)"), "12345678")),
              HasSubstr("of the header and 12 that dtype and shape need"));
  EXPECT_THAT(with("a.npy", Npy(Described("<f4", "(1000000000,)"))),
              HasSubstr("4000000000 that dtype and shape need"));
  EXPECT_THAT(OpenError("PK?"), HasSubstr("neither a .npz nor a .npy file"));
}

}  // namespace
}  // namespace varve::internal::formats
