// SPDX-License-Identifier: Apache-2.0
//
// What several ranks hold alike is saved once, by whom the plan says, and comes back into any
// layout.
#include <atomic>
#include <fstream>
#include <mutex>

#include "tests/support/shard_reference.h"
#include "tests/support/sizes.h"
#include "tests/trainer_hooks/ranks_fixture.h"
#include "varve/layouts.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> Values(const std::string& name, const std::vector<int64_t>& shape,
                              uint64_t seed = 1) {
  return NormalTensor(name, shape, seed + std::hash<std::string>()(name)).bytes;
}

std::vector<std::byte> Rounded(const std::vector<std::byte>& master) {
  std::vector<std::byte> weight(master.size() / 2);
  MakeRoundedCopy(DType::kBF16, master, weight);
  return weight;
}

Topology RanksOf(int size) {
  return {.dp = static_cast<uint32_t>(size), .world_size = static_cast<uint32_t>(size)};
}

// Parameters and moments in FP32 that all ranks hold whole.
TestTrainer Replicated(uint64_t seed) {
  TestTrainer trainer;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, std::vector<int64_t>>>{{"wte", {210, 100}},
                                                                 {"fc", {150, 100}},
                                                                 {"proj", {149, 101}},
                                                                 {"ln", {300}},
                                                                 {"t", {}}}) {
    for (const std::string kind : {"", "exp_avg.", "exp_avg_sq."}) {
      trainer.Add({.name = kind + name, .shape = shape}, Values(kind + name, shape, seed));
    }
  }
  return trainer;
}

// Mixed precision with ZeRO-1: weights in BF16 that all ranks of a data-parallel group hold, and
// the flat slices of their masters. `tp` cuts rows.
const std::vector<std::pair<std::string, std::vector<int64_t>>> kZeroModel = {
    {"wte", {1000, 64}}, {"fc", {24, 640}}, {"ln", {640}}};

TestTrainer ZeroRank(int64_t tp, int64_t dp, int64_t rank, uint64_t seed = 1) {
  TestTrainer trainer;
  for (const auto& [name, shape] : kZeroModel) {
    const std::vector<std::byte> master = Values(name, shape, seed);
    ShardLayout weight = ShardLayout::Whole(shape);
    if (shape.size() > 1) weight = SplitEvenly(weight, 0, {rank % tp, tp}).value();
    const ShardLayout slice = SliceFlat(weight, {rank / tp, dp}).value();
    trainer.Add({.name = name,
                 .dtype = DType::kBF16,
                 .shape = weight.LocalShape(),
                 .role = TensorRole::kParameter,
                 .derived_from = "master." + name,
                 .layout = weight},
                CutShard(Rounded(master), 2, weight, {}));
    trainer.Add({.name = "master." + name,
                 .shape = slice.LocalShape(),
                 .role = TensorRole::kOptimizer,
                 .layout = slice},
                CutShard(master, 4, slice, {}));
  }
  return trainer;
}

class ReplicasTest : public RanksTest {
 protected:
  // Each rank saves what `make` gives, at one step after the other.
  void SaveAll(int size, const std::vector<uint64_t>& steps,
               const std::function<TestTrainer(int, uint64_t)>& make,
               const CheckpointerOptions& options = {}) {
    new_bytes_.assign(static_cast<size_t>(size), 0);
    Run(
        size,
        [&](int rank, AsyncCheckpointer* checkpointer) {
          for (const uint64_t step : steps) {
            const TestTrainer trainer = make(rank, step);
            VARVE_ASSERT_OK(checkpointer->Save(step, trainer.state).status());
            VARVE_ASSERT_OK(checkpointer->Wait());
            new_bytes_[static_cast<size_t>(rank)] = checkpointer->last_stats()->new_bytes;
          }
        },
        options);
  }
  // Each rank loads `step` into the memory of what `make` gives, and gets those values.
  void ExpectLoads(int size, uint64_t step, const std::function<TestTrainer(int)>& make) {
    Run(size, [&](int rank, AsyncCheckpointer* checkpointer) {
      const TestTrainer expected = make(rank);
      TestTrainer into = make(rank);
      for (auto& bytes : into.memory) std::fill(bytes.begin(), bytes.end(), std::byte{0x55});
      const auto report = checkpointer->Restore(std::to_string(step), {}, &into.state);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(SameTensors(expected, into).size(), expected.state.tensors.size());
    });
  }
  StoreStats Stats() { return Store::OpenForReading(root()).value()->Stats().value(); }
  uint64_t NewBytes() const {
    uint64_t sum = 0;
    for (const uint64_t bytes : new_bytes_) sum += bytes;
    return sum;
  }

  std::vector<uint64_t> new_bytes_;  // of the last save, by rank
};

uint64_t StateSize(const TestTrainer& trainer) {
  uint64_t bytes = 0;
  for (const auto& memory : trainer.memory) bytes += memory.size();
  return bytes;
}

TEST_F(ReplicasTest, FourRanksStoreOneCopy) {
  const auto make = [](int, uint64_t) { return Replicated(1); };
  SaveAll(4, {1}, make);
  const uint64_t once = StateSize(make(0, 1));
  EXPECT_EQ(NewBytes(), once - 12);  // but for three scalars, which their lists hold
  EXPECT_EQ(Stats().unique_bytes, once - 12);
  const auto [least, most] = std::minmax_element(new_bytes_.begin(), new_bytes_.end());
  EXPECT_LT(static_cast<double>(*most), 1.5 * static_cast<double>(*least));
  const auto store = Store::OpenForReading(root()).value();
  const auto reader = store->OpenCheckpoint("main", 1).value();
  for (const TensorInfo& info : reader->List().value()) EXPECT_EQ(info.num_shards, 1u) << info.name;
  for (const int size : {4, 3, 1}) ExpectLoads(size, 1, [](int) { return Replicated(1); });
}

TEST_F(ReplicasTest, WhatDidNotChangeIsSharedWhateverTheOrder) {
  SaveAll(4, {1, 2}, [](int rank, uint64_t step) {
    TestTrainer trainer = Replicated(1);
    if (step == 2 && rank % 2 == 0) std::ranges::reverse(trainer.state.tensors);
    return trainer;
  });
  EXPECT_EQ(NewBytes(), 0u);
  ExpectLoads(2, 2, [](int) { return Replicated(1); });
}

// A new job knows from the member stores who has what.
TEST_F(ReplicasTest, ANewTensorInANewJobMovesNoOther) {
  const auto make = [](bool has_head) {
    TestTrainer trainer = Replicated(1);
    const std::vector<int64_t> shape = {200, 120};  // the largest
    if (has_head) trainer.Add({.name = "head", .shape = shape}, Values("head", shape));
    return trainer;
  };
  SaveAll(3, {1}, [&](int, uint64_t) { return make(false); });
  SaveAll(3, {2}, [&](int, uint64_t) { return make(true); });
  uint64_t added = 0;
  for (const uint64_t bytes : new_bytes_) added += bytes;
  EXPECT_EQ(added, 200u * 120 * 4);
  ExpectLoads(2, 2, [&](int) { return make(true); });
}

TEST_F(ReplicasTest, LargeTensorsAreCutAmongTheRanks) {
  const std::vector<int64_t> shape = {3, 3'000'000};  // 34 MiB
  const std::vector<std::byte> bytes = RandomTensor("w", DType::kF32, shape, 1).bytes;
  const auto make = [&](int, uint64_t) {
    TestTrainer trainer;
    trainer.Add({.name = "w", .shape = shape}, bytes);
    return trainer;
  };
  SaveAll(2, {1}, make, {.store = {.compression = Compression::kNone}});
  EXPECT_THAT(new_bytes_, Each(::testing::Gt(16 * kMiB)));
  EXPECT_EQ(NewBytes(), 36'000'000u);
  ExpectLoads(2, 1, [&](int rank) { return make(rank, 1); });
}

TEST_F(ReplicasTest, WeightsCostNothingBesideTheSlicesOfTheirMasters) {
  const auto make = [](int rank, uint64_t) { return ZeroRank(1, 4, rank); };
  SaveAll(4, {1}, make);
  uint64_t masters = 0;
  for (const auto& [name, shape] : kZeroModel) masters += NumBytes(DType::kF32, shape).value();
  EXPECT_EQ(Stats().unique_bytes, masters);
  EXPECT_THAT(new_bytes_, Each(masters / 4));
  ExpectLoads(4, 1, [](int rank) { return ZeroRank(1, 4, rank); });
  ExpectLoads(2, 1, [](int rank) { return ZeroRank(1, 2, rank); });
  ExpectLoads(4, 1, [](int rank) { return ZeroRank(2, 2, rank); });
  ExpectLoads(1, 1, [](int rank) { return ZeroRank(1, 1, rank); });
}

TEST_F(ReplicasTest, DataParallelGroupsOfTensorParallelRanks) {
  const auto make = [](int rank, uint64_t) { return ZeroRank(2, 2, rank); };
  SaveAll(4, {1, 2}, make);
  EXPECT_EQ(NewBytes(), 0u);
  uint64_t masters = 0;
  for (const auto& [name, shape] : kZeroModel) masters += NumBytes(DType::kF32, shape).value();
  EXPECT_EQ(Stats().unique_bytes, masters);
  ExpectLoads(4, 2, [](int rank) { return ZeroRank(1, 4, rank); });
  ExpectLoads(8, 2, [](int rank) { return ZeroRank(4, 2, rank); });
}

TEST_F(ReplicasTest, MastersThatAreRowsAreSourcesToo) {
  const std::vector<int64_t> shape = {30, 50};
  const auto make = [&](int rank, uint64_t) {
    const std::vector<std::byte> master = Values("w", shape);
    const ShardLayout rows = SplitChunks(ShardLayout::Whole(shape), 0, {rank, 4}).value();
    TestTrainer trainer;
    trainer.Add({.name = "w", .dtype = DType::kBF16, .shape = shape, .derived_from = "master.w"},
                Rounded(master));
    trainer.Add({.name = "master.w", .shape = rows.LocalShape(), .layout = rows},
                CutShard(master, 4, rows, {}));
    return trainer;
  };
  SaveAll(4, {1}, make);
  EXPECT_EQ(Stats().unique_bytes, 6000u);
  ExpectLoads(4, 1, [&](int rank) { return make(rank, 1); });
}

TEST_F(ReplicasTest, SlicesThatAreNotEvenComeBackToo) {
  const auto make = [](int rank, uint64_t) { return ZeroRank(1, 7, rank); };
  SaveAll(7, {1}, make);
  ExpectLoads(7, 1, [](int rank) { return ZeroRank(1, 7, rank); });
  ExpectLoads(3, 1, [](int rank) { return ZeroRank(1, 3, rank); });
}

TEST_F(ReplicasTest, ADeltaHasItsBaseInTheSameStore) {
  SaveAll(3, {1, 2}, [](int, uint64_t step) {
    TestTrainer trainer = Replicated(1);
    for (auto& bytes : trainer.memory) {
      if (step == 2 && !bytes.empty()) bytes[0] ^= std::byte{1};
    }
    return trainer;
  });
  EXPECT_GT(NewBytes(), 0u);
  uint64_t deltas = 0;
  for (const CodecUse& use : Stats().by_codec) {
    if (use.codec.find("delta") != std::string::npos) deltas += use.num_chunks;
  }
  EXPECT_GE(deltas, 9u);  // each chunk but those of the scalars and norms, at least
}

TEST_F(ReplicasTest, StridesOfReplicasMayDiffer) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const std::vector<float> transposed = {0, 3, 1, 4, 2, 5};
  SaveAll(2, {1}, [&](int rank, uint64_t) {
    TestTrainer trainer;
    if (rank == 0)
      trainer.Add({{.name = "w", .shape = {2, 3}}, nullptr, kHost, {1, 2}}, BytesOf(transposed));
    if (rank == 1) trainer.Add({.name = "w", .shape = {2, 3}}, BytesOf(values));
    return trainer;
  });
  Run(2, [&](int, AsyncCheckpointer* checkpointer) {
    TestTrainer into;
    into.Add({.name = "w", .shape = {2, 3}}, 3);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &into.state).status());
    EXPECT_EQ(into.Values<float>("w"), values);
  });
}

TEST_F(ReplicasTest, TiedTensorsStayTiedAndAreStoredOnce) {
  const auto make = [](int, uint64_t = 1) {
    TestTrainer trainer = Replicated(1);
    trainer.Tie("lm_head", "wte");
    return trainer;
  };
  SaveAll(3, {1}, make);
  EXPECT_EQ(NewBytes(), StateSize(make(0)) - 12);
  const auto store = Store::OpenForReading(root()).value();
  EXPECT_EQ(store->OpenCheckpoint("main", 1).value()->Find("lm_head")->alias_of, "wte");
  ExpectLoads(2, 1, [&](int rank) { return make(rank); });
}

TEST_F(ReplicasTest, ThePlanFollowsWhatTheRanksHold) {
  SaveAll(3, {1, 2, 3}, [](int rank, uint64_t step) {
    TestTrainer trainer = Replicated(1);
    if (step == 2 && rank == 0) trainer.Remove("wte");  // the others hold it
    if (step == 3) trainer.Remove("exp_avg");
    return trainer;
  });
  ExpectLoads(3, 2, [](int) { return Replicated(1); });
  ExpectLoads(2, 3, [](int) {
    TestTrainer trainer = Replicated(1);
    trainer.Remove("exp_avg");
    return trainer;
  });
}

// Rank 2 holds another `bn` than the others.
TestTrainer WithDifferent(int rank, uint64_t step) {
  TestTrainer trainer = Replicated(step);
  const std::vector<int64_t> shape = {100};
  trainer.Add({.name = "bn", .shape = shape}, Values("bn", shape, rank == 2 ? 9 : 1));
  trainer.state.topology = RanksOf(3);
  return trainer;
}

TEST_F(ReplicasTest, ReplicasThatDifferFailTheSaveOnAllRanks) {
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    const TestTrainer good = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->Save(1, good.state).status());
    const TestTrainer bad = WithDifferent(rank, 2);
    const auto says =
        FailsWith(StatusCode::kInvalidArgument,
                  "tensor bn, [:] of [100]: rank 2 and rank 0 hold replicas that differ");
    EXPECT_THAT(checkpointer->Save(2, bad.state), says);
    EXPECT_FALSE(checkpointer->Wait().ok());
    EXPECT_FALSE(checkpointer->Close().ok());
  });
  EXPECT_EQ(Store::OpenForReading(root()).value()->LatestStep("main").value(), 1u);
}

TEST_F(ReplicasTest, AFailureThatIsNotFatalIsInTheMetrics) {
  Run(3,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        const TestTrainer bad = WithDifferent(rank, 2);
        VARVE_EXPECT_OK(checkpointer->Save(2, bad.state).status());
        VARVE_EXPECT_OK(checkpointer->Wait());
        EXPECT_THAT(checkpointer->last_stats()->status,
                    FailsWith(StatusCode::kInvalidArgument, "hold replicas that differ"));
        const TestTrainer good = Replicated(1);
        VARVE_EXPECT_OK(checkpointer->Save(3, good.state).status());
        VARVE_EXPECT_OK(checkpointer->Wait());
        EXPECT_FALSE(checkpointer->Close().ok());
      },
      {.failure_is_fatal = false});
  EXPECT_EQ(Store::OpenForReading(root()).value()->ListCheckpoints("main").value().size(), 1u);
}

TEST_F(ReplicasTest, TheLowestRanksReplicaMayBeTakenWithAWarning) {
  Run(
      3,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        const TestTrainer trainer = WithDifferent(rank, 2);
        VARVE_ASSERT_OK(checkpointer->Save(2, trainer.state).status());
        VARVE_ASSERT_OK(checkpointer->Wait());
        const auto metrics = checkpointer->last_stats();
        EXPECT_THAT(metrics->warnings,
                    ElementsAre("tensor bn, [:] of [100]: rank 2 and rank 0 hold "
                                "replicas that differ; rank 0's is saved"));
        EXPECT_THAT(ToString(*metrics), HasSubstr("; warning: tensor bn, "));
        TestTrainer into = WithDifferent(2, 77);
        VARVE_ASSERT_OK(checkpointer->Restore("2", {}, &into.state).status());
        EXPECT_EQ(into.Bytes("bn"), WithDifferent(0, 2).Bytes("bn"));
      },
      WithReplicas({{"b*", ReplicaPolicy::kTakeLowest}}));
}

// A vocabulary of 5 rows, padded to 6. All ranks have a replica.
TEST_F(ReplicasTest, ReplicasThatDifferInPaddingAloneSaySo) {
  ShardLayout layout = ShardLayout::Whole({5, 4});
  layout.axes[0].push_back({.length = 1, .is_padding = true});
  const auto make = [&](int rank) {
    std::vector<float> values(24, 1);
    values.back() = static_cast<float>(rank);
    TestTrainer trainer;
    trainer.Add({.name = "wte", .shape = {6, 4}, .layout = layout}, BytesOf(values));
    return trainer;
  };
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    const TestTrainer trainer = make(rank);
    EXPECT_THAT(checkpointer->Save(1, trainer.state),
                FailsWith(StatusCode::kInvalidArgument,
                          "hold replicas that differ in their padding alone, which is saved, "
                          "too: fill it alike, or let ReplicaPolicy::kEqualButPadding"));
    checkpointer->Close().IgnoreError();
  });
  Run(
      2,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        const TestTrainer trainer = make(rank);
        VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
        VARVE_ASSERT_OK(checkpointer->Wait());
        EXPECT_THAT(checkpointer->last_stats()->warnings,
                    ElementsAre(HasSubstr("differ in their padding alone")));
        TestTrainer into = make(7);
        VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &into.state).status());
        EXPECT_EQ(into.Bytes("wte"), make(0).Bytes("wte"));
      },
      WithReplicas({{"wte", ReplicaPolicy::kTakeLowest}}));
}

// Elements of less than a byte are not compared without their padding.
TEST_F(ReplicasTest, ReplicasOfNibblesMayDifferInPaddingAlone) {
  ShardLayout layout = ShardLayout::Whole({5, 4});
  layout.axes[0].push_back({.length = 1, .is_padding = true});
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    std::vector<std::byte> bytes(12, std::byte{0x11});
    bytes.back() = static_cast<std::byte>(rank);
    TestTrainer trainer;
    trainer.Add({.name = "wte", .dtype = DType::kF4, .shape = {6, 4}, .layout = layout}, bytes);
    EXPECT_THAT(checkpointer->Save(1, trainer.state),
                FailsWith(StatusCode::kInvalidArgument,
                          "perhaps in their padding alone, which cannot be looked at without it"));
    checkpointer->Close().IgnoreError();
  });
}

// By rule padding does not count. Elements do, in dense tensors and in strided ones.
TEST_F(ReplicasTest, PaddingMayDifferWhereTheRuleSaysSo) {
  ShardLayout layout = ShardLayout::Whole({5, 4});
  layout.axes[0].push_back({.length = 1, .is_padding = true});
  const CheckpointerOptions options = WithReplicas({{"w*", ReplicaPolicy::kEqualButPadding}});
  const auto make = [&](int rank, bool is_strided) {
    TestTrainer trainer;
    std::vector<float> values(is_strided ? 48 : 24, 1);
    for (size_t i = 0; i < values.size() / 6; ++i) {
      values[values.size() / 6 * 5 + i] += static_cast<float>(rank);
    }
    trainer.Add({{.name = "wte", .shape = {6, 4}, .layout = layout},
                 nullptr,
                 kHost,
                 is_strided ? std::vector<int64_t>{8, 2} : std::vector<int64_t>{}},
                BytesOf(values));
    return trainer;
  };
  for (const bool is_strided : {false, true}) {
    const uint64_t step = is_strided ? 2 : 1;
    Run(
        3,
        [&](int rank, AsyncCheckpointer* checkpointer) {
          TestTrainer trainer = make(rank, is_strided);
          VARVE_ASSERT_OK(checkpointer->Save(step, trainer.state).status());
          VARVE_ASSERT_OK(checkpointer->Wait());
          EXPECT_THAT(checkpointer->last_stats()->warnings, ::testing::IsEmpty());
          if (rank == 1) trainer.memory[0][3] ^= std::byte{1};  // an element
          EXPECT_THAT(checkpointer->Save(9, trainer.state),
                      FailsWith(StatusCode::kInvalidArgument,
                                "ranks 1, 2 and rank 0 hold replicas that differ"));
        },
        options);
    ShardLayout whole = ShardLayout::Whole({5, 4});
    TestTrainer into;
    into.Add({.name = "wte", .shape = {5, 4}, .layout = whole}, BytesOf(std::vector<float>(20, 7)));
    const auto store = Store::OpenForReading(root()).value();
    const auto reader = store->OpenCheckpoint("main", step).value();
    VARVE_ASSERT_OK(LoadState(*reader, {}, &into.state).status());
    EXPECT_EQ(into.Values<float>("wte"), std::vector<float>(20, 1));
  }
}

TEST_F(ReplicasTest, AllThatDifferIsTold) {
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = Replicated(1);
    if (rank == 1) {
      for (const size_t i : {0u, 3u}) trainer.memory[i][0] ^= std::byte{1};
    }
    const Status status = checkpointer->Save(1, trainer.state).status();
    EXPECT_THAT(status,
                FailsWith(StatusCode::kInvalidArgument, "tensor wte, [:, :] of [210, 100]"));
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor fc, [:, :] of [150, 100]"));
  });
}

TEST_F(ReplicasTest, EachRankMayKeepItsOwn) {
  const CheckpointerOptions options = WithReplicas({{"bn", ReplicaPolicy::kKeepPerRank}});
  Run(
      3,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        const TestTrainer trainer = WithDifferent(rank, 2);
        VARVE_ASSERT_OK(checkpointer->Save(2, trainer.state).status());
        TestTrainer into = WithDifferent(1, 77);
        VARVE_ASSERT_OK(checkpointer->Restore("2", {}, &into.state).status());
        EXPECT_EQ(SameTensors(trainer, into).size(), trainer.state.tensors.size());
      },
      options);
  const auto store = Store::OpenForReading(root()).value();
  const auto reader = store->OpenCheckpoint("main", 2).value();
  EXPECT_TRUE(reader->Find("rank_00000/bn").ok());
  EXPECT_TRUE(reader->Find("rank_00002/bn").ok());
  EXPECT_EQ(reader->Find("bn").status().code(), StatusCode::kNotFound);

  // On two ranks they belong to no rank.
  Run(2, [&](int, AsyncCheckpointer* checkpointer) {
    TestTrainer into = WithDifferent(0, 77);
    into.state.topology = RanksOf(2);
    EXPECT_THAT(
        checkpointer->Restore("2", {}, &into.state),
        FailsWith(StatusCode::kInvalidArgument,
                  "these states of single ranks belong to no rank of the new job: tensor bn"));
    const std::vector<std::byte> before = into.Bytes("bn");
    const auto report = checkpointer->Restore("2", {.rank_states = RankStates::kDrop}, &into.state);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->dropped, ElementsAre("tensor bn of single ranks"));
    EXPECT_EQ(into.Bytes("bn"), before);
    EXPECT_EQ(into.Bytes("wte"), Replicated(2).Bytes("wte"));
  });
}

TEST_F(ReplicasTest, NamesOfSingleRanksAreKept) {
  Run(1, [&](int, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer;
    trainer.Add({.name = "rank_00000/w", .shape = {2}}, 1);
    EXPECT_THAT(checkpointer->Save(1, trainer.state),
                FailsWith(StatusCode::kInvalidArgument, "tensor rank_00000/w: the name is kept"));
  });
}

TEST_F(ReplicasTest, AWholeTensorBesidePartsOfItIsFoundBeforeTheCommit) {
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    const ShardLayout whole = ShardLayout::Whole({4, 6});
    const ShardLayout layout = rank == 0 ? whole : SplitEvenly(whole, 0, {1, 2}).value();
    TestTrainer trainer;
    trainer.Add({.name = "w", .shape = layout.LocalShape(), .layout = layout}, 1);
    Status status = checkpointer->Save(1, trainer.state).status();
    if (status.ok()) status = checkpointer->Wait();
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                  "overlap in 12 elements and are no replicas"));
  });
}

TEST_F(ReplicasTest, StatesThatChangeBehindTheBackOfASaveAreNeverCommitted) {
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->AwaitStaged());
    for (auto& bytes : trainer.memory) std::fill(bytes.begin(), bytes.end(), std::byte(rank));
    VARVE_ASSERT_OK(checkpointer->Wait());
  });
  ExpectLoads(2, 1, [](int) { return Replicated(1); });
}

TEST_F(ReplicasTest, AWriterThatFailsInTheMiddleFailsTheSaveOnAllRanks) {
  std::mutex mutex;
  std::vector<std::string> errors;
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    const TestTrainer first = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->Save(1, first.state).status());
    VARVE_ASSERT_OK(checkpointer->Wait());
    if (rank == 0) {  // nobody can write new files into the member of one rank
      auto member = std::filesystem::directory_iterator(root() / "members")->path();
      std::filesystem::remove_all(member / "incoming");
      std::ofstream(member / "incoming") << "in the way";
    }
    VARVE_ASSERT_OK(checkpointer->Wait());  // all ranks have come
    const TestTrainer second = Replicated(2);
    Status status = checkpointer->Save(2, second.state).status();
    if (status.ok()) status = checkpointer->Wait();
    EXPECT_FALSE(status.ok());
    const std::lock_guard lock(mutex);
    errors.push_back(status.ToString());
  });
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_THAT(errors, Each(errors[0]));
  EXPECT_THAT(errors[0], HasSubstr("incoming"));
  EXPECT_EQ(Store::OpenForReading(root()).value()->LatestStep("main").value(), 1u);
  for (const auto& member : std::filesystem::directory_iterator(root() / "members")) {
    std::filesystem::remove(member.path() / "incoming");
    std::filesystem::create_directory(member.path() / "incoming");
  }
}

TEST_F(ReplicasTest, AStepThatIsThereIsRefusedOnAllRanksAndNoFailure) {
  Run(3, [&](int, AsyncCheckpointer* checkpointer) {
    const TestTrainer trainer = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Wait());
    EXPECT_THAT(checkpointer->Save(1, trainer.state),
                FailsWith(StatusCode::kAlreadyExists, "step 1 of run main exists already"));
    VARVE_ASSERT_OK(checkpointer->Save(2, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  });
  EXPECT_EQ(Store::OpenForReading(root()).value()->LatestStep("main").value(), 2u);
}

TEST_F(ReplicasTest, ASaveThatNobodyAwaitedIsGivenUp) {
  Run(2, [&](int, AsyncCheckpointer* checkpointer) {
    const TestTrainer trainer = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
  });
  auto groups = ThreadRanks(2, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const TestTrainer trainer = Replicated(2);
      auto checkpointer =
          OpenGroupCheckpointer(root(), groups[static_cast<size_t>(rank)].get()).value();
      VARVE_ASSERT_OK(checkpointer->BeginSave(2, trainer.state).status());
      checkpointer.reset();
    });
  }
  threads.clear();
  EXPECT_EQ(Store::OpenForReading(root()).value()->LatestStep("main").value(), 1u);
}

TEST_F(ReplicasTest, EveryCallThatWaitsForASaveSettlesIt) {
  Run(2, [&](int, AsyncCheckpointer* checkpointer) {
    const TestTrainer trainer = Replicated(1);
    VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->SetMetrics(1, {{"loss", 2.0}}));
    VARVE_ASSERT_OK(checkpointer->BeginSave(2, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->ReleaseStaging());
    VARVE_ASSERT_OK(checkpointer->BeginSave(3, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Prewarm(trainer.state));
    VARVE_ASSERT_OK(checkpointer->BeginSave(4, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  });
  EXPECT_EQ(Store::OpenForReading(root()).value()->ListCheckpoints("main").value().size(), 4u);
}

TEST_F(ReplicasTest, ASaveThatWasNotAwaitedIsNeverCommittedOnAnyRank) {
  Run(2,
      [&](int, AsyncCheckpointer* checkpointer) {
        const TestTrainer trainer = Replicated(1);
        VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
        VARVE_ASSERT_OK(checkpointer->BeginSave(2, trainer.state).status());
        EXPECT_THAT(checkpointer->BeginSave(3, trainer.state),
                    FailsWith(StatusCode::kFailedPrecondition, "rank 0: step 2 is not saved"));
        VARVE_ASSERT_OK(checkpointer->Save(4, trainer.state).status());
        checkpointer->Close().IgnoreError();  // the error of step 2
      },
      {.failure_is_fatal = false});
  const auto steps = Store::OpenForReading(root()).value()->ListCheckpoints("main").value();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].id.step, 1u);
  EXPECT_EQ(steps[1].id.step, 4u);
}

TEST_F(ReplicasTest, MetricsOfASaveThatFailedAreRefusedOnAllRanks) {
  Run(2,
      [&](int, AsyncCheckpointer* checkpointer) {
        const TestTrainer trainer = Replicated(1);
        VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
        VARVE_ASSERT_OK(checkpointer->SetMetrics(1, {{"loss", 0.5}}));
        VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
        checkpointer->RequireAwaited().IgnoreError();  // so it fails
        const auto fails = FailsWith(StatusCode::kFailedPrecondition, "step 1");
        EXPECT_THAT(checkpointer->SetMetrics(1, {{"loss", 0.25}}), fails);
        EXPECT_THAT(checkpointer->SetTag(1, "candidate"), fails);
        checkpointer->Close().IgnoreError();  // the same error
      },
      {.on_existing = OnExisting::kReplace, .failure_is_fatal = false});
  const auto steps = Store::OpenForReading(root()).value()->ListCheckpoints("main").value();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].metrics.at("loss"), 0.5);
  EXPECT_THAT(steps[0].tags, ::testing::IsEmpty());
}

}  // namespace
}  // namespace varve::internal::testing
