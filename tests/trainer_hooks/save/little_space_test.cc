// SPDX-License-Identifier: Apache-2.0
//
// The disk has no room for the next checkpoint: nothing is written, and the message says what makes
// room. Of several ranks, one alone may have none: the save fails on all.
#include <dlfcn.h>
#include <sys/statvfs.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "tests/trainer_hooks/ranks_fixture.h"
#include "varve/trainer_hooks.h"

namespace {

std::atomic<int> num_looks_before_full = -1;  // negative: none is full

}  // namespace

// One look at the free space finds none.
extern "C" int statvfs(const char* path, struct statvfs* info) noexcept {
  static auto* const next =
      reinterpret_cast<int (*)(const char*, struct statvfs*)>(::dlsym(RTLD_NEXT, "statvfs"));
  const int result = next(path, info);
  if (result == 0 && num_looks_before_full.fetch_sub(1) == 0) info->f_bavail = 0;
  return result;
}

namespace varve::internal::testing {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kRows = 12;

MATCHER(SaysWhatMakesRoom, "") {
  const Status status = StatusOf(arg);
  *result_listener << status.ToString();
  const std::string text = status.ToString();
  return status.code() == StatusCode::kIOError &&
         text.find("bytes, and only 0 are free") != std::string::npos &&
         text.find("varve drop and varve forget make room") != std::string::npos;
}

TestTrainer RankOf(int size, int rank, uint64_t step) {
  ShardLayout rows = ShardLayout::Whole({kRows, 8});
  rows.axes[0] = {{.begin = rank * kRows / size, .length = kRows / size}};
  TestTrainer trainer;
  trainer.Add({.name = "w", .shape = rows.LocalShape(), .layout = rows}, step);
  trainer.state.trainer.global_step = static_cast<int64_t>(step);
  trainer.state.topology =
      Topology{.tp = static_cast<uint32_t>(size), .world_size = static_cast<uint32_t>(size)};
  return trainer;
}

class LittleSpaceTest : public RanksTest {
 protected:
  void TearDown() override {
    num_looks_before_full = -1;
    RanksTest::TearDown();
  }
  void ExpectSteps(const std::vector<uint64_t>& steps) {
    const auto store = Store::OpenForReading(root()).value();
    const auto found = store->ListCheckpoints("main").value();
    ASSERT_EQ(found.size(), steps.size());
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(found[i].id.step, steps[i]);
  }
};

TEST_F(LittleSpaceTest, ATrainingDoesNotStart) {
  TestTrainer trainer = RankOf(1, 0, 1);
  const CheckpointFlags flags{.save = root(), .save_interval = 1};
  num_looks_before_full = 0;
  EXPECT_THAT(TrainerHooks::Start(flags, &trainer.state), SaysWhatMakesRoom());
  VARVE_EXPECT_OK(TrainerHooks::Start(flags, &trainer.state).status());
}

TEST_F(LittleSpaceTest, ASaveFails) {
  auto checkpointer = AsyncCheckpointer::Open(root(), {}).value();
  TestTrainer trainer = RankOf(1, 0, 1);
  VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
  VARVE_ASSERT_OK(checkpointer->Wait());
  num_looks_before_full = 0;
  TestTrainer next = RankOf(1, 0, 2);
  checkpointer->Save(2, next.state).status().IgnoreError();
  EXPECT_THAT(checkpointer->Wait(), SaysWhatMakesRoom());
  checkpointer->Close().IgnoreError();
  checkpointer.reset();
  ExpectSteps({1});
}

TEST_F(LittleSpaceTest, ASaveOfOneRankAloneFailsOnAll) {
  for (int poor = 0; poor < kRanks; ++poor) {
    std::barrier all(kRanks);
    Run(kRanks,
        [&](int rank, AsyncCheckpointer* checkpointer) {
          const auto first = 10 * static_cast<uint64_t>(poor) + 1;
          TestTrainer trainer = RankOf(kRanks, rank, first);
          VARVE_EXPECT_OK(checkpointer->Save(first, trainer.state).status());
          VARVE_EXPECT_OK(checkpointer->Wait());
          all.arrive_and_wait();
          if (rank == 0) num_looks_before_full = poor;
          all.arrive_and_wait();
          TestTrainer next = RankOf(kRanks, rank, first + 1);
          checkpointer->Save(first + 1, next.state).status().IgnoreError();
          EXPECT_THAT(checkpointer->Wait(), SaysWhatMakesRoom()) << rank;
        },
        {.timeout = std::chrono::seconds(60)});
  }
  ExpectSteps({1, 11, 21});
}

TEST_F(LittleSpaceTest, ATrainingOfWhichOneRankHasNoRoomStartsOnNone) {
  for (int poor = 0; poor < kRanks; ++poor) {
    num_looks_before_full = poor;
    auto groups = ThreadRanks(kRanks, std::chrono::seconds(60));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        TestTrainer trainer = RankOf(kRanks, rank, 1);
        HooksOptions options;
        options.ranks = groups[static_cast<size_t>(rank)].get();
        EXPECT_THAT(
            TrainerHooks::Start({.save = root(), .save_interval = 1}, &trainer.state, options),
            SaysWhatMakesRoom())
            << rank;
      });
    }
  }
  EXPECT_THAT(Store::OpenForReading(root()).value()->ListRuns().value(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace varve::internal::testing
