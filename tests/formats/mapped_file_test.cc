// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "tests/formats/file_folder.h"
#include "tests/formats/safetensors_builder.h"

namespace varve::formats {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(MappedFileTest, ShowsTheBytesAlsoAfterAMove) {
  const FileFolder folder;
  Result<MappedFile> file = MappedFile::Open(folder.Write("a", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const MappedFile moved = std::move(*file);
  EXPECT_THAT(moved.bytes(), ElementsAreArray(AsBytes("hello")));
}

TEST(MappedFileTest, OpensAnEmptyFile) {
  const FileFolder folder;
  const Result<MappedFile> file = MappedFile::Open(folder.Write("a", ""));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFileTest, NamesAMissingFile) {
  const FileFolder folder;
  const Result<MappedFile> file = MappedFile::Open(folder.path() / "gone");
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("gone"));
}

TEST(MappedFileTest, RefusesFoldersAndPipes) {
  const FileFolder folder;
  EXPECT_EQ(MappedFile::Open(folder.path()).status().code(), StatusCode::kIOError);
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(pipe).status().message(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace varve::formats
