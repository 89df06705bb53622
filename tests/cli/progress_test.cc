// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <gtest/gtest.h>

namespace varve::internal::cli {
namespace {

using std::chrono::duration;

TEST(ProgressTest, ShowsShareSizeAndRate) {
  EXPECT_EQ(ProgressLine("import", 512 << 10, 1 << 20, duration<double>(0.5)),
            "import [############            ]  50 %  512 KiB of 1.0 MiB  1.0 MiB/s");
  EXPECT_EQ(ProgressLine("check", 1 << 20, 0, duration<double>(2)), "check 1.0 MiB  512 KiB/s");
}

TEST(ProgressTest, FitsNarrowTerminals) {
  const auto line = [](size_t columns) {
    return ProgressLine("import", 512 << 10, 1 << 20, duration<double>(0.5), columns);
  };
  EXPECT_EQ(line(60), "import [############            ]  50 %  512 KiB of 1.0 MiB");
  EXPECT_EQ(line(40), "import [############            ]  50 %");
  EXPECT_EQ(line(30), "import  50 %");
  EXPECT_EQ(line(8), " 50 %");
  EXPECT_EQ(line(3), "");
  EXPECT_EQ(ProgressLine("check", 1 << 20, 0, duration<double>(2), 16), "check 1.0 MiB");
}

TEST(ProgressTest, NeverPassesTheEnd) {
  EXPECT_EQ(ProgressLine("x", 30, 20, duration<double>(1)),
            "x [########################] 100 %  20 B of 20 B  20 B/s");
}

}  // namespace
}  // namespace varve::internal::cli
