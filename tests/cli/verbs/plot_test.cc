// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cli/svg.h"

namespace varve::internal::cli {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<CheckpointInfo> Checkpoints(size_t count) {
  std::vector<CheckpointInfo> checkpoints;
  for (size_t i = 0; i < count; ++i) {
    CheckpointInfo& info = checkpoints.emplace_back();
    info.id = {"main", i};
    info.logical_bytes = 1000;
    info.stored_bytes = i;
  }
  return checkpoints;
}

size_t CountOfText(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(SvgTest, EscapesWhatXmlCannotHold) {
  EXPECT_EQ(XmlText("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
  EXPECT_EQ(XmlText("\x1b[2J\n"), "\\x1b[2J\\n");
  EXPECT_EQ(XmlText("\u00e9 \ufffe\uffff"), "\u00e9 \ufffd\ufffd");
}

TEST(SvgTest, WritesShapesInOrder) {
  Svg svg(".a {}");
  svg.Rectangle({1, 2}, 3, 4, "a");
  svg.Text({5, 6.25}, "<x>", "a", Svg::Anchor::kEnd);
  const std::string file = svg.ToString(10, 20, "t & t");
  EXPECT_THAT(file, HasSubstr("viewBox=\"0 0 10.0 20.0\""));
  EXPECT_THAT(file, HasSubstr("<title>t &amp; t</title>"));
  EXPECT_THAT(file,
              HasSubstr("<rect class=\"a\" x=\"1.0\" y=\"2.0\" width=\"3.0\" height=\"4.0\"/>\n"
                        "<text class=\"a\" x=\"5.0\" y=\"6.2\" text-anchor=\"end\">&lt;x&gt;"));
}

TEST(PlotTest, FewCheckpointsAreNotBinned) {
  size_t per_bin = 0;
  EXPECT_THAT(BinCheckpoints({}, &per_bin), IsEmpty());
  EXPECT_THAT(BinCheckpoints(Checkpoints(1), &per_bin), SizeIs(1));
  EXPECT_THAT(BinCheckpoints(Checkpoints(kMaxPlotBins), &per_bin), SizeIs(kMaxPlotBins));
  EXPECT_EQ(per_bin, 1u);
}

TEST(PlotTest, ManyCheckpointsAreAveraged) {
  size_t per_bin = 0;
  const auto bins = BinCheckpoints(Checkpoints(kMaxPlotBins + 1), &per_bin);
  EXPECT_EQ(per_bin, 2u);
  ASSERT_THAT(bins, SizeIs(kMaxPlotBins / 2 + 1));
  EXPECT_EQ(bins[1].first, "2");
  EXPECT_THAT(bins[1].stored_bytes, DoubleEq(2.5));
  EXPECT_THAT(bins[1].logical_bytes, DoubleEq(1000));
  EXPECT_THAT(bins.back().stored_bytes, DoubleEq(kMaxPlotBins));  // alone in the last bin
}

TEST(PlotTest, AxisHasAPlaceForNothing) {
  const LogAxis axis(1024, 4096, 200, 0);
  EXPECT_THAT(axis.Place(0), DoubleEq(200));
  EXPECT_THAT(axis.Place(4096), DoubleEq(0));
  EXPECT_THAT(axis.Place(1024), Le(190));
  EXPECT_THAT(axis.Place(2048), DoubleEq(axis.Place(1024) / 2));
  EXPECT_THAT(axis.Ticks(), ElementsAre(1024, 2048, 4096));
}

TEST(PlotTest, AxisIsSaneForAnyBytes) {
  for (const double largest : {0.0, 1.0, 1e6, 1.8e19}) {
    for (const double smallest : {0.0, 1.0, largest}) {
      const LogAxis axis(std::min(smallest, largest), largest, 200, 0);
      EXPECT_THAT(axis.Ticks(), SizeIs(Le(9)));
      EXPECT_THAT(axis.Ticks(), SizeIs(Ge(2)));
      EXPECT_THAT(axis.Place(largest), Ge(0));
      EXPECT_THAT(axis.Place(smallest), Le(200));
    }
  }
}

TEST(PlotTest, AnEmptyStoreHasAPictureToo) {
  const std::string svg = PlotSvg({.title = "empty"});
  EXPECT_THAT(svg, HasSubstr("no checkpoints"));
  EXPECT_THAT(svg, HasSubstr("no tensors"));
  EXPECT_THAT(svg, HasSubstr("no chunks"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(PlotTest, OneCheckpointIsOneMarkALine) {
  const std::string svg = PlotSvg({.title = "one", .checkpoints = Checkpoints(1)});
  EXPECT_EQ(CountOfText(svg, "<circle"), 2u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(PlotTest, TenThousandCheckpointsStaySmall) {
  const std::string svg = PlotSvg({.title = "many", .checkpoints = Checkpoints(10000)});
  EXPECT_LT(svg.size(), 20000u);
  EXPECT_THAT(svg, HasSubstr("mean of 50 checkpoints"));
  EXPECT_EQ(CountOfText(svg, "<circle"), 0u);
}

TEST(PlotTest, BarsSayWhatTheyShow) {
  PlotData data{.title = "bars"};
  data.sharing.groups = {{"model <1>", 1 << 20, 1 << 18}, {"a.very.long.name.of.a.tensor", 1, 0}};
  data.sharing.num_checkpoints = 3;
  data.stats.by_codec = {{"planes", 7, 1 << 20, 1 << 19}};
  data.stats.by_coder = {{"zstd", 7, 1 << 20, 1 << 18}};
  const std::string svg = PlotSvg(data);
  EXPECT_THAT(svg, HasSubstr(">zstd</text>"));
  EXPECT_THAT(svg, HasSubstr(">256 KiB of 1.0 MiB (25.0 %)</text>"));
  EXPECT_THAT(svg, HasSubstr(">model &lt;1&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr(">1.0 MiB, 25.0 % new</text>"));
  EXPECT_THAT(svg, HasSubstr(">a.very.long.\u2026of.a.tensor</text>"));
  EXPECT_THAT(svg, HasSubstr("Mean of 3 checkpoints"));
  EXPECT_THAT(svg, HasSubstr(">512 KiB of 1.0 MiB (50.0 %)</text>"));
}

TEST(PlotTest, APageHoldsThePicture) {
  const PlotData data{.title = "a & b"};
  const std::string page = PlotHtml(data);
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_THAT(page, HasSubstr("<title>a &amp; b</title></head>"));
  EXPECT_THAT(page, HasSubstr(PlotSvg(data)));
}

}  // namespace
}  // namespace varve::internal::cli
