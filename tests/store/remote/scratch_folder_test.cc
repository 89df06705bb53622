// SPDX-License-Identifier: Apache-2.0
#include "store/remote/scratch_folder.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/status_checks.h"
#include "tests/support/temp_folder.h"

namespace varve::internal {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::TempFolder;

constexpr uid_t kNobody = 65534;

class ScratchFolderTest : public ::testing::Test {
 protected:
  ScratchFolderTest() { ::setenv("TMPDIR", place_.path().c_str(), 1); }
  ~ScratchFolderTest() override {
    if (before_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", before_.c_str(), 1);
    }
  }

  std::vector<fs::path> Entries() const {
    const fs::directory_iterator all(place_.path());
    return {begin(all), end(all)};
  }

  const std::string before_ = ::getenv("TMPDIR") == nullptr ? "" : ::getenv("TMPDIR");
  const TempFolder place_;
};

TEST_F(ScratchFolderTest, IsRemovedWithAllItHolds) {
  {
    const ScratchFolder folder;
    VARVE_ASSERT_OK(folder.status());
    fs::create_directory(folder.path() / "db");
    std::ofstream(folder.path() / "db" / "CURRENT") << "x";
    EXPECT_THAT(Entries(), ElementsAre(folder.path()));
  }
  EXPECT_THAT(Entries(), IsEmpty());
}

TEST_F(ScratchFolderTest, ThatOfAKilledProcessIsRemovedByTheNext) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ScratchFolder folder;
    std::ofstream(folder.path() / "large") << "x";
    ::_exit(folder.status().ok() ? 0 : 1);  // without its destructor, as when it is killed
  }
  int code = 0;
  ASSERT_EQ(::waitpid(child, &code, 0), child);
  ASSERT_EQ(code, 0);
  ASSERT_EQ(Entries().size(), 1u);
  const ScratchFolder next;
  VARVE_ASSERT_OK(next.status());
  EXPECT_THAT(Entries(), ElementsAre(next.path()));
}

TEST_F(ScratchFolderTest, ThoseInUseStay) {
  const ScratchFolder first, second;
  VARVE_ASSERT_OK(first.status());
  VARVE_ASSERT_OK(second.status());
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(fs::is_directory(first.path()));
  EXPECT_TRUE(fs::is_directory(second.path()));
}

TEST_F(ScratchFolderTest, WhatIsNoneOfThisUserAndHostStays) {
  std::string prefix;  // of the folders of this host
  {
    const ScratchFolder folder;
    prefix = folder.path().string();
    prefix.resize(prefix.size() - 6);
  }
  const fs::path file = prefix + "AAAAAA", link = prefix + "BBBBBB", other = prefix + "CCCCCC";
  const fs::path target = place_.path() / "target";
  const fs::path elsewhere =
      prefix + "1-123456";  // of a host whose name begins with that of this one
  std::ofstream(file) << "x";
  fs::create_directory(target);
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(target, link);
  fs::create_directory(other);
  const bool is_of_another = ::chown(other.c_str(), kNobody, kNobody) == 0;  // may root do so
  const ScratchFolder folder;
  VARVE_ASSERT_OK(folder.status());
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(target));
  EXPECT_TRUE(fs::exists(elsewhere));
  EXPECT_EQ(fs::exists(other), is_of_another);
}

}  // namespace
}  // namespace varve::internal
