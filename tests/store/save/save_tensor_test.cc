// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_tensor.h"

#include "tests/store/store_fixture.h"

namespace varve::testing {
namespace {

using ::testing::ElementsAre;

TEST(SaveTensorTest, KeepsCopiesOfWhatDescribesAView) {
  SaveTensors tensors;
  SaveTensor* kept = nullptr;
  {
    const std::string name = "w", master = "master.w", alias = "v";
    const std::vector<int64_t> shape = {2, 3}, strides = {1, 2};
    const ShardLayout layout = ShardLayout::Whole({2, 3});
    kept = tensors.Add({.name = name,
                        .dtype = DType::kBF16,
                        .shape = shape,
                        .strides = strides,
                        .derived_from = master,
                        .alias_of = alias,
                        .role = TensorRole::kParameter,
                        .shard = 3,
                        .layout = &layout});
  }
  ASSERT_NE(kept, nullptr);
  EXPECT_THAT(kept->strides(), ElementsAre(1, 2));
  const TensorRecordView record = kept->Record(9);
  EXPECT_EQ(record.save_id, 9u);
  EXPECT_EQ(record.dtype, DType::kBF16);
  EXPECT_THAT(record.shape, ElementsAre(2, 3));
  EXPECT_EQ(record.derived_from, "master.w");
  EXPECT_EQ(record.alias_of, "v");
  EXPECT_EQ(record.role, TensorRole::kParameter);
  ASSERT_NE(record.layout, nullptr);
  EXPECT_EQ(*record.layout, ShardLayout::Whole({2, 3}));
  EXPECT_EQ(kept->Geometry().LogicalBytes(), 12u);
  EXPECT_EQ(tensors.Find("w", 3), kept);
  EXPECT_EQ(tensors.Find("w", 2), nullptr);
  EXPECT_EQ(tensors.Find("v", 3), nullptr);
}

TEST(SaveTensorTest, DenseStridesAreNone) {
  SaveTensors tensors;
  const std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  SaveTensor* const kept = tensors.Add({.name = "w", .shape = shape, .strides = strides});
  EXPECT_TRUE(kept->strides().empty());
  EXPECT_EQ(kept->extra, nullptr) << "most tensors take no memory for it";
  EXPECT_TRUE(kept->derived_from().empty());
}

TEST(SaveTensorTest, EqualLayoutsAreOne) {
  SaveTensors tensors;
  const ShardLayout whole = ShardLayout::Whole({4});
  ShardLayout in_two = whole;
  in_two.axes = {{{0, 1}, {1, 3}}};
  ShardLayout flat = whole;
  flat.flat = Range{0, 4};
  const std::vector<int64_t> shape = {4};
  const auto add = [&](uint32_t shard, const ShardLayout& layout) {
    return tensors.Add({.name = "w", .shape = shape, .shard = shard, .layout = &layout})->layout;
  };
  const ShardLayout* const first = add(0, whole);
  EXPECT_EQ(add(1, in_two), first);
  EXPECT_NE(add(2, flat), first);
}

TEST(SaveTensorTest, FindsEachOfManyAndSortsThem) {
  SaveTensors tensors;
  constexpr uint32_t kTensors = 5000;
  for (uint32_t i = 0; i < kTensors; ++i) {
    const std::string name = "t" + std::to_string(i / 2 * 7919 % 10007);
    ASSERT_NE(tensors.Add({.name = name, .shard = 1 - i % 2}), nullptr) << i;
    ASSERT_EQ(tensors.Add({.name = name, .shard = 1 - i % 2}), nullptr) << i;
  }
  EXPECT_EQ(tensors.size(), kTensors);
  for (SaveTensor& tensor : tensors.all()) {
    EXPECT_EQ(tensors.Find(tensor.name, tensor.shard), &tensor);
  }
  const auto sorted = tensors.Sorted();
  ASSERT_EQ(sorted.size(), kTensors);
  for (size_t i = 1; i < sorted.size(); ++i) {
    EXPECT_LT(keys::Tensor({}, sorted[i - 1]->name, sorted[i - 1]->shard),
              keys::Tensor({}, sorted[i]->name, sorted[i]->shard));
  }
}

}  // namespace
}  // namespace varve::testing
