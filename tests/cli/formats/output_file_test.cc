// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/output_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "tests/cli/formats/file_folder.h"

namespace varve::internal::formats {
namespace {

size_t CountFiles(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(OutputFileTest, AppearsWholeAtCommit) {
  const FileFolder folder;
  Result<OutputFile> file = OutputFile::Create(folder.path() / "out", false);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_TRUE(file->Append("hello, ").ok());
  ASSERT_TRUE(file->Append("world").ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(folder.Read("out"), "hello, world");
  EXPECT_EQ(CountFiles(folder.path()), 1u);
}

TEST(OutputFileTest, LeavesNothingWithoutCommit) {
  const FileFolder folder;
  {
    Result<OutputFile> file = OutputFile::Create(folder.path() / "out", false);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append("half").ok());
  }
  EXPECT_EQ(CountFiles(folder.path()), 0u);
}

TEST(OutputFileTest, KeepsAnExistingFile) {
  const FileFolder folder;
  const std::filesystem::path path = folder.Write("out", "old");
  EXPECT_EQ(OutputFile::Create(path, false).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(folder.Read("out"), "old");
}

TEST(OutputFileTest, KeepsAFileThatAppearsMeanwhile) {
  const FileFolder folder;
  Result<OutputFile> file = OutputFile::Create(folder.path() / "out", false);
  ASSERT_TRUE(file.ok());
  folder.Write("out", "other");
  EXPECT_EQ(file->Commit().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(folder.Read("out"), "other");
}

TEST(OutputFileTest, OverwritesWhenAsked) {
  const FileFolder folder;
  Result<OutputFile> file = OutputFile::Create(folder.Write("out", "old"), true);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Append("new").ok());
  EXPECT_EQ(folder.Read("out"), "old");
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(folder.Read("out"), "new");
}

TEST(OutputFileTest, TwoFilesMayBeWrittenAtOnce) {
  const FileFolder folder;
  Result<OutputFile> a = OutputFile::Create(folder.path() / "a", false);
  Result<OutputFile> b = OutputFile::Create(folder.path() / "b", false);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_TRUE(a->Append("a").ok() && b->Append("b").ok());
  ASSERT_TRUE(a->Commit().ok() && b->Commit().ok());
  EXPECT_EQ(folder.Read("a") + folder.Read("b"), "ab");
}

TEST(OutputFileTest, FollowsTheUmask) {
  const FileFolder folder;
  Result<OutputFile> file = OutputFile::Create(folder.path() / "out", false);
  ASSERT_TRUE(file.ok() && file->Commit().ok());
  folder.Write("plain", "");
  EXPECT_EQ(std::filesystem::status(folder.path() / "out").permissions(),
            std::filesystem::status(folder.path() / "plain").permissions());
}

TEST(OutputFileTest, NamesAFolderThatIsMissing) {
  const FileFolder folder;
  const auto file = OutputFile::Create(folder.path() / "gone" / "out", false);
  EXPECT_EQ(file.status().code(), StatusCode::kIOError);
}

}  // namespace
}  // namespace varve::internal::formats
