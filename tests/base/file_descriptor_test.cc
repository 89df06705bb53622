// SPDX-License-Identifier: Apache-2.0
#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/util.h"

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

}  // namespace
}  // namespace varve::internal
