// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace varve::internal::cli {
namespace {

using std::chrono::duration;

constexpr uint64_t kKiB = 1 << 10;

TEST(ProgressTest, ShowsShareSizeAndRate) {
  EXPECT_EQ(ProgressLine("import", 512 * kKiB, 1024 * kKiB, duration<double>(0.5)),
            "import [############            ]  50 %  512 KiB of 1.0 MiB  1.0 MiB/s");
  EXPECT_EQ(ProgressLine("check", 1024 * kKiB, 0, duration<double>(2)), "check 1.0 MiB  512 KiB/s");
}

TEST(ProgressTest, ShowsTheTimeLeft) {
  const auto line = [](uint64_t done, double seconds, size_t columns = 90) {
    return ProgressLine("get", done, 100 * kKiB, duration<double>(seconds), columns);
  };
  EXPECT_EQ(line(25 * kKiB, 30),
            "get [######                  ]  25 %  25.0 KiB of 100 KiB  853 B/s  1 min 30 s left");
  EXPECT_EQ(line(25 * kKiB, 30, 80),
            "get [#####                ]  25 %  25.0 KiB of 100 KiB  853 B/s  1 min 30 s left");
  // Unknown in the first second, before anything is done, at the end, and when it says nothing.
  for (const std::string& without :
       {line(25 * kKiB, 0.9), line(0, 30), line(100 * kKiB, 30), line(1, 1e6)}) {
    EXPECT_EQ(without.find("left"), std::string::npos) << without;
  }
}

TEST(ProgressTest, FitsNarrowTerminals) {
  const auto line = [](size_t columns, double seconds = 0.5) {
    const std::string text =
        ProgressLine("import", 512 * kKiB, 1024 * kKiB, duration<double>(seconds), columns);
    EXPECT_LE(text.size(), columns);
    return text;
  };
  EXPECT_EQ(line(60), "import [#######       ]  50 %  512 KiB of 1.0 MiB  1.0 MiB/s");
  EXPECT_EQ(line(50), "import [#######        ]  50 %  512 KiB of 1.0 MiB");
  EXPECT_EQ(line(40), "import [############            ]  50 %");
  EXPECT_EQ(line(30), "import [#######        ]  50 %");
  EXPECT_EQ(line(20), "import  50 %");
  EXPECT_EQ(line(8), " 50 %");
  EXPECT_EQ(line(3), "");
  EXPECT_EQ(line(72, 2),
            "import [########        ]  50 %  512 KiB of 1.0 MiB  256 KiB/s  2 s left");
  EXPECT_EQ(line(60, 2), "import [#######        ]  50 %  512 KiB of 1.0 MiB  2 s left");
  EXPECT_EQ(line(40, 2), "import [#######        ]  50 %  2 s left");
  EXPECT_EQ(line(30, 2), "import [#######        ]  50 %");
  EXPECT_EQ(ProgressLine("check", 1024 * kKiB, 0, duration<double>(2), 16), "check 1.0 MiB");
}

TEST(ProgressTest, HasNoBarInLinesOfText) {
  EXPECT_EQ(ProgressText("import", 512 * kKiB, 1024 * kKiB, duration<double>(2)),
            "import  50 %  512 KiB of 1.0 MiB  256 KiB/s  2 s left");
  EXPECT_EQ(ProgressText("check", 1024 * kKiB, 0, duration<double>(2)), "check 1.0 MiB  512 KiB/s");
}

TEST(ProgressTest, NeverPassesTheEnd) {
  EXPECT_EQ(ProgressLine("x", 30, 20, duration<double>(1)),
            "x [########################] 100 %  20 B of 20 B  20 B/s");
}

}  // namespace
}  // namespace varve::internal::cli
