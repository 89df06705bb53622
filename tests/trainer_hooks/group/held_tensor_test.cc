// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/held_tensor.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/util.h"
#include "trainer_hooks/state/save_state.h"

namespace varve::internal {
namespace {

// What each of the two tensors is tied to: as the ranks list them, and as a save takes them.
std::vector<std::string> AliasesOf(const StateTensor& first, const StateTensor& second) {
  TrainingState state;
  state.tensors = {first, second};
  std::vector<std::string> aliases;
  const std::vector<std::byte> list = EncodeHeld(state, {});
  const auto held = DecodeHeld(list);
  EXPECT_TRUE(held.ok()) << held.status().ToString();
  for (const HeldTensor& tensor : *held) aliases.emplace_back(tensor.alias_of);
  const auto saved = MakeStateTensors(state.tensors);
  for (const StateTensor& tensor : saved->tensors) aliases.push_back(tensor.alias_of);
  return aliases;
}

TEST(HeldTensorTest, TensorsOfTheSameMemoryAreTied) {
  float data[6] = {};
  const StateTensor first{{.name = "a", .shape = {2, 3}}, data};
  StateTensor second = first;
  second.name = "b";
  EXPECT_EQ(AliasesOf(first, second), (std::vector<std::string>{"", "a", "", "a"}));
  second.shape = {3, 2};
  EXPECT_EQ(AliasesOf(first, second), std::vector<std::string>(4));
}

// It copies neither.
TEST(HeldTensorTest, AListLendsItsNamesAndLayouts) {
  float data[6] = {};
  TrainingState state;
  state.tensors.push_back({{.name = "a", .shape = {2, 3}}, data});
  const std::vector<std::byte> list = EncodeHeld(state, {});
  const std::string_view all = AsString(list);
  const auto held = DecodeHeld(list);
  ASSERT_TRUE(held.ok()) << held.status().ToString();
  const HeldTensor& tensor = held->at(0);
  for (const std::string_view text : {tensor.name, tensor.layout}) {
    ASSERT_FALSE(text.empty());
    EXPECT_TRUE(text.data() >= all.data() && text.data() + text.size() <= all.data() + all.size());
  }
  EXPECT_EQ(tensor.Layout(), ShardLayout::Whole({2, 3}));
}

TEST(HeldTensorTest, AMomentNamesItsWeight) {
  float data[6] = {};
  TrainingState state;
  for (const char* const name : {"w", "m", "v", "other"}) {
    state.tensors.push_back({{.name = name, .shape = {6}}, data});
  }
  const Digest without = DigestHeld(state, {});
  state.optimizer_step = std::make_shared<OptimizerStep>(
      OptimizerStep{.groups = {{}}, .parameters = {{"w", "m", "v"}}});
  EXPECT_NE(DigestHeld(state, {}), without);
  const std::vector<std::byte> list = EncodeHeld(state, {});
  const auto held = DecodeHeld(list);
  ASSERT_TRUE(held.ok()) << held.status().ToString();
  std::vector<std::string_view> weights;
  for (const HeldTensor& tensor : *held) weights.push_back(tensor.moment_of);
  EXPECT_EQ(weights, (std::vector<std::string_view>{"", "w", "w", ""}));
}

// Two devices may use the same address for memory of their own.
TEST(HeldTensorTest, TensorsOfTwoDevicesAreNotTied) {
  float data[6] = {};
  StateTensor first{{.name = "a", .shape = {2, 3}}, data};
  first.device = 0;
  StateTensor second = first;
  second.name = "b";
  EXPECT_EQ(AliasesOf(first, second), (std::vector<std::string>{"", "a", "", "a"}));
  second.device = 1;
  EXPECT_EQ(AliasesOf(first, second), std::vector<std::string>(4));
}

}  // namespace
}  // namespace varve::internal
