// SPDX-License-Identifier: Apache-2.0
#include "store/shards/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace varve::internal {

namespace {

std::vector<std::byte> Noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(CopyRunsTest, RunsOfAnySize) {
  for (size_t bytes = 1; bytes <= 130; ++bytes) {
    for (const size_t gap : {0, 1, 5}) {
      constexpr size_t kCount = 7;
      const size_t step = bytes + gap;
      const std::vector<std::byte> from = Noise(kCount * step, static_cast<uint32_t>(bytes));
      std::vector<std::byte> to(kCount * (bytes + 2), std::byte{9}), expected = to;
      for (size_t i = 0; i < kCount; ++i) {
        std::copy_n(from.data() + i * step, bytes, expected.data() + i * (bytes + 2));
      }
      CopyRuns(from.data(), static_cast<int64_t>(step), to.data(), static_cast<int64_t>(bytes + 2),
               bytes, kCount);
      ASSERT_EQ(to, expected) << bytes << " bytes, " << gap << " between";
    }
  }
}

struct Strided {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t first_place = 0;  // of element 0, so that none lies below 0
  int64_t places = 1;
  int64_t elements = 1;
};

// Axes in any order in memory, with gaps and some of them backwards.
Strided RandomStrided(std::mt19937* random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>((*random)() % n); };
  Strided s;
  const int64_t num_axes = below(5);
  s.shape.resize(static_cast<size_t>(num_axes));
  s.strides.resize(s.shape.size());
  std::vector<size_t> order(s.shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), *random);
  for (const size_t axis : order) {
    s.shape[axis] = below(8) == 0 ? 40 + below(40) : 1 + below(5);
    s.elements *= s.shape[axis];
    int64_t stride = s.places + below(2) * below(3);
    s.places += stride * (s.shape[axis] - 1);
    if (below(5) == 0) {
      s.first_place += stride * (s.shape[axis] - 1);
      stride = -stride;
    }
    s.strides[axis] = stride;
  }
  return s;
}

int64_t OffsetOf(int64_t element, const Strided& s) {
  int64_t offset = 0;
  for (size_t i = s.shape.size(); i-- > 0; element /= s.shape[i]) {
    offset += element % s.shape[i] * s.strides[i];
  }
  return offset;
}

TEST(StridedCopyTest, AnyStridesAndAnyPart) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const Strided s = RandomStrided(&random);
    if (s.places > 100000) continue;
    const std::vector<StridedAxis> axes = JoinAxes(s.shape, s.strides);
    for (const size_t bytes : {1, 2, 4, 8, 16, 3}) {
      const std::vector<std::byte> memory =
          Noise(static_cast<size_t>(s.places) * bytes, static_cast<uint32_t>(round));
      const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(s.elements));
      const int64_t count =
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(s.elements - first));
      std::vector<std::byte> expected(static_cast<size_t>(count) * bytes), dense = expected;
      std::vector<std::byte> back(memory.size(), std::byte{1}), expected_back = back;
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(s.first_place + OffsetOf(first + i, s)) * bytes;
        std::copy_n(memory.data() + at, bytes, expected.data() + static_cast<size_t>(i) * bytes);
        std::copy_n(memory.data() + at, bytes, expected_back.data() + at);
      }
      const auto base = static_cast<size_t>(s.first_place) * bytes;
      GatherElements(axes, memory.data() + base, bytes, first, dense);
      ASSERT_EQ(dense, expected) << "round " << round << ", " << bytes << " bytes";
      ScatterElements(axes, dense, bytes, first, back.data() + base);
      ASSERT_EQ(back, expected_back) << "round " << round << ", " << bytes << " bytes";
    }
  }
}

}  // namespace

}  // namespace varve::internal
