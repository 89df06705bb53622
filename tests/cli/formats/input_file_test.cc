// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "cli/formats/small_reads.h"
#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string TextOf(const InputFile& file, size_t offset, size_t size) {
  std::string text(size, '?');
  const Status read =
      file.Read(file.bytes().subspan(offset, size), reinterpret_cast<std::byte*>(text.data()));
  return read.ok() ? text : read.ToString();
}

TEST(InputFileTest, ShowsWhatIsFetched) {
  const FileFolder folder;
  const auto file = InputFile::Open(folder.Write("a", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ((*file)->bytes().size(), 5u);
  ASSERT_TRUE((*file)->Fetch((*file)->bytes().subspan(1, 2)).ok());
  EXPECT_THAT((*file)->bytes(), ElementsAreArray(AsBytes(std::string("\0el\0\0", 5))));
  EXPECT_EQ(TextOf(**file, 3, 2), "lo");
}

TEST(InputFileTest, OpensAnEmptyFile) {
  const FileFolder folder;
  const auto file = InputFile::Open(folder.Write("a", ""));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST(InputFileTest, NamesFileAndOffsetWhenItWasCut) {
  const FileFolder folder;
  const std::filesystem::path path = folder.Write("a", std::string(10000, 'x'));
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  std::filesystem::resize_file(path, 8000);
  const Status status = (*file)->Fetch((*file)->bytes());
  EXPECT_EQ(status.code(), StatusCode::kIOError);
  EXPECT_THAT(status.message(), HasSubstr("a: at byte 8000: the file ends; it had 10000 bytes"));
}

TEST(InputFileTest, TellsThatItWasWrittenTo) {
  const FileFolder folder;
  const std::filesystem::path path = folder.Write("a", "hello");
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(TextOf(**file, 0, 5), HasSubstr("was written to while it was read"));
  folder.Write("a", "hello, world");
  EXPECT_THAT(TextOf(**file, 0, 5), HasSubstr("it had 5 bytes, and has 12 now"));
}

TEST(SmallReadsTest, GivesTheBytesOfEachPart) {
  const FileFolder folder;
  std::string text;
  while (text.size() < 5 * SmallReads::kPageBytes / 2) text += std::to_string(text.size()) + ",";
  const auto file = InputFile::Open(folder.Write("a", text));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  SmallReads reads(*file);
  const auto expect = [&](size_t offset, size_t size) {
    std::string part(size, '?');
    const Status read = reads.Read((*file)->bytes().subspan(offset, size),
                                   reinterpret_cast<std::byte*>(part.data()));
    EXPECT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(part, text.substr(offset, size));
  };
  for (size_t i = 0; i < 1000; ++i) expect(i * 7919 % (text.size() - 16), 16);
  EXPECT_EQ(reads.num_reads_for_test(), 3u);
  expect(0, text.size());
  expect(SmallReads::kPageBytes - 3, 6);
  expect(text.size() - 1, 1);
  expect(text.size(), 0);
}

TEST(SmallReadsTest, TellsThatTheFileWasCut) {
  const FileFolder folder;
  const std::filesystem::path path = folder.Write("a", std::string(40000, 'x'));
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  SmallReads reads(*file);
  std::byte out;
  EXPECT_TRUE(reads.Read((*file)->bytes().subspan(0, 1), &out).ok());
  std::filesystem::resize_file(path, 20000);
  EXPECT_THAT(reads.CheckUnchanged().message(), HasSubstr("the file ends; it had 40000 bytes"));
  const auto gone = (*file)->bytes().subspan(30000, 1);
  EXPECT_EQ(reads.Read(gone, &out).code(), StatusCode::kIOError);
  EXPECT_EQ(reads.Read(gone, &out).code(), StatusCode::kIOError);  // not what was read before
}

TEST(InputFileTest, NamesAMissingFile) {
  const FileFolder folder;
  const auto file = InputFile::Open(folder.path() / "gone");
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("gone"));
}

TEST(InputFileTest, RefusesFoldersAndPipes) {
  const FileFolder folder;
  EXPECT_EQ(InputFile::Open(folder.path()).status().code(), StatusCode::kIOError);
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(InputFile::Open(pipe).status().message(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace varve::internal::formats
