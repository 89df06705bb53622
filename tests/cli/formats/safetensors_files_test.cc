// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsFilesTest : public ::testing::Test {
 protected:
  Result<SafetensorsFiles> Open(const std::vector<std::string>& names) {
    std::vector<std::filesystem::path> paths;
    for (const std::string& name : names) paths.push_back(folder_.path() / name);
    return SafetensorsFiles::Open(paths);
  }
  std::string ErrorOf(const std::vector<std::string>& names) {
    const Result<SafetensorsFiles> files = Open(names);
    EXPECT_FALSE(files.ok());
    return files.status().message();
  }

  FileFolder folder_;
};

std::string Text(const FileTensor& tensor) {
  std::string text(tensor.data.size(), '?');
  const Status read = tensor.file->Read(tensor.data, reinterpret_cast<std::byte*>(text.data()));
  return read.ok() ? text : read.ToString();
}

TEST_F(SafetensorsFilesTest, SaysThatAFileWasCutAfterItWasOpened) {
  const std::string content = OneTensorFile("a", std::string(5000, 'x'));
  const std::filesystem::path path = folder_.Write("1", content);
  const Result<SafetensorsFiles> files = Open({"1"});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  std::filesystem::resize_file(path, 4096);
  EXPECT_THAT(Text(files->tensors()[0]), HasSubstr("1: at byte 4096: the file ends"));
}

TEST_F(SafetensorsFilesTest, GathersSeveralFiles) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", OneTensorFile("b", "two"));
  const Result<SafetensorsFiles> files = Open({"2", "1"});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  ASSERT_EQ(files->tensors().size(), 2u);
  EXPECT_EQ(files->tensors()[0].name + Text(files->tensors()[0]), "btwo");
  EXPECT_EQ(files->tensors()[1].name + Text(files->tensors()[1]), "aone");
}

TEST_F(SafetensorsFilesTest, FollowsAnIndex) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", OneTensorFile("b", "two"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"2"}})");
  const Result<SafetensorsFiles> files = Open({"m.index.json"});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->tensors().size(), 2u);
}

TEST_F(SafetensorsFilesTest, MixesFilesAndAnIndexInAnyOrder) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", OneTensorFile("b", "two"));
  folder_.Write("3", OneTensorFile("c", "three"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"2"}})");
  for (const auto& names :
       {std::vector<std::string>{"3", "m.index.json"},
        {"m.index.json", "3"},
        {"1", "2", "3", "m.index.json"},
        {"m.index.json", "3", "2", "1"},
        {"1", "./1", "m.index.json", "../" + folder_.path().filename().string() + "/3"}}) {
    const Result<SafetensorsFiles> files = Open(names);
    ASSERT_TRUE(files.ok()) << files.status().ToString();
    EXPECT_EQ(files->tensors().size(), 3u);
  }
}

TEST_F(SafetensorsFilesTest, ChecksAnIndexAlsoAgainstFilesReadBefore) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("m.index.json", R"({"weight_map":{"b":"1"}})");
  EXPECT_THAT(ErrorOf({"1", "m.index.json"}), HasSubstr("but the index does not name it"));
}

TEST_F(SafetensorsFilesTest, NamesTheMalformedFile) {
  folder_.Write("bad", "{}");
  EXPECT_THAT(ErrorOf({"bad"}), HasSubstr("bad: the file has 2 bytes"));
}

TEST_F(SafetensorsFilesTest, RejectsATensorInTwoFiles) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", OneTensorFile("a", "two"));
  EXPECT_THAT(ErrorOf({"1", "2"}), HasSubstr("tensor \"a\" is in two files: "));
}

TEST_F(SafetensorsFilesTest, RejectsAnIndexWithAMissingFile) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"2"}})");
  EXPECT_THAT(ErrorOf({"m.index.json"}), HasSubstr("/2: No such file"));
}

TEST_F(SafetensorsFilesTest, RejectsAnIndexWithATensorThatIsNotInItsFile) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"1"}})");
  EXPECT_THAT(ErrorOf({"m.index.json"}), HasSubstr("tensor \"b\" is not in the file \"1\""));
}

TEST_F(SafetensorsFilesTest, RejectsAnIndexThatNamesTheWrongFile) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", OneTensorFile("b", "two"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"2","b":"1"}})");
  EXPECT_THAT(ErrorOf({"m.index.json"}),
              HasSubstr("tensor \"a\" is in the file \"1\", but the index says \"2\""));
}

TEST_F(SafetensorsFilesTest, RejectsATensorThatTheIndexDoesNotName) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("m.index.json", R"({"weight_map":{}})");
  EXPECT_TRUE(Open({"m.index.json"}).ok());
  folder_.Write("2", SafetensorsText(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                     R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                     "bc"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"2"}})");
  EXPECT_THAT(ErrorOf({"m.index.json"}), HasSubstr("but the index does not name it"));
}

TEST_F(SafetensorsFilesTest, RejectsATensorInTwoFilesOfAnIndex) {
  folder_.Write("1", OneTensorFile("a", "one"));
  folder_.Write("2", SafetensorsText(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                     "ab"));
  folder_.Write("m.index.json", R"({"weight_map":{"a":"1","b":"2"}})");
  EXPECT_THAT(ErrorOf({"m.index.json"}), HasSubstr("tensor \"a\" is in two files"));
}

TEST_F(SafetensorsFilesTest, KeepsTheFirstOfConflictingMetadata) {
  folder_.Write("1", SafetensorsText(R"({"__metadata__":{"a":"1","b":"2"}})", ""));
  folder_.Write("2", SafetensorsText(R"({"__metadata__":{"a":"9","b":"2","c":"3"}})", ""));
  const Result<SafetensorsFiles> files = Open({"1", "2"});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->metadata(), (SafetensorsMetadata{{"a", "1"}, {"b", "2"}, {"c", "3"}}));
  EXPECT_THAT(files->conflicting_metadata(), ElementsAre("a"));
}

}  // namespace
}  // namespace varve::internal::formats
