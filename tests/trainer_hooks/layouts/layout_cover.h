// SPDX-License-Identifier: Apache-2.0
//
// Conditions on the layouts of all ranks together.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "store/shards/overlap.h"
#include "tests/store/store_fixture.h"
#include "tests/support/shard_reference.h"
#include "varve/layouts.h"

namespace varve::internal::testing {

using MakeLayout = std::function<Result<ShardLayout>(RankOf)>;

// The layouts of all ranks of a group.
inline std::vector<ShardLayout> LayoutsOf(int64_t ranks, const MakeLayout& make) {
  std::vector<ShardLayout> layouts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Result<ShardLayout> layout = make({rank, ranks});
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    if (layout.ok()) layouts.push_back(*layout);
  }
  return layouts;
}

// Returns the layouts as people read them.
inline std::vector<std::string> TextsOf(int64_t ranks, const MakeLayout& make) {
  std::vector<std::string> texts;
  for (const ShardLayout& layout : LayoutsOf(ranks, make)) texts.push_back(ToString(layout));
  return texts;
}

// Every element of the global tensor is held once.
inline void ExpectCoversOnce(const std::vector<ShardLayout>& layouts) {
  ASSERT_FALSE(layouts.empty());
  int64_t held = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    VARVE_ASSERT_OK(ValidateLayout(layouts[i]));
    held += layouts[i].NumHeld();
    for (size_t j = 0; j < i; ++j) {
      ASSERT_EQ(Overlap(layouts[i], layouts[j]).Count(), 0u)
          << ToString(layouts[i]) << " and " << ToString(layouts[j]);
    }
  }
  EXPECT_EQ(held, layouts[0].NumGlobal()) << ToString(layouts[0]);
}
inline void ExpectCoversOnce(int64_t ranks, const MakeLayout& make) {
  ExpectCoversOnce(LayoutsOf(ranks, make));
}

// Expects that a reshard gives each rank of `targets` what it should hold. Elements are their own
// global indices, and padding stays as the target has it.
inline void ExpectReshards(const std::vector<ShardLayout>& sources,
                           const std::vector<ShardLayout>& targets) {
  for (const ShardLayout& target : targets) {
    const std::vector<int64_t> expected = PlacesOf(target);
    std::vector<int64_t> restored(expected.size(), kPaddingPlace);
    for (const ShardLayout& source : sources) {
      const std::vector<int64_t> held = PlacesOf(source);
      Overlap(source, target).ForEachRun(Overlap::kEverywhere, [&](const CopyRun& run) {
        for (uint64_t i = 0; i < run.length; ++i) {
          restored[run.target + i] = held[run.source + i];
        }
      });
    }
    EXPECT_EQ(restored, expected) << ToString(target);
  }
}

}  // namespace varve::internal::testing
