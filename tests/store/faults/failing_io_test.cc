// SPDX-License-Identifier: Apache-2.0
//
// The fault layer itself: each call fails when it is its turn, and only then.
#include "tests/support/failing_io.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class FailingIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fd_ = ::open(file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(::write(fd_, "0123456789", 10), 10);
  }
  void TearDown() override { ::close(fd_); }

  std::string file() const { return folder_.path() / "file"; }
  std::string other() const { return folder_.path() / "other"; }
  std::string Content() const {
    char bytes[64];
    const ssize_t n = ::pread(fd_, bytes, sizeof(bytes), 0);
    return n < 0 ? "" : std::string(bytes, static_cast<size_t>(n));
  }

  TempFolder folder_;
  int fd_ = -1;
};

int ErrnoOf(const std::function<int64_t()>& call) {
  errno = 0;
  return call() < 0 ? errno : 0;
}

TEST_F(FailingIoTest, EachCallFailsUnderItsName) {
  const std::map<std::string, std::function<int64_t()>> calls = {
      {"write", [&] { return ::write(fd_, "x", 1); }},
      {"pwrite", [&] { return ::pwrite(fd_, "x", 1, 0); }},
      {"fsync", [&] { return ::fsync(fd_); }},
      {"fdatasync", [&] { return ::fdatasync(fd_); }},
      {"sync_file_range", [&] { return ::sync_file_range(fd_, 0, 1, SYNC_FILE_RANGE_WRITE); }},
      {"create", [&] { return ::open(other().c_str(), O_WRONLY | O_CREAT, 0644); }},
      {"mkdir", [&] { return ::mkdir((other() + "d").c_str(), 0755); }},
      {"rename", [&] { return ::rename(other().c_str(), (other() + "2").c_str()); }},
      {"link", [&] { return ::link(file().c_str(), (file() + "3").c_str()); }},
      {"symlink", [&] { return ::symlink(file().c_str(), (file() + "4").c_str()); }},
      {"unlink", [&] { return ::unlink((file() + "3").c_str()); }},
      {"ftruncate", [&] { return ::ftruncate(fd_, 20); }},
      {"fallocate", [&] { return ::fallocate(fd_, 0, 0, 20); }},
      {"times", [&] { return ::futimens(fd_, nullptr); }},
      {"mode", [&] { return ::chmod(file().c_str(), 0600); }},
      {"owner", [&] { return ::lchown(file().c_str(), ::getuid(), ::getgid()); }},
      {"open", [&] { return ::open(file().c_str(), O_RDONLY); }},
      {"read",
       [&] {
         char c;
         return ::read(fd_, &c, 1);
       }},
      {"pread",
       [&] {
         char c;
         return ::pread(fd_, &c, 1, 0);
       }},
  };
  for (const auto& [name, call] : calls) {
    const FailingIo io({.path = folder_.path(), .call = name, .error = EDQUOT});
    EXPECT_EQ(ErrnoOf(call), EDQUOT) << name;
    EXPECT_TRUE(io.failed().starts_with(name + " " + folder_.path().string())) << io.failed();
    EXPECT_EQ(io.num_calls(), 1u) << name;
  }
}

TEST_F(FailingIoTest, CallsOfOtherFormsFailUnderTheSameNames) {
  const FailingIo io({.path = folder_.path(), .count = 100, .error = EIO});
  const std::string a = file(), b = other();
  EXPECT_EQ(ErrnoOf([&] { return ::openat(AT_FDCWD, b.c_str(), O_RDWR | O_CREAT, 0644); }), EIO);
  EXPECT_EQ(ErrnoOf([&] { return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), 0); }), EIO);
  EXPECT_EQ(ErrnoOf([&] { return ::unlinkat(AT_FDCWD, a.c_str(), 0); }), EIO);
  EXPECT_EQ(ErrnoOf([&] { return ::linkat(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), 0); }), EIO);
  EXPECT_EQ(ErrnoOf([&] { return ::utimensat(AT_FDCWD, a.c_str(), nullptr, 0); }), EIO);
  EXPECT_EQ(::posix_fallocate(fd_, 0, 20), EIO);
  std::error_code error;
  EXPECT_FALSE(fs::create_directory(folder_.path() / "new", error));
  EXPECT_EQ(error.value(), EIO);
  EXPECT_FALSE(fs::remove(a, error));
  EXPECT_EQ(error.value(), EIO);
  EXPECT_EQ(io.num_calls(), 8u);
}

TEST_F(FailingIoTest, FoldersCannotBeRead) {
  const FailingIo io({.path = folder_.path(), .call = "reads", .count = 100, .error = EIO});
  EXPECT_EQ(::opendir(folder_.path().c_str()), nullptr);
  std::error_code error;
  const fs::directory_iterator entries(folder_.path(), error);
  EXPECT_EQ(error.value(), EIO);
}

TEST_F(FailingIoTest, FaultsComeAndGo) {
  const FailingIo io(
      {.path = "file", .call = "pwrite", .first = 1, .count = 2, .every = 3, .error = ENOSPC});
  std::string failed;
  for (int i = 0; i < 9; ++i) failed += ::pwrite(fd_, "x", 1, 0) == 1 ? '.' : 'X';
  EXPECT_EQ(failed, ".X..X....");
}

TEST_F(FailingIoTest, AShortWriteSaysSo) {
  const FailingIo io(
      {.path = "file", .call = "writes", .count = 2, .error = ENOSPC, .short_write = true});
  EXPECT_EQ(::pwrite(fd_, "abcdef", 6, 0), 3);
  EXPECT_EQ(ErrnoOf([&] { return ::pwrite(fd_, "def", 3, 3); }), ENOSPC);
  EXPECT_EQ(Content(), "abc3456789");
  EXPECT_EQ(::pwrite(fd_, "def", 3, 3), 3);
  EXPECT_EQ(Content(), "abcdef6789");
}

TEST_F(FailingIoTest, AFailedSyncLosesWhatWasNotSynced) {
  const FailingIo io({.path = "file", .call = "syncs", .first = 1, .error = EIO, .lose = true});
  ASSERT_EQ(::pwrite(fd_, "ab", 2, 0), 2);
  EXPECT_EQ(::fsync(fd_), 0);
  ASSERT_EQ(::pwrite(fd_, "cd", 2, 4), 2);
  EXPECT_EQ(ErrnoOf([&] { return ::fdatasync(fd_); }), EIO);
  EXPECT_EQ(Content(), std::string("ab23\0\0006789", 10));
  EXPECT_EQ(::fsync(fd_), 0);  // Linux says the error once
}

TEST_F(FailingIoTest, APlantedMistakeTakesAFailureForDone) {
  {
    const FailingIo io({.path = "file", .call = "writes", .error = EIO, .swallow = true});
    EXPECT_EQ(::pwrite(fd_, "abcdef", 6, 0), 6);
    EXPECT_EQ(Content(), "0123456789");
  }
  const FailingIo io({.path = "file", .call = "writes", .short_write = true, .swallow = true});
  EXPECT_EQ(::pwrite(fd_, "abcdef", 6, 0), 6);
  EXPECT_EQ(Content(), "abc3456789");
}

}  // namespace
}  // namespace varve::internal::testing
