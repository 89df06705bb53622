// SPDX-License-Identifier: Apache-2.0
//
// How often a rank copies what describes a tensor, from BeginSave on. The names tell: with longer
// names, each copy allocates as many bytes more. Layouts tell only by what a save keeps, because a
// layout that is looked at allocates, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/store/store_fixture.h"
#include "tests/support/forwarding_ranks.h"
#include "tests/support/scarce_memory.h"
#include "tests/trainer_hooks/one_worker.h"
#include "varve/group_checkpointer.h"

namespace varve::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::Le;

constexpr size_t kPairs = kUnderTsan ? 500 : 1000;

// Knows how much its own calls allocate. The copies of a message that a group makes to carry it
// are not counted.
class CountingRanks : public ForwardingRanks {
 public:
  using ForwardingRanks::ForwardingRanks;

  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    const size_t before = AskedByThisThread();
    auto all = ForwardingRanks::AllGather(mine);
    asked_ += AskedByThisThread() - before;
    return all;
  }

  // What this thread has asked for outside of the calls.
  size_t AskedOutside() const { return AskedByThisThread() - asked_; }

 private:
  size_t asked_ = 0;
};

// Masters, and weights that name them. All names have this many bytes.
TrainingState Pairs(size_t name_bytes, std::vector<float>* data) {
  TrainingState state;
  for (size_t i = 0; i < kPairs; ++i) {
    std::string master = "m" + std::to_string(i), weight = "w" + std::to_string(i);
    master.resize(name_bytes, '.');
    weight.resize(name_bytes, '.');
    state.tensors.push_back({{.name = master, .shape = {2, 2}}, data->data() + 8 * i});
    state.tensors.push_back(
        {{.name = weight, .dtype = DType::kBF16, .shape = {2, 2}, .derived_from = master},
         data->data() + 8 * i + 4});
  }
  return state;
}

// Saves on two ranks, under this rule for all tensors: the first save, one of the same tensors, and
// one of fewer. Returns what BeginSave of rank 0 allocates in each.
std::vector<size_t> BytesAsked(size_t name_bytes, ReplicaPolicy rule) {
  const TempFolder folder;
  CheckpointerOptions options;
  options.replicas.push_back({"*", rule});
  std::vector<size_t> asked;
  auto groups = ThreadRanks(2, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CountingRanks ranks(groups[rank].get());
      auto checkpointer = OpenGroupCheckpointer(folder.path() / "root", &ranks, options);
      ASSERT_TRUE(checkpointer.ok()) << checkpointer.status().ToString();
      std::vector<float> data(8 * kPairs);
      TrainingState state = Pairs(name_bytes, &data);
      for (uint64_t step = 1; step <= 3; ++step) {
        if (step == 3) state.tensors.resize(kPairs);
        const size_t before = ranks.AskedOutside();
        VARVE_ASSERT_OK((*checkpointer)->BeginSave(step, state, {}).status());
        if (rank == 0) asked.push_back(ranks.AskedOutside() - before);
        VARVE_ASSERT_OK((*checkpointer)->AwaitStaged());
      }
      VARVE_EXPECT_OK((*checkpointer)->Close());
    });
  }
  threads.clear();
  return asked;
}

// How often each of the saves copies each name, and each name of a master.
std::vector<double> CopiesOfNames(ReplicaPolicy rule) {
  constexpr size_t kShort = 100, kLong = 1000;
  const std::vector<size_t> few = BytesAsked(kShort, rule), many = BytesAsked(kLong, rule);
  const double more = kPairs * 3 * (kLong - kShort);  // bytes of names
  std::vector<double> copies;
  for (size_t i = 0; i < few.size() && i < many.size(); ++i) {
    const double of = i == 2 ? more / 2 : more;  // the last save has half of the tensors
    copies.push_back((static_cast<double>(many[i]) - static_cast<double>(few[i])) / of);
  }
  return copies;
}

// Rank 0 saves all tensors. They have replicas, or their names change.
TEST(NameCopiesTest, ASaveOfARankMakesTwoAtMost) {
  for (const ReplicaPolicy rule : {ReplicaPolicy::kTakeLowest, ReplicaPolicy::kKeepPerRank}) {
    const std::vector<double> copies = CopiesOfNames(rule);
    EXPECT_EQ(copies.size(), 3u);
    // The buffer in which names go to the digest takes a little more or less.
    EXPECT_THAT(copies, Each(AllOf(Gt(0.9), Le(2.05))));
  }
}

// All of a vector, in this many blocks, the last of which comes first.
ShardLayout Backwards(int64_t blocks, int64_t size) {
  ShardLayout layout = ShardLayout::Whole({size});
  layout.axes[0].clear();
  for (int64_t i = blocks; i > 0; --i) {
    layout.axes[0].push_back({.begin = (i - 1) * size / blocks, .length = size / blocks});
  }
  return layout;
}

// What BeginSave of rank 0 keeps in a first save of tensors that it alone has. Their layouts have
// this many segments.
int64_t BytesKept(int64_t segments, int64_t num_tensors) {
  constexpr int64_t kSize = 128;
  const TempFolder folder;
  int64_t kept = 0;
  auto groups = ThreadRanks(2, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto checkpointer = OpenGroupCheckpointer(folder.path() / "root", groups[rank].get(), {});
      ASSERT_TRUE(checkpointer.ok()) << checkpointer.status().ToString();
      std::vector<float> data(static_cast<size_t>(kSize * num_tensors));
      TrainingState state;
      if (rank == 1) state.tensors.push_back({{.name = "other", .shape = {2}}, data.data()});
      for (int64_t i = 0; rank == 0 && i < num_tensors; ++i) {
        state.tensors.push_back({{.name = "t" + std::to_string(i),
                                  .shape = {kSize},
                                  .layout = Backwards(segments, kSize)},
                                 data.data() + kSize * i});
      }
      const int64_t before = KeptByThisThread();
      VARVE_ASSERT_OK((*checkpointer)->BeginSave(1, state, {}).status());
      if (rank == 0) kept = KeptByThisThread() - before;
      VARVE_ASSERT_OK((*checkpointer)->AwaitStaged());
      VARVE_EXPECT_OK((*checkpointer)->Close());
    });
  }
  threads.clear();
  return kept;
}

// The list that goes to all ranks has two numbers of each segment.
TEST(LayoutCopiesTest, ASaveKeepsALayoutInItsListAndInItsPart) {
  constexpr int64_t kFew = 8, kMany = 128, kTensors = 300;
  constexpr int64_t kMore = (kMany - kFew) * kTensors;  // segments
  const auto kept = static_cast<double>(BytesKept(kMany, kTensors) - BytesKept(kFew, kTensors));
  const auto both = static_cast<double>(kMore * (2 * sizeof(int64_t) + sizeof(Segment)));
  EXPECT_THAT(kept / both, AllOf(Gt(0.95), Le(1.05)));
}

}  // namespace
}  // namespace varve::internal::testing
