// SPDX-License-Identifier: Apache-2.0
#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/util.h"
#include "tests/support/temp_folder.h"

namespace varve::internal {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(FileDescriptorTest, ClosesItsFileOnce) {
  int fd = -1;
  {
    FileDescriptor first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    fd = first.get();
    ASSERT_TRUE(first.is_open());
    const FileDescriptor second(std::move(first));
    EXPECT_EQ(second.get(), fd);
    EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): this is what is tested
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
  EXPECT_FALSE(FileDescriptor(-1).is_open());
}

TEST(FileDescriptorTest, WritesAllBytes) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  const std::string sent(3000, 'x');
  EXPECT_TRUE(WriteAll(writer.get(), AsBytes(sent), "pipe").ok());
  EXPECT_TRUE(WriteAll(writer.get(), {}, "pipe").ok());
  std::string got(sent.size() + 1, '\0');
  EXPECT_EQ(::read(reader.get(), got.data(), got.size()), static_cast<ssize_t>(sent.size()));
  EXPECT_EQ(got.substr(0, sent.size()), sent);
}

TEST(FileDescriptorTest, AnErrorNamesTheFile) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.is_open());
  const Status status = WriteAll(full.get(), AsBytes("x"), "/some/file");
  EXPECT_EQ(status.code(), StatusCode::kIOError);
  EXPECT_EQ(status.message(), "cannot write /some/file: No space left on device");
}

// Opening the pipe for reading would wait for a writer that never comes.
TEST(FileDescriptorTest, OpensOnlyFilesOfAStore) {
  const testing::TempFolder folder;
  const std::filesystem::path pipe = folder.path() / "pipe", file = folder.path() / "file";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(file) << "text";
  const auto error_of = [](const std::filesystem::path& path) {
    return OpenFileToRead(path).status().ToString();
  };
  EXPECT_EQ(error_of(pipe), "corruption: " + pipe.string() + " is a pipe, expected a file");
  EXPECT_THAT(error_of(folder.path()), ::testing::EndsWith(" is a folder, expected a file"));
  EXPECT_EQ(error_of("/dev/null"),
            "corruption: /dev/null is neither a file nor a folder, expected a file");
  EXPECT_EQ(OpenFileToRead(folder.path() / "none").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(OpenFileToRead(file).ok());
  EXPECT_EQ(ReadSmallFile(pipe, 10).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(*ReadSmallFile(file, 3), "tex");
  EXPECT_EQ(*ReadSmallFileOrPipe("/dev/null", 10), "");
}

// Memory grows with the file, and not with the most that is read.
TEST(FileDescriptorTest, ReadsFilesOfAnySize) {
  const testing::TempFolder folder;
  const std::filesystem::path file = folder.path() / "file";
  for (const size_t size : {0, 1, 16383, 16384, 16385, 100000}) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
    std::ofstream(file, std::ios::binary) << text;
    for (const size_t most : {size, size + 1, size_t{64} << 20}) {
      const Result<std::string> read = ReadSmallFile(file, most);
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_TRUE(*read == text) << size << " bytes, at most " << most;
      EXPECT_LE(read->capacity(), std::max<size_t>(2 * size, 16384));
    }
    EXPECT_TRUE(*ReadSmallFile(file, size / 2) == text.substr(0, size / 2));
  }
}

}  // namespace
}  // namespace varve::internal
