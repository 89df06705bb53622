// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/util.h"
#include "tests/support/temp_folder.h"

namespace varve::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempFolder;

constexpr uid_t kNobody = 65534;

TEST(MeasureFolderTest, CountsFilesBelow) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "below");
  std::ofstream(folder.path() / "a") << std::string(10'000, 'x');
  std::ofstream(folder.path() / "below" / "b") << std::string(10'000, 'x');
  const FolderUse use = MeasureFolder(folder.path());
  EXPECT_EQ(use.num_files, 2u);
  EXPECT_GE(use.allocated_bytes, 20'000u);
  EXPECT_THAT(use.errors, IsEmpty());
}

TEST(MeasureFolderTest, ALinkToTheFolderIsFollowedAndLinksInItAreNot) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "store");
  std::filesystem::create_directory(folder.path() / "other");
  std::ofstream(folder.path() / "store" / "a") << "x";
  std::ofstream(folder.path() / "other" / "b") << "x";
  std::filesystem::create_directory_symlink(folder.path() / "store", folder.path() / "link");
  std::filesystem::create_directory_symlink(folder.path() / "other", folder.path() / "store" / "c");
  std::filesystem::create_symlink(folder.path() / "other" / "b", folder.path() / "store" / "d");
  EXPECT_EQ(MeasureFolder(folder.path() / "link").num_files, 1u);
}

// A folder that vanishes while it is measured is no error, so one that is not there is none.
TEST(MeasureFolderTest, WhatIsGoneIsNoError) {
  const TempFolder folder;
  const FolderUse use = MeasureFolder(folder.path() / "none");
  EXPECT_EQ(use.num_files, 0u);
  EXPECT_THAT(use.errors, IsEmpty());
}

TEST(MeasureFolderTest, AFolderThatCannotBeReadIsNamed) {
  const TempFolder folder;
  std::ofstream(folder.path() / "a") << "x";
  ASSERT_EQ(::chmod(folder.path().c_str(), 0), 0);
  const bool is_root = ::geteuid() == 0;  // no mode stops root
  if (is_root) ::setfsuid(kNobody);       // of this thread
  // It says nothing if it fails, as in a container that has no such user.
  if (is_root && ::setfsuid(static_cast<uid_t>(-1)) != static_cast<int>(kNobody)) {
    ::chmod(folder.path().c_str(), S_IRWXU);
    GTEST_SKIP() << "this process cannot become another user";
  }
  const FolderUse use = MeasureFolder(folder.path());
  if (is_root) ::setfsuid(0);
  EXPECT_EQ(::chmod(folder.path().c_str(), S_IRWXU), 0);
  EXPECT_THAT(use.errors, ElementsAre(HasSubstr(folder.path().string() + ": Permission denied")));
}

}  // namespace
}  // namespace varve::internal
