// SPDX-License-Identifier: Apache-2.0
#include "store/shards/strides.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace varve::internal {

namespace {

using Axes = std::vector<int64_t>;

TEST(StridesTest, KnowsWhatIsDense) {
  EXPECT_TRUE(Strides(Axes{2, 3}, Axes{}).IsDense());
  EXPECT_TRUE(Strides(Axes{2, 3}, Axes{3, 1}).IsDense());
  EXPECT_TRUE(Strides(Axes{2, 1, 3}, Axes{3, 77, 1}).IsDense());
  EXPECT_TRUE(Strides(Axes{}, Axes{}).IsDense());
  EXPECT_TRUE(Strides(Axes{1}, Axes{5}).IsDense());
  EXPECT_TRUE(Strides(Axes{2, 0}, Axes{9, 9}).IsDense());
  EXPECT_FALSE(Strides(Axes{2, 3}, Axes{1, 2}).IsDense());
  EXPECT_FALSE(Strides(Axes{2, 3}, Axes{4, 1}).IsDense());
  EXPECT_FALSE(Strides(Axes{3}, Axes{-1}).IsDense());
}

TEST(StridesTest, EqualPlacesAreEqual) {
  EXPECT_EQ(Strides(Axes{2, 3}, Axes{}), Strides(Axes{2, 3}, Axes{3, 1}));
  EXPECT_EQ(Strides(Axes{2, 1, 3}, Axes{8, 0, 2}), Strides(Axes{2, 1, 3}, Axes{8, 5, 2}));
  EXPECT_NE(Strides(Axes{2, 3}, Axes{}), Strides(Axes{2, 3}, Axes{1, 2}));
}

TEST(StridesTest, FindsSharedPlaces) {
  EXPECT_TRUE(Strides(Axes{2, 3}, Axes{0, 1}).HasZero());
  EXPECT_TRUE(Strides(Axes{2, 3}, Axes{0, 0}).HasZero());
  EXPECT_FALSE(Strides(Axes{1, 3}, Axes{0, 1}).HasZero());
  EXPECT_FALSE(Strides(Axes{2, 3}, Axes{3, 1}).HasZero());
}

// Element by element, as strides are defined.
int64_t OffsetOf(int64_t element, const Axes& shape, const Axes& strides) {
  int64_t offset = 0;
  for (size_t i = shape.size(); i-- > 0; element /= shape[i]) {
    offset += element % shape[i] * strides[i];
  }
  return offset;
}

TEST(StridesTest, ScattersAndGathersAnyRun) {
  struct Case {
    Axes shape, strides;
    int64_t base;  // of element 0 in the memory of 200
  };
  const Case cases[] = {{{4, 6}, {6, 1}, 0},        {{4, 6}, {1, 4}, 0},
                        {{4, 6}, {8, 1}, 3},        {{3, 4, 5}, {5, 15, 1}, 0},
                        {{3, 4, 5}, {2, 6, 24}, 7}, {{7}, {-2}, 20},
                        {{2, 3}, {-10, 3}, 50},     {{}, {}, 4},
                        {{5, 1}, {3, 9}, 0}};
  std::mt19937 random(1);
  for (const Case& c : cases) {
    for (const size_t bytes : {1, 2, 4, 8}) {
      const Strides strides(c.shape, c.strides);
      int64_t elements = 1;
      for (const int64_t size : c.shape) elements *= size;
      const int64_t first = random() % elements;
      const int64_t count = 1 + random() % (elements - first);
      std::vector<std::byte> dense(static_cast<size_t>(count) * bytes);
      for (std::byte& b : dense) b = static_cast<std::byte>(random());
      std::vector<std::byte> memory(200 * bytes, std::byte{0xEE});
      std::vector<std::byte> expected = memory;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = c.base + OffsetOf(first + i, c.shape, c.strides);
        std::memcpy(&expected[static_cast<size_t>(at) * bytes],
                    &dense[static_cast<size_t>(i) * bytes], bytes);
      }
      std::byte* base = memory.data() + static_cast<size_t>(c.base) * bytes;
      strides.Scatter(dense, bytes, first, base);
      EXPECT_EQ(memory, expected);
      std::vector<std::byte> gathered(dense.size());
      strides.Gather(base, bytes, first, gathered);
      EXPECT_EQ(gathered, dense);
    }
  }
}

TEST(StridesTest, LooksAtDenseBytesWhereTheyLieAndGathersOthers) {
  const std::array<uint16_t, 6> memory = {0, 1, 2, 3, 4, 5};
  const Axes shape = {2, 3}, strides = {1, 2};
  TensorView view{.dtype = DType::kU16, .shape = shape, .data = memory.data()};
  EXPECT_EQ(static_cast<const void*>(DenseBytes(view, 2, 6, nullptr).data()), &memory[1]);
  view.strides = strides;
  std::vector<std::byte> gathered;
  const std::span<const std::byte> bytes = DenseBytes(view, 2, 6, &gathered);
  std::array<uint16_t, 3> values{};
  ASSERT_EQ(bytes.size(), sizeof(values));
  std::memcpy(values.data(), bytes.data(), sizeof(values));
  EXPECT_EQ(values, (std::array<uint16_t, 3>{2, 4, 1}));
}

}  // namespace

}  // namespace varve::internal
