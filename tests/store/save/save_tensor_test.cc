// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_tensor.h"

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
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

TEST(SaveTensorTest, OfASharedDescriptionNothingIsCopied) {
  SaveTensors tensors;
  auto specs = std::make_shared<std::vector<TensorSpec>>(2);
  for (TensorSpec& spec : *specs) {
    spec = {.name = "a name that is long enough",
            .dtype = DType::kBF16,
            .shape = {4},
            .derived_from = "master",
            .layout = ShardLayout::Whole({4})};
  }
  const auto add = [&](size_t i) {
    return tensors.Add(std::shared_ptr<const TensorSpec>(specs, &(*specs)[i]),
                       static_cast<uint32_t>(i));
  };
  const SaveTensor* const first = add(0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->name.data(), (*specs)[0].name.data());
  EXPECT_EQ(first->shape.data(), (*specs)[0].shape.data());
  EXPECT_EQ(first->layout, &*(*specs)[0].layout);
  EXPECT_EQ(first->derived_from(), "master");
  EXPECT_EQ(add(1)->layout, first->layout) << "equal layouts are one";
  EXPECT_EQ(add(1), nullptr);
  EXPECT_EQ(specs.use_count(), 2) << "shared as long as the tensors, once";
}

// While names rise there is no table to look them up in.
TEST(SaveTensorTest, FindsTensorsThatCameInOrder) {
  SaveTensors tensors;
  const auto name_of = [](int i) { return "t" + std::to_string(1000 + i); };
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(tensors.Add({.name = name_of(i / 2), .shard = static_cast<uint32_t>(i % 2)}),
              nullptr);
  }
  EXPECT_TRUE(tensors.are_sorted());
  EXPECT_EQ(tensors.Find("t1007", 1)->name, "t1007");
  EXPECT_EQ(tensors.Find("t1007", 2), nullptr);
  EXPECT_EQ(tensors.Find("t", 0), nullptr);
  EXPECT_EQ(tensors.Find("u", 0), nullptr);
  EXPECT_EQ(tensors.Add({.name = "t1007", .shard = 1}), nullptr) << "it is there";
  ASSERT_NE(tensors.Add({.name = "a"}), nullptr);
  EXPECT_FALSE(tensors.are_sorted());
  EXPECT_EQ(tensors.Find("t1007", 1)->shard, 1u);
  EXPECT_EQ(tensors.Sorted()[0]->name, "a");
  EXPECT_EQ(tensors.size(), 101u);
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
}  // namespace varve::internal::testing
