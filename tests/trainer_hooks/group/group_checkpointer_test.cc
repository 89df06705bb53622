// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads, each with a checkpointer over one root: a save is one checkpoint, and every
// call has one outcome.
#include "varve/group_checkpointer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <latch>
#include <thread>

#include "store/db/store_impl.h"
#include "store/read/sharded_reader.h"
#include "tests/support/shard_reference.h"
#include "tests/trainer_hooks/ranks_fixture.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

const std::vector<int64_t> kShape = {24, 10};

ShardLayout Rows(int64_t parts, int64_t rank) {
  ShardLayout layout = ShardLayout::Whole(kShape);
  layout.axes[0] = {{rank * 24 / parts, 24 / parts}};
  return layout;
}

std::vector<std::byte> Global(uint64_t step) { return NormalTensor("w", kShape, step).bytes; }

// Returns what rank `rank` of `parts` holds at a step.
TestTrainer RankAt(int parts, int rank, uint64_t step) {
  const ShardLayout layout = Rows(parts, rank);
  TestTrainer trainer;
  trainer.Add({.name = "w", .shape = layout.LocalShape(), .layout = layout},
              CutShard(Global(step), 4, layout, {}));
  trainer.state.trainer.global_step = static_cast<int64_t>(step);
  trainer.state.topology =
      Topology{.tp = static_cast<uint32_t>(parts), .world_size = static_cast<uint32_t>(parts)};
  trainer.state.items.push_back({"loader", static_cast<uint32_t>(rank), Global(step)});
  return trainer;
}

class GroupCheckpointerTest : public RanksTest {
 protected:
  void SaveSteps(int size, const std::vector<uint64_t>& steps,
                 const CheckpointerOptions& options = {}) {
    Run(
        size,
        [&](int rank, AsyncCheckpointer* checkpointer) {
          for (const uint64_t step : steps) {
            TestTrainer trainer = RankAt(size, rank, step);
            VARVE_EXPECT_OK(checkpointer->Save(step, trainer.state).status());
            VARVE_EXPECT_OK(checkpointer->Wait());
          }
        },
        options);
  }
};

TEST_F(GroupCheckpointerTest, OtherRanksGoOnWhereTheseStopped) {
  SaveSteps(4, {1, 2});
  for (const int size : {3, 2, 1}) {
    Run(size, [&](int rank, AsyncCheckpointer* checkpointer) {
      TestTrainer into = RankAt(size, rank, 77);
      const auto report =
          checkpointer->Restore("latest", {.rank_states = RankStates::kDrop}, &into.state);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(report->id.step, 2u);
      EXPECT_EQ(report->dropped.size(), 4u);
      EXPECT_EQ(into.Bytes("w"), CutShard(Global(2), 4, Rows(size, rank), {}));
      EXPECT_EQ(into.state.trainer.global_step, 2);
    });
  }
}

TEST_F(GroupCheckpointerTest, TheStallHasTheTimeInWhichARankWaitsForOthers) {
  static constexpr double kSeconds = 0.3;
  std::latch zero_begins(1), zero_awaits(1);
  const auto come = [](int rank, std::latch* zero_comes) {
    if (rank == 0) return zero_comes->count_down();
    zero_comes->wait();
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  };
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(2, rank, 1);
    come(rank, &zero_begins);
    VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
    come(rank, &zero_awaits);
    VARVE_ASSERT_OK(checkpointer->AwaitStaged());
    VARVE_ASSERT_OK(checkpointer->Wait());
    if (rank == 0) {
      EXPECT_GE(checkpointer->last_stats().value().stall_seconds, kSeconds / 2);
    }
  });
}

TEST_F(GroupCheckpointerTest, EachRankGetsItsItemsBack) {
  SaveSteps(2, {1});
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer into = RankAt(2, rank, 77);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &into.state).status());
    ASSERT_EQ(into.state.items.size(), 2u);
    for (uint32_t of = 0; of < 2; ++of) {
      EXPECT_EQ(into.state.items[of].name, "loader");
      EXPECT_EQ(into.state.items[of].rank, of);
    }
  });
}

TEST_F(GroupCheckpointerTest, AStepThatIsKnownIsRestored) {
  SaveSteps(2, {1, 2});
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer into = RankAt(2, rank, 77);
    const auto report = checkpointer->Restore(CheckpointId{"main", 1}, {}, &into.state);
    VARVE_ASSERT_OK(report.status());
    EXPECT_EQ(report->id, (CheckpointId{"main", 1}));
    EXPECT_EQ(into.state.trainer.global_step, 1);
    const CheckpointId other{"exp", 1};
    EXPECT_THAT(checkpointer->Restore(other, {}, &into.state),
                FailsWith(StatusCode::kInvalidArgument, "rank 0: step 1 of run exp is not of run"));
  });
}

TEST_F(GroupCheckpointerTest, GeneratorsOfAllRanksComeBack) {
  const auto state_of = [](int rank) {
    return std::vector<uint8_t>{static_cast<uint8_t>(7 + rank)};
  };
  // Rank 0 has heard of the generator of rank 1, but an older state of it.
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(3, rank, 1);
    trainer.state.trainer.rng = {{static_cast<uint32_t>(rank), "cpu", state_of(rank)}};
    if (rank == 0) trainer.state.trainer.rng.push_back({1, "cpu", {1}});
    VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Wait());
  });
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer into = RankAt(3, rank, 77);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &into.state).status());
    const std::vector<RngState>& rng = into.state.trainer.rng;
    const auto own = std::ranges::find(rng, static_cast<uint32_t>(rank), &RngState::rank);
    ASSERT_NE(own, rng.end());
    EXPECT_EQ(own->state, state_of(rank));
  });
  const auto store = Store::OpenForReading(root()).value();
  const auto reader = store->OpenCheckpoint("main", 1).value();
  const auto progress = reader->ReadTrainerProgress().value();
  ASSERT_TRUE(progress.has_value());
  ASSERT_EQ(progress->rng.size(), 3u);
  for (const RngState& rng : progress->rng) {
    EXPECT_EQ(rng.state, state_of(static_cast<int>(rng.rank)));
  }
  // A job of other ranks is told of all of them, and so is a load that knows no rank.
  TestTrainer one = RankAt(1, 0, 77);
  const LoadOptions drop{.rank_states = RankStates::kDrop, .rank = 0};
  const auto report = LoadState(*reader, drop, &one.state);
  VARVE_ASSERT_OK(report.status());
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(std::ranges::count(report->dropped, "RNG cpu of rank " + std::string(rank)), 1)
        << rank;
  }
}

TEST_F(GroupCheckpointerTest, EachRankFillsItsVariables) {
  const auto describe = [](int rank, uint64_t step, int64_t* job, int64_t* own) {
    TestTrainer trainer = RankAt(2, rank, step);
    trainer.state.items = {ItemOf("job", job), ItemOf("own", own, static_cast<uint32_t>(rank))};
    if (rank != 0) trainer.state.items.erase(trainer.state.items.begin());
    return trainer;
  };
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    int64_t job = 5, own = 10 + rank;
    const TestTrainer trainer = describe(rank, 1, &job, &own);
    VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
    job = own = 0;
    VARVE_ASSERT_OK(checkpointer->Wait());
  });
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    int64_t job = 0, own = 0;
    TestTrainer into = describe(rank, 77, &job, &own);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &into.state).status());
    EXPECT_EQ(job, rank == 0 ? 5 : 0);
    EXPECT_EQ(own, 10 + rank);
    // The next save takes no bytes of the other rank.
    for (const StateItem& item : into.state.items) {
      EXPECT_TRUE(item.variable != nullptr || item.name == "job") << item.name;
    }
  });
}

// The members of all others are out of the way while a rank loads what one member has. Rank 0's has
// the topology and the trainer's progress.
TEST_F(GroupCheckpointerTest, ALoadOpensOnlyTheMembersThatHaveWhatItLoads) {
  constexpr int kRanks = 4;
  const auto without_items = [](int rank) {
    TestTrainer trainer = RankAt(kRanks, rank, 1);
    trainer.state.items.clear();
    return trainer;
  };
  Run(kRanks, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = without_items(rank);
    trainer.Add({.name = "m" + std::to_string(rank),
                 .shape = {5},
                 .role = TensorRole::kOptimizer,
                 .layout = ShardLayout::Whole({5})},
                7);
    VARVE_EXPECT_OK(checkpointer->Save(1, trainer.state).status());
    VARVE_EXPECT_OK(checkpointer->Wait());
  });
  std::vector<std::filesystem::path> others;  // members of other ranks than rank 0
  {
    const auto store = Store::OpenForReading(root()).value();
    const auto reader = ShardedReader::Open(*store, "main", 1).value();
    const auto shards = reader->FindStored("w").value();
    for (const StoredShard& shard : shards) {
      if (shard.rank != 0u) others.push_back(shard.store->path());
    }
  }
  ASSERT_EQ(others.size(), size_t{kRanks} - 1);
  const auto move_others = [&](const char* from, const char* to) {
    for (const auto& folder : others) {
      std::filesystem::rename(folder.string() + from, folder.string() + to);
    }
  };
  move_others("", ".away");
  const auto store = Store::OpenForReading(root()).value();
  const auto reader = store->OpenCheckpoint("main", 1).value();
  TestTrainer into = without_items(0);
  into.Add({.name = "m0", .shape = {5}, .layout = ShardLayout::Whole({5})}, 9);
  LoadOptions options{.strictness = Strictness::kAssumeOkUnexpected, .rank = 0};
  const auto report = LoadState(*reader, options, &into.state);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(into.Bytes("w"), CutShard(Global(1), 4, Rows(kRanks, 0), {}));
  // The roles of tensors that the target lacks are in the members.
  options = {.strictness = Strictness::kRaiseAll, .optimizer = false, .rank = 0};
  EXPECT_FALSE(LoadState(*reader, options, &into.state).ok());
  move_others(".away", "");
  VARVE_EXPECT_OK(LoadState(*reader, options, &into.state).status());
}

TEST_F(GroupCheckpointerTest, WhatFailsOnOneRankFailsOnAll) {
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(3, rank, 1);
    if (rank == 1) trainer.state.tensors[0].data = nullptr;
    EXPECT_THAT(checkpointer->Save(1, trainer.state),
                FailsWith(StatusCode::kInvalidArgument, "rank 1: tensor w: data is null"));
    EXPECT_THAT(checkpointer->Restore("latest", {}, &trainer.state),
                FailsWith(StatusCode::kNotFound, "rank 0: "));
  });
}

TEST_F(GroupCheckpointerTest, AfterCloseEveryCallFails) {
  SaveSteps(2, {1});
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(2, rank, 2);
    VARVE_EXPECT_OK(checkpointer->Close());
    const auto fails = FailsWith(StatusCode::kFailedPrecondition, "has been closed");
    EXPECT_THAT(checkpointer->Prewarm(trainer.state), fails);
    EXPECT_THAT(checkpointer->BeginSave(2, trainer.state), fails);
    EXPECT_THAT(checkpointer->Save(2, trainer.state), fails);
    EXPECT_THAT(checkpointer->AwaitStaged(), fails);
    EXPECT_THAT(checkpointer->RequireAwaited(), fails);
    EXPECT_THAT(checkpointer->Wait(), fails);
    EXPECT_THAT(checkpointer->ReleaseStaging(), fails);
    EXPECT_THAT(checkpointer->Restore("latest", {}, &trainer.state), fails);
    EXPECT_THAT(checkpointer->SetMetrics(1, {{"loss", 1}}), fails);
    EXPECT_THAT(checkpointer->SetTag(1, "t"), fails);
    if (rank == 0) VARVE_EXPECT_OK(checkpointer->Close());  // it waits for no other rank
  });
}

TEST_F(GroupCheckpointerTest, AHoleIsFoundBeforeTheCommit) {
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(3, rank, 1);  // of three ranks only two
    Status status = checkpointer->Save(1, trainer.state).status();
    if (status.ok()) status = checkpointer->Wait();
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                  "tensor w: its shards hold 160 of the 240 elements"));
    EXPECT_FALSE(checkpointer->Close().ok());  // the error is fatal
  });
}

TEST_F(GroupCheckpointerTest, RankZeroKeepsTheRetention) {
  RetentionPolicy policy;
  policy.keep_last = 2;
  SaveSteps(2, {1, 2, 3, 4}, {.retention = policy});
  const auto store = Store::OpenForReading(root()).value();
  std::vector<uint64_t> steps;
  for (const CheckpointInfo& info : store->ListCheckpoints("main").value()) {
    steps.push_back(info.id.step);
  }
  EXPECT_THAT(steps, ElementsAre(3, 4));
}

TEST_F(GroupCheckpointerTest, ARestoreOfAnEarlierStepForksTheRest) {
  SaveSteps(2, {1, 2, 3});
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = RankAt(2, rank, 77);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Save(2, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Wait());
  });
  const auto store = Store::OpenForReading(root()).value();
  EXPECT_EQ(store->ListCheckpoints("main").value().size(), 2u);
  EXPECT_EQ(store->ListCheckpoints("main~1").value().size(), 2u);
}

TEST_F(GroupCheckpointerTest, RanksThatSaveDifferentStepsAreFound) {
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    const TestTrainer trainer = RankAt(2, rank, 1);
    EXPECT_THAT(checkpointer->Save(10 + static_cast<uint64_t>(rank), trainer.state),
                FailsWith(StatusCode::kFailedPrecondition,
                          "the step to save is 10 on rank 0 and 11 on rank 1"));
    VARVE_EXPECT_OK(checkpointer->Save(12, trainer.state).status());
  });
}

TEST_F(GroupCheckpointerTest, AllRanksMustHaveOneRoot) {
  expect_damage_ = true;  // there is no root() at all
  const auto open = [&](const std::vector<std::filesystem::path>& roots) {
    std::vector<Status> statuses(roots.size());
    auto groups = ThreadRanks(static_cast<int>(roots.size()), std::chrono::seconds(60));
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < roots.size(); ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = OpenGroupCheckpointer(roots[rank], groups[rank].get(), {}).status();
      });
    }
    threads.clear();
    return statuses;
  };
  const auto a = root().parent_path() / "a", b = root().parent_path() / "b";
  for (const Status& status : open({a, b})) {
    EXPECT_THAT(status, FailsWith(StatusCode::kNotFound, "rank 1: no group in " + b.string()));
  }
  VARVE_ASSERT_OK(Group::StartEpoch(b, 2).status());
  for (const Status& status : open({a, b})) {
    EXPECT_THAT(status,
                FailsWith(StatusCode::kFailedPrecondition, "all ranks must have one folder"));
  }
  std::filesystem::create_directory(root());
  std::ofstream(root() / "thesis.txt") << "precious";
  for (const Status& status : open({root(), root()})) {
    EXPECT_THAT(status, FailsWith(StatusCode::kFailedPrecondition, "thesis.txt"));
    EXPECT_THAT(status.message(), ::testing::Not(::testing::HasSubstr("rank 0: rank 0")));
  }
}

// Loses the others at one of its calls.
class LosingRanks : public RankGroup {
 public:
  LosingRanks(std::unique_ptr<RankGroup> ranks, int loses_at)
      : ranks_(std::move(ranks)), left_(loses_at) {}

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  Status Barrier() override { return IsLost() ? Lost() : ranks_->Barrier(); }
  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    if (IsLost()) return Lost();
    return ranks_->AllGather(mine);
  }
  Result<std::vector<std::byte>> Broadcast(std::span<const std::byte> bytes, int root) override {
    if (IsLost()) return Lost();
    return ranks_->Broadcast(bytes, root);
  }
  Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                         Reduction reduction) override {
    if (IsLost()) return Lost();
    return ranks_->AllReduce(mine, reduction);
  }
  Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>> to_each) override {
    if (IsLost()) return Lost();
    return ranks_->AllToAll(to_each);
  }
  Result<std::unique_ptr<RankGroup>> Split(int color) override { return ranks_->Split(color); }
  void LoseAt(int call) { left_ = call; }

 private:
  bool IsLost() { return left_-- <= 0; }
  static Status Lost() { return Status::Unavailable("the others are lost"); }

  const std::unique_ptr<RankGroup> ranks_;
  int left_;
};

// Memory that kills who reads it once it is gone.
class Pages {
 public:
  Pages()
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    std::memset(data_, 0x5a, kBytes);
  }
  ~Pages() { munmap(data_, kBytes); }
  StateTensor Tensor(const std::string& name) const {
    return {{.name = name, .shape = {kBytes / 4}}, data_};
  }

 private:
  static constexpr int64_t kBytes = 16 << 20;
  void* const data_;
};

TEST_F(GroupCheckpointerTest, AfterABeginThatFailedTheMemoryIsTheTrainers) {
  bool is_begun = false;
  for (int loses_at = 0; !is_begun; ++loses_at) {
    ASSERT_LT(loses_at, 20);
    auto groups = ThreadRanks(2, std::chrono::seconds(60));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        LosingRanks ranks(std::move(groups[static_cast<size_t>(rank)]), 1 << 30);
        auto checkpointer = OpenGroupCheckpointer(root(), &ranks, {}).value();
        std::optional<Pages> pages(std::in_place);
        TrainingState state;
        state.tensors.push_back(pages->Tensor("w" + std::to_string(rank)));
        if (rank == 1) ranks.LoseAt(loses_at);
        const Status status = checkpointer->BeginSave(1, state).status();
        if (status.ok()) checkpointer->AwaitStaged().IgnoreError();
        pages.reset();
        if (rank == 1) is_begun = status.ok();
      });
    }
  }
}

TEST_F(GroupCheckpointerTest, ARootIsOpenedWithRanks) {
  Run(2, [](int, AsyncCheckpointer*) {});
  EXPECT_THAT(AsyncCheckpointer::Open(root()),
              FailsWith(StatusCode::kFailedPrecondition, "open it with OpenGroupCheckpointer"));
}

// Only this rank has to hurry, and changes its compression. No rank starts another attempt for
// that.
TEST_F(GroupCheckpointerTest, ADeadlineOfOneRankIsItsOwnMatter) {
  const CheckpointerOptions options{.timeout = std::chrono::seconds(60)};
  Run(
      2,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        for (const uint64_t step : {1, 2}) {
          TestTrainer trainer = RankAt(2, rank, step);
          BeginOptions begin;
          if (rank == 1) begin.deadline = std::chrono::steady_clock::now();
          VARVE_EXPECT_OK(checkpointer->Save(step, trainer.state, begin).status());
          VARVE_EXPECT_OK(checkpointer->Wait());
          const auto metrics = checkpointer->last_stats();
          ASSERT_TRUE(metrics.has_value());
          EXPECT_EQ(metrics->compression, rank == 1 ? Compression::kNone : Compression::kAuto);
        }
      },
      options);
  const auto store = Store::OpenForReading(root()).value();
  EXPECT_EQ(store->ListCheckpoints("main").value().size(), 2u);
}

// One rank is slow. The earlier save is still under way there, and only there.
TEST_F(GroupCheckpointerTest, AllSkipWhenOneIsBusy) {
  std::atomic<int> num_done = 0;
  std::latch skipped(3);
  CheckpointerOptions options{.when_busy = WhenBusy::kSkip};
  options.on_save = [&](const SaveStats& stats) {
    if (stats.skipped) return skipped.count_down();
    if (stats.step == 1 && num_done++ == 0) skipped.wait();
  };
  Run(
      3,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        TestTrainer trainer = RankAt(3, rank, 1);
        const auto save = [&](uint64_t step) {
          const auto is_saving = checkpointer->Save(step, trainer.state);
          EXPECT_TRUE(is_saving.ok()) << is_saving.status().ToString();
          return is_saving.ok() && *is_saving;
        };
        EXPECT_TRUE(save(1));
        EXPECT_FALSE(save(2));
        VARVE_EXPECT_OK(checkpointer->Wait());
        EXPECT_TRUE(save(3));
      },
      options);
  const auto store = Store::OpenForReading(root()).value();
  EXPECT_EQ(store->ListCheckpoints("main").value().size(), 2u);
}

}  // namespace
}  // namespace varve::internal::testing
