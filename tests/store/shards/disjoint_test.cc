// SPDX-License-Identifier: Apache-2.0
#include "store/shards/disjoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "store/shards/overlap.h"
#include "store/shards/regions.h"

namespace varve::internal {

namespace {

using Layouts = std::vector<ShardLayout>;

std::vector<const ShardLayout*> PointersTo(const Layouts& layouts) {
  std::vector<const ShardLayout*> pointers;
  for (const ShardLayout& layout : layouts) pointers.push_back(&layout);
  return pointers;
}

std::optional<int64_t> CountByPairs(const Layouts& layouts) {
  int64_t held = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    held += layouts[i].NumHeld();
    for (size_t k = 0; k < i; ++k) {
      if (Overlap(layouts[i], layouts[k]).Count() > 0) return std::nullopt;
    }
  }
  return held;
}

class RandomCuts {
 public:
  explicit RandomCuts(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // Cuts a tensor at random several times, so that the parts are whole together. Some parts are
  // then changed, left out or duplicated. Flat ranges and padding are among them.
  Layouts Make() {
    std::vector<int64_t> shape;
    for (int64_t axes = Below(4); axes > 0; --axes)
      shape.push_back(Below(12) == 0 ? 0 : 1 + Below(6));
    Layouts layouts = {ShardLayout::Whole(shape)};
    for (int64_t cuts = Below(12); cuts > 0; --cuts) {
      const auto i = static_cast<size_t>(Below(static_cast<int64_t>(layouts.size())));
      Cut(i, &layouts);
    }
    if (Below(2) == 0) Spoil(&layouts);
    for (ShardLayout& layout : layouts) layout = Canonical(layout);
    std::shuffle(layouts.begin(), layouts.end(), random_);
    Layouts distinct;
    for (const ShardLayout& layout : layouts) {
      if (std::find(distinct.begin(), distinct.end(), layout) == distinct.end()) {
        distinct.push_back(layout);
      }
    }
    return distinct;
  }

 private:
  void Cut(size_t i, Layouts* layouts) {
    ShardLayout& layout = (*layouts)[i];
    ShardLayout other = layout;
    const bool by_flat = layout.axes.empty() || layout.flat.has_value() || Below(4) == 0;
    if (by_flat) {
      const int64_t begin = layout.flat ? layout.flat->begin : 0;
      const int64_t end = layout.flat ? layout.flat->end : layout.NumLocal() + Below(2);
      const int64_t at = begin + Below(end - begin + 1);
      layout.flat = Range{begin, at};
      other.flat = Range{at, end};
    } else {
      const auto axis = static_cast<size_t>(Below(static_cast<int64_t>(layout.axes.size())));
      CutAxis(&layout.axes[axis], &other.axes[axis]);
    }
    layouts->push_back(std::move(other));
  }

  // Each index to one of both, in an order of its own, and perhaps padding.
  void CutAxis(std::vector<Segment>* segments, std::vector<Segment>* other) {
    std::vector<Segment> parts[2];
    const bool interleave = Below(3) == 0;
    const int64_t at = Below(7);
    int64_t place = 0;
    for (const Segment& segment : *segments) {
      for (int64_t k = 0; k < segment.length; ++k, ++place) {
        const bool second = interleave ? Below(2) == 0 : place >= at;
        parts[second ? 1 : 0].push_back({segment.begin + k, 1, segment.is_padding});
      }
    }
    for (auto& part : parts) {
      if (Below(4) == 0) std::shuffle(part.begin(), part.end(), random_);
      if (Below(6) == 0) part.push_back({.length = 1 + Below(2), .is_padding = true});
    }
    *segments = std::move(parts[0]);
    *other = std::move(parts[1]);
  }

  void Spoil(Layouts* layouts) {
    const auto i = static_cast<size_t>(Below(static_cast<int64_t>(layouts->size())));
    ShardLayout& layout = (*layouts)[i];
    switch (Below(3)) {
      case 0:
        layouts->erase(layouts->begin() + static_cast<ptrdiff_t>(i));
        break;
      case 1:
        layouts->push_back(layout);
        Cut(layouts->size() - 1, layouts);
        break;
      default:
        if (layout.axes.empty()) return;
        auto& axis =
            layout.axes[static_cast<size_t>(Below(static_cast<int64_t>(layout.axes.size())))];
        if (!axis.empty() && !axis[0].is_padding && axis[0].begin > 0) --axis[0].begin;
        if (!ValidateLayout(layout).ok() && !axis.empty()) ++axis[0].begin;
    }
  }

  std::mt19937 random_;
};

TEST(DisjointTest, RandomLayoutsHaveTheVerdictOfAllPairs) {
  RandomCuts random(5);
  int verdicts[3] = {};
  for (int round = 0; round < 5000; ++round) {
    const Layouts layouts = random.Make();
    if (layouts.empty()) continue;
    std::string text;
    for (const ShardLayout& layout : layouts) {
      ASSERT_TRUE(ValidateLayout(layout).ok()) << ToString(layout);
      text += ToString(layout) + "\n";
    }
    const std::optional<int64_t> expected = CountByPairs(layouts);
    ASSERT_EQ(CountDisjoint(PointersTo(layouts)), expected) << text;
    const bool is_whole = expected == layouts[0].NumGlobal();
    ASSERT_EQ(ProveCoverage(layouts).ok(), is_whole) << text;
    ++verdicts[is_whole ? 0 : expected.has_value() ? 1 : 2];
  }
  for (const int count : verdicts) EXPECT_GT(count, 100);
}

TEST(DisjointTest, OriginalsAreTheFirstOfEqualLayouts) {
  const ShardLayout whole = ShardLayout::Whole({6, 4});
  ShardLayout flat = whole;
  flat.flat = Range{0, 24};
  ShardLayout rows = whole;
  rows.axes[0] = {{0, 3}};
  const Layouts layouts = {rows, whole, flat, rows, flat, whole};
  EXPECT_EQ(FindOriginals(PointersTo(layouts)), (std::vector<size_t>{0, 1, 2, 0, 2, 1}));
}

// Windmills: no two of the five parts of a square make a box, and nobody cuts so. Still they are
// compared.
TEST(DisjointTest, PartsThatDoNotJoinAreCompared) {
  const auto box = [](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    ShardLayout layout = ShardLayout::Whole({3, 3});
    layout.axes = {{{row, rows}}, {{column, columns}}};
    return layout;
  };
  Layouts layouts = {box(0, 1, 0, 2), box(0, 2, 2, 1), box(2, 1, 1, 2), box(1, 2, 0, 1),
                     box(1, 1, 1, 1)};
  EXPECT_EQ(CountDisjoint(PointersTo(layouts)), 9);
  layouts[4] = box(1, 1, 1, 2);
  EXPECT_EQ(CountDisjoint(PointersTo(layouts)), std::nullopt);
}

}  // namespace

}  // namespace varve::internal
