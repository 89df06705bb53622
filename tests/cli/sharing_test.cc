// SPDX-License-Identifier: Apache-2.0
#include "cli/sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "varve/store.h"

namespace varve::internal::cli {

void PrintTo(const GroupSharing& group, std::ostream* out) {
  *out << group.name << ": " << group.new_bytes << " of " << group.bytes;
}

bool operator==(const GroupSharing& a, const GroupSharing& b) {
  return a.name == b.name && a.bytes == b.bytes && a.new_bytes == b.new_bytes;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GroupByNameTest, TakesAsManyComponentsAsFit) {
  const std::map<std::string, TensorSharing> tensors = {
      {"a.b.c.d", {10, 1}}, {"a.b.c.e", {10, 2}}, {"a.b/f", {100, 0}}, {"g", {1, 1}}};
  EXPECT_THAT(GroupByName(tensors, 3),
              ElementsAre(GroupSharing{"a.b/f", 100, 0}, GroupSharing{"a.b.c", 20, 3},
                          GroupSharing{"g", 1, 1}));
  EXPECT_THAT(GroupByName(tensors, 2),
              ElementsAre(GroupSharing{"a.b", 120, 3}, GroupSharing{"g", 1, 1}));
}

TEST(GroupByNameTest, GathersTheSmallest) {
  const std::map<std::string, TensorSharing> tensors = {
      {"a", {4, 0}}, {"b", {3, 3}}, {"c", {2, 1}}, {"d", {1, 1}}};
  EXPECT_THAT(GroupByName(tensors, 3), ElementsAre(GroupSharing{"a", 4, 0}, GroupSharing{"b", 3, 3},
                                                   GroupSharing{"(others)", 3, 2}));
  EXPECT_THAT(GroupByName({}, 3), IsEmpty());
}

class MeasureSharingTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1000;

  void SetUp() override {
    auto store = Store::Create(folder_.path() / "store");
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }

  void TearDown() override {
    const auto report = store_->Check({.read_data = true});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->errors, IsEmpty());
  }

  // Tensors of one chunk each, which differ when their contents do.
  void Save(uint64_t step, const std::map<std::string, uint8_t>& contents) {
    const auto writer = store_->Begin(step);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    std::vector<std::vector<uint8_t>> data;
    const int64_t shape[] = {kBytes};
    for (const auto& [name, content] : contents) {
      std::vector<uint8_t>& bytes = data.emplace_back(kBytes, content);
      bytes.front() = static_cast<uint8_t>(name.front());  // not constant, not tied
      ASSERT_TRUE(
          (*writer)
              ->Put({.name = name, .dtype = DType::kU8, .shape = shape, .data = bytes.data()})
              .ok());
    }
    const auto report = (*writer)->Commit();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }

  testing::TempFolder folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(MeasureSharingTest, AnEmptyStoreHasNoGroups) {
  const auto sharing = MeasureSharing(*store_);
  ASSERT_TRUE(sharing.ok()) << sharing.status().ToString();
  EXPECT_THAT(sharing->groups, IsEmpty());
  EXPECT_EQ(sharing->num_checkpoints, 0u);
}

TEST_F(MeasureSharingTest, ALoneCheckpointIsAllNew) {
  Save(1, {{"a.x", 1}, {"b", 1}});
  const auto sharing = MeasureSharing(*store_);
  ASSERT_TRUE(sharing.ok()) << sharing.status().ToString();
  EXPECT_THAT(sharing->groups,
              ElementsAre(GroupSharing{"a.x", kBytes, kBytes}, GroupSharing{"b", kBytes, kBytes}));
}

TEST_F(MeasureSharingTest, CountsWhatChangedAndWhatIsAdded) {
  Save(1, {{"frozen", 1}, {"trained", 1}});
  Save(2, {{"frozen", 1}, {"trained", 2}});
  Save(3, {{"added", 1}, {"frozen", 1}, {"trained", 2}});
  const auto sharing = MeasureSharing(*store_);
  ASSERT_TRUE(sharing.ok()) << sharing.status().ToString();
  EXPECT_EQ(sharing->num_checkpoints, 2u);
  // The mean of steps 2 and 3.
  EXPECT_THAT(sharing->groups, ElementsAre(GroupSharing{"frozen", kBytes, 0},
                                           GroupSharing{"trained", kBytes, kBytes / 2},
                                           GroupSharing{"added", kBytes / 2, kBytes / 2}));
}

TEST_F(MeasureSharingTest, LooksAtASampleOfManyCheckpoints) {
  for (uint8_t step = 0; step < 40; ++step) Save(step, {{"w", step}});
  const auto sharing = MeasureSharing(*store_);
  ASSERT_TRUE(sharing.ok()) << sharing.status().ToString();
  EXPECT_EQ(sharing->num_checkpoints, 16u);
  EXPECT_THAT(sharing->groups, ElementsAre(GroupSharing{"w", kBytes, kBytes}));
}

}  // namespace
}  // namespace varve::internal::cli
