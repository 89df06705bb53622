// SPDX-License-Identifier: Apache-2.0
#include "cli/print.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>

namespace varve::internal::cli {
namespace {

using std::chrono::duration;

TEST(PrintTest, Sentences) {
  EXPECT_EQ(CountOf(3, 12), "3 of 12");
  SaveReport report;
  report.id = {"exp\n", 5};
  report.num_tensors = 1;
  report.logical_bytes = 2048;
  report.new_bytes = 1024;
  report.stored_bytes = 10;
  report.elapsed = std::chrono::milliseconds(340);
  EXPECT_EQ(SaveText(report),
            "step exp\\n@5: 1 tensor, 2.0 KiB, of which 1.0 KiB new, stored in 10 B (340 ms)");
}

TEST(PrintTest, HumanBytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1288490189), "1.2 GiB");
  EXPECT_EQ(HumanBytes(340 << 20), "340 MiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes((1u << 30) - 1), "1.0 GiB");
  EXPECT_EQ(HumanBytes(1023 << 10), "1023 KiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16.0 EiB");
}

TEST(PrintTest, HumanDuration) {
  EXPECT_EQ(HumanDuration(duration<double>(0)), "0 us");
  EXPECT_EQ(HumanDuration(duration<double>(850e-6)), "850 us");
  EXPECT_EQ(HumanDuration(duration<double>(0.0123)), "12 ms");
  EXPECT_EQ(HumanDuration(duration<double>(0.9999)), "1.0 s");
  EXPECT_EQ(HumanDuration(duration<double>(3.44)), "3.4 s");
  EXPECT_EQ(HumanDuration(duration<double>(59.99)), "1 min 0 s");
  EXPECT_EQ(HumanDuration(duration<double>(125)), "2 min 5 s");
  EXPECT_EQ(HumanDuration(duration<double>(3720)), "1 h 2 min");
}

TEST(PrintTest, HumanTimeSaysItsZone) {
  const char* const zone = std::getenv("TZ");
  const std::optional<std::string> before = zone ? std::optional<std::string>(zone) : std::nullopt;
  const std::chrono::system_clock::time_point time{std::chrono::seconds(1'785'000'000)};
  ::setenv("TZ", "AAA-5:30", 1);  // 5 h 30 min before UTC
  ::tzset();
  EXPECT_EQ(HumanTime(time), "2026-07-25 22:50:00 +0530");
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(HumanTime(time), "2026-07-25 17:20:00 +0000");
  before ? ::setenv("TZ", before->c_str(), 1) : ::unsetenv("TZ");
  ::tzset();
}

TEST(PrintTest, HumanRateAndShare) {
  EXPECT_EQ(HumanRate(3 << 20, duration<double>(2)), "1.5 MiB/s");
  EXPECT_EQ(HumanRate(5, duration<double>(0)), "-");
  EXPECT_EQ(HumanShare(1, 8), "12.5 %");
  EXPECT_EQ(HumanShare(1, 0), "-");
}

TEST(PrintTest, HumanShapeIdAndMetrics) {
  EXPECT_EQ(HumanShape({}), "[]");
  const int64_t shape[] = {1024, 3};
  EXPECT_EQ(HumanShape(shape), "[1024, 3]");
  EXPECT_EQ(HumanId({"main", 5}), "5");
  EXPECT_EQ(HumanId({"exp", 5}), "exp@5");
  EXPECT_EQ(HumanMetrics({{"b", 2.5}, {"a", 1}}), "a=1 b=2.5");
}

TEST(PrintTest, HumanNumber) {
  EXPECT_EQ(HumanNumber(0.1), "0.1");
  EXPECT_EQ(HumanNumber(-1e-30), "-1e-30");
  EXPECT_EQ(HumanNumber(INFINITY), "inf");
  EXPECT_EQ(HumanNumber(-NAN), "nan");
}

TEST(PrintTest, CountAndJoin) {
  EXPECT_EQ(Count(1, "step"), "1 step");
  EXPECT_EQ(Count(0, "step"), "0 steps");
  const std::string parts[] = {"a", "b"};
  EXPECT_EQ(Join(parts, ", "), "a, b");
  EXPECT_EQ(Join({}, ", "), "");
}

TEST(PrintTest, EscapesControlCharacters) {
  EXPECT_EQ(Printable("plain é/ ok"), "plain é/ ok");
  EXPECT_EQ(Printable("a\nb\tc\x1b[2J\x7f"), "a\\nb\\tc\\x1b[2J\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
}

TEST(PrintTest, EscapesControlCharactersBeyondAscii) {
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\x9b2J");  // U+009B starts a terminal command too
  EXPECT_EQ(Printable("\xc2\xa0"), "\xc2\xa0");
}

TEST(PrintTest, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(Printable("a\xff\xc2"), "a\\xff\\xc2");
  EXPECT_EQ(Printable("\x9b"
                      "2J"),
            "\\x9b2J");  // the same command for terminals of one byte a character
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82");           // cut short
  EXPECT_EQ(Printable("\xc0\x9b"), "\\xc0\\x9b");           // longer than need be
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(Printable("\xe2\x82\xac \xf0\x9f\x98\x80"), "\xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST(PrintTest, EscapesMarksThatTurnTextAround) {
  EXPECT_EQ(Printable("a\xe2\x80\xaez"), "a\\u202ez");
}

TEST(PrintTest, EscapesWhatEndsALineOrShowsNothing) {
  EXPECT_EQ(Printable("a\u2028b\u2029c"), "a\\u2028b\\u2029c");
  EXPECT_EQ(Printable("\ufeffa\u2060\u206a\ufff9\u061c"), "\\ufeffa\\u2060\\u206a\\ufff9\\u061c");
  EXPECT_EQ(Printable("\U000e0041"), "\\U000e0041");
  // Neighbours of these, and what joins a family into one picture, stay.
  EXPECT_EQ(Printable("\u2027\u202f\u200d\ufffd\U0001f468"), "\u2027\u202f\u200d\ufffd\U0001f468");
}

TEST(PrintTest, MessagesCutLongWords) {
  EXPECT_EQ(Message("step 5: \"" + std::string(254, 'x') + "\""),
            "step 5: \"" + std::string(254, 'x') + "\"");
  EXPECT_EQ(Message("a " + std::string(1000, 'x') + " b"),
            "a " + std::string(96, 'x') + "...(872 bytes)..." + std::string(32, 'x') + " b");
  std::string euros;
  for (int i = 0; i < 500; ++i) euros += "\xe2\x82\xac";
  EXPECT_EQ(Printable(Message(euros)), Message(euros));  // no character is cut
}

TEST(TableTest, AlignsColumns) {
  Table table({{"name"}, {"bytes", Table::Align::kRight}, {"note"}});
  table.AddRow({"é", "12", "x"});
  table.AddRow({"longer", "7", ""});
  EXPECT_EQ(table.ToString(),
            "name    bytes  note\n"
            "é          12  x\n"
            "longer      7\n");
}

TEST(TableTest, KeepsHostileNamesOnTheirLine) {
  Table table({{"name"}});
  table.AddRow({"a\nb"});
  EXPECT_EQ(table.ToString(), "name\na\\nb\n");
}

}  // namespace
}  // namespace varve::internal::cli
