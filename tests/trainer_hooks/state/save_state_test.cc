// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/save_state.h"

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;

TEST(SaveStateTest, WhatIsSavedIsInOneWayOfWriting) {
  float data[24] = {};
  ShardLayout in_two = ShardLayout::Whole({4, 3});
  in_two.axes[0] = {{.begin = 0, .length = 1}, {.begin = 1, .length = 3}};
  TrainingState state;
  state.tensors = {{{.name = "dense", .shape = {4, 3}, .layout = in_two}, data, kHost, {3, 1}},
                   {{.name = "strided", .shape = {3, 4}}, data + 12, kHost, {1, 3}}};
  const auto saved = MakeStateTensors(state.tensors);
  ASSERT_EQ(saved->tensors.size(), 2u);
  EXPECT_TRUE(saved->tensors[0].strides.empty());
  EXPECT_EQ(saved->tensors[0].layout, ShardLayout::Whole({4, 3}));
  EXPECT_THAT(saved->tensors[1].strides, ElementsAre(1, 3));
  EXPECT_FALSE(saved->tensors[1].layout.has_value());
}

TEST(SaveStateTest, TiedTensorsNameTheFirstOfThem) {
  float data[12] = {}, other[12] = {};
  TrainingState state;
  state.tensors = {{{.name = "a", .shape = {12}, .alias_of = "nobody"}, data},
                   {{.name = "b", .shape = {12}}, other},
                   {{.name = "c", .shape = {12}}, data},
                   {{.name = "cut", .shape = {6}}, data},
                   {{.name = "d", .shape = {12}}, data},
                   {{.name = "none", .shape = {0}}, data},
                   {{.name = "none too", .shape = {0}}, data}};
  const auto saved = MakeStateTensors(state.tensors);
  EXPECT_THAT(saved->firsts, ElementsAre(0, 1, 0, 3, 0, 5, 6));
  std::vector<std::string> names;
  for (const StateTensor& tensor : saved->tensors) names.push_back(tensor.alias_of);
  EXPECT_THAT(names, ElementsAre("", "", "a", "", "a", "", ""));
}

// The number follows from the layout, and not from the place in the state.
TEST(SaveStateTest, ShardsOfOneNameHaveNumbers) {
  float data[12] = {};
  const auto rows = [&](int64_t first) {
    ShardLayout layout = ShardLayout::Whole({4, 3});
    layout.axes[0] = {{.begin = first, .length = 2}};
    return StateTensor{{.name = "w", .shape = {2, 3}, .layout = layout}, data + 3 * first};
  };
  TrainingState state;
  state.tensors = {rows(2), {{.name = "v", .shape = {1}}, data}, rows(0)};
  EXPECT_THAT(MakeStateTensors(state.tensors)->shards, ElementsAre(1, 0, 0));
}

// Everything of a tensor counts, but not in which way it is written.
TEST(SaveStateTest, TensorsAreKnownAgainUnlessSomethingOfThemIsNew) {
  float data[12] = {}, other[12] = {};
  ShardLayout in_two = ShardLayout::Whole({4, 3});
  in_two.axes[0] = {{.begin = 0, .length = 1}, {.begin = 1, .length = 3}};
  TrainingState state;
  state.tensors = {{{.name = "w", .shape = {4, 3}, .layout = in_two}, data, kHost, {3, 1}},
                   {{.name = "tied", .shape = {4, 3}, .alias_of = "nobody"}, data}};
  const auto known = MakeStateTensors(state.tensors);
  EXPECT_TRUE(known->AreOf(state.tensors));
  EXPECT_EQ(MakeSaveState(TrainingState(state), known)->tensors, known);
  const auto expect_new = [&](const auto& change) {
    TrainingState changed = state;
    change(&changed.tensors[1]);
    EXPECT_FALSE(known->AreOf(changed.tensors));
    EXPECT_NE(MakeSaveState(std::move(changed), known)->tensors, known);
  };
  expect_new([](StateTensor* t) { t->name = "v"; });
  expect_new([](StateTensor* t) { t->dtype = DType::kI32; });
  expect_new([](StateTensor* t) { t->shape = {12}; });
  expect_new([](StateTensor* t) { t->role = TensorRole::kOptimizer; });
  expect_new([](StateTensor* t) { t->derived_from = "w"; });
  expect_new([](StateTensor* t) { t->layout = ShardLayout::Whole({4, 3}); });
  expect_new([](StateTensor* t) { t->strides = {1, 4}; });
  expect_new([](StateTensor* t) { t->device = 0; });
  expect_new([&](StateTensor* t) { t->data = other; });
  state.tensors.pop_back();
  EXPECT_FALSE(known->AreOf(state.tensors));
}

}  // namespace

}  // namespace varve::internal
