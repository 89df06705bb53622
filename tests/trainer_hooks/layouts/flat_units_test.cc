// SPDX-License-Identifier: Apache-2.0
//
// Compares flat buffers of DeepSpeed and of FSDP1 with the same buffers, built element by element.
#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::PlacesOf;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

// An element of a buffer: its tensor and its place in the tensor. Tensor -1 is padding.
struct Element {
  int64_t tensor = -1;
  int64_t place = 0;
};

void Append(int64_t tensor, int64_t size, std::vector<Element>* buffer) {
  for (int64_t i = 0; i < size; ++i) buffer->push_back({tensor, i});
}
void PadUntilMultipleOf(size_t multiple, std::vector<Element>* buffer) {
  while (buffer->size() % multiple != 0) buffer->push_back({});
}

// Every rank has an equal part of `expected`, and of each tensor what lies there.
void ExpectIs(const FlatBuffer& buffer, const std::vector<int64_t>& sizes,
              const std::vector<Element>& expected, int64_t ranks) {
  const auto part = static_cast<int64_t>(expected.size()) / ranks;
  ASSERT_THAT(buffer.buckets, ElementsAre(Range{0, part * ranks}));
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<int64_t> places;
      for (int64_t i = rank * part; i < (rank + 1) * part; ++i) {
        const Element& element = expected[static_cast<size_t>(i)];
        if (element.tensor == static_cast<int64_t>(tensor)) places.push_back(element.place);
      }
      const auto layout =
          SliceOfBuffer(ShardLayout::Whole({sizes[tensor]}), buffer, tensor, {rank, ranks});
      ASSERT_TRUE(layout.ok()) << layout.status().ToString();
      EXPECT_EQ(PlacesOf(*layout), places) << "tensor " << tensor << " of rank " << rank;
    }
  }
}

const std::vector<std::vector<int64_t>> kSizes = {
    {1}, {7, 1, 33}, {0, 5, 0}, {64, 64}, {3, 3, 3, 3, 3}, {100, 1, 1, 17}, {2, 2}};

TEST(FuseZeroGroupTest, ParametersInOrderAndPaddingAtTheEnd) {
  for (const auto& sizes : kSizes) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      std::vector<Element> expected;
      for (size_t i = 0; i < sizes.size(); ++i) {
        Append(static_cast<int64_t>(i), sizes[i], &expected);
      }
      PadUntilMultipleOf(2 * static_cast<size_t>(ranks), &expected);
      ExpectIs(*FuseZeroGroup(sizes, ranks), sizes, expected, ranks);
    }
  }
}

TEST(FuseFsdpUnitTest, AlignedWithOriginalParametersElseNot) {
  for (const auto& sizes : kSizes) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      for (const int64_t element_bytes : {2, 4, 8}) {
        for (const bool use_orig_params : {true, false}) {
          std::vector<Element> expected;
          for (size_t i = 0; i < sizes.size(); ++i) {
            const auto aligned = static_cast<size_t>(16 / element_bytes);
            if (use_orig_params) PadUntilMultipleOf(aligned, &expected);
            Append(static_cast<int64_t>(i), sizes[i], &expected);
          }
          PadUntilMultipleOf(static_cast<size_t>(ranks), &expected);
          ExpectIs(*FuseFsdpUnit(sizes, element_bytes, ranks, use_orig_params), sizes, expected,
                   ranks);
        }
      }
    }
  }
}

TEST(FuseFsdpUnitTest, RefusesWhatCannotBe) {
  EXPECT_THAT(FuseFsdpUnit(kSizes[0], 0, 2, true), FailsWith(kInvalid, "0 bytes"));
  EXPECT_THAT(FuseFsdpUnit(kSizes[0], 4, 0, true), FailsWith(kInvalid, "0 ranks"));
  EXPECT_THAT(FuseZeroGroup(std::vector<int64_t>{-1}, 2), FailsWith(kInvalid, "tensor 0 of -1"));
}

}  // namespace

}  // namespace varve::internal
