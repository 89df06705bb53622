// SPDX-License-Identifier: Apache-2.0
//
// Ranks that hold several shards of one tensor: the blocks of a block-cyclic cut, each an entry of
// the state.
#include <algorithm>
#include <bit>

#include "tests/support/shard_reference.h"
#include "tests/trainer_hooks/ranks_fixture.h"
#include "varve/async_checkpointer.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<int64_t> kBlocksShape = {24, 10};

std::vector<std::byte> GlobalBytes(uint64_t seed) {
  return NormalTensor("w", kBlocksShape, seed).bytes;
}
std::vector<std::byte> Rounded(uint64_t seed) {
  const std::vector<std::byte> master = GlobalBytes(seed);
  std::vector<std::byte> rounded(master.size() / 2);
  MakeRoundedCopy(DType::kBF16, master, rounded);
  return rounded;
}

ShardLayout RowBlock(int64_t begin, int64_t length) {
  ShardLayout layout = ShardLayout::Whole(kBlocksShape);
  layout.axes[0] = {{begin, length}};
  return layout;
}

// Cuts blocks of 24 / parts rows. Rank `rank` of `ranks` has every `ranks`-th block.
std::vector<ShardLayout> Blocks(int64_t parts, int ranks, int rank) {
  std::vector<ShardLayout> blocks;
  for (int64_t i = rank; i < parts; i += ranks)
    blocks.push_back(RowBlock(i * 24 / parts, 24 / parts));
  return blocks;
}

void AddMasters(const std::vector<ShardLayout>& shards, uint64_t seed, TestTrainer* to) {
  for (const ShardLayout& layout : shards) {
    to->Add({.name = "w",
             .shape = layout.LocalShape(),
             .role = TensorRole::kOptimizer,
             .layout = layout},
            CutShard(GlobalBytes(seed), 4, layout, {}));
  }
}
void AddWeights(const std::vector<ShardLayout>& shards, uint64_t seed, TestTrainer* to) {
  for (const ShardLayout& layout : shards) {
    to->Add({.name = "model.w",
             .dtype = DType::kBF16,
             .shape = layout.LocalShape(),
             .role = TensorRole::kParameter,
             .derived_from = "w",
             .layout = layout},
            CutShard(Rounded(seed), 2, layout, {}));
  }
}
TestTrainer Holding(const std::vector<ShardLayout>& shards, uint64_t seed) {
  TestTrainer trainer;
  AddMasters(shards, seed, &trainer);
  AddWeights(shards, seed, &trainer);
  return trainer;
}

void ExpectHas(const TestTrainer& trainer, uint64_t seed) {
  for (const StateTensor& tensor : trainer.state.tensors) {
    const bool is_master = tensor.dtype == DType::kF32;
    const auto expected = is_master ? CutShard(GlobalBytes(seed), 4, *tensor.layout, {})
                                    : CutShard(Rounded(seed), 2, *tensor.layout, {});
    EXPECT_EQ(std::memcmp(tensor.data, expected.data(), expected.size()), 0)
        << tensor.name << ", " << ToString(*tensor.layout);
  }
}

// The tensors as a command shows them.
void ExpectGlobal(const Store& store, uint64_t step, uint32_t num_shards, uint64_t seed) {
  const auto reader = store.OpenCheckpoint("main", step).value();
  const auto list = reader->List().value();
  ASSERT_EQ(list.size(), 2u);
  for (const TensorInfo& info : list) {
    EXPECT_EQ(info.shape, kBlocksShape) << info.name;
    EXPECT_EQ(info.num_shards, num_shards) << info.name;
    std::vector<std::byte> bytes(info.logical_bytes);
    VARVE_ASSERT_OK(reader->Read(info.name, bytes));
    EXPECT_EQ(bytes, info.name == "w" ? GlobalBytes(seed) : Rounded(seed));
  }
}

class SeveralShardsTest : public RanksTest {
 protected:
  void Save(int ranks, const std::vector<uint64_t>& steps) {
    Run(ranks, [&](int rank, AsyncCheckpointer* checkpointer) {
      for (const uint64_t step : steps) {
        TestTrainer trainer = Holding(Blocks(int64_t{2} * ranks, ranks, rank), 5);
        VARVE_EXPECT_OK(checkpointer->Save(step, trainer.state).status());
        VARVE_EXPECT_OK(checkpointer->Wait());
      }
    });
  }
  void ExpectRestored(int ranks, int64_t parts, const LoadOptions& options = {}) {
    Run(ranks, [&](int rank, AsyncCheckpointer* checkpointer) {
      TestTrainer into = Holding(Blocks(parts, ranks, rank), 77);
      const auto report = checkpointer->Restore("latest", options, &into.state);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      ExpectHas(into, 5);
    });
  }
};

TEST_F(SeveralShardsTest, RanksSaveAllTheirShardsAndOthersLoadThem) {
  Save(2, {1, 2});
  {
    const auto store = Store::OpenForReading(root()).value();
    ExpectGlobal(*store, 2, 4, 5);
    const auto steps = store->ListCheckpoints("main").value();
    // The weights are the rounded copies of the masters, shard by shard, and cost nothing.
    EXPECT_EQ(steps[0].new_bytes, GlobalBytes(5).size());
    EXPECT_EQ(steps[1].new_bytes, 0u);
  }
  ExpectRestored(2, 4);
  ExpectRestored(3, 6);
  ExpectRestored(1, 3);
  ExpectRestored(2, 2);
  ExpectRestored(3, 12, {.exchange = true});
  const auto store = Store::Open(root()).value();
  VARVE_ASSERT_OK(store->Drop(std::vector<CheckpointId>{{"main", 1}}).status());
  ExpectGlobal(*store, 2, 4, 5);
}

TEST_F(SeveralShardsTest, ReplicasOfSeveralShardsAreSavedOnce) {
  for (const uint64_t step : {1, 2}) {
    Run(4, [&](int rank, AsyncCheckpointer* checkpointer) {
      TestTrainer trainer = Holding(Blocks(4, 2, rank % 2), 5);
      VARVE_EXPECT_OK(checkpointer->Save(step, trainer.state).status());
      VARVE_EXPECT_OK(checkpointer->Wait());
    });
  }
  const auto store = Store::OpenForReading(root()).value();
  ExpectGlobal(*store, 2, 4, 5);
  EXPECT_EQ(store->ListCheckpoints("main").value()[0].new_bytes, GlobalBytes(5).size());
  EXPECT_EQ(store->ListCheckpoints("main").value()[1].new_bytes, 0u);
}

TEST_F(SeveralShardsTest, ShardsOfOneRankMayNotOverlap) {
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer trainer = Holding(Blocks(4, 2, rank), 5);
    if (rank == 1) {
      AddMasters({RowBlock(10, 4)}, 5, &trainer);
      trainer.state.tensors.push_back(trainer.state.tensors[2]);
    }
    const Status status = checkpointer->Save(1, trainer.state).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                HasSubstr("tensor w is in the state twice with shards that overlap, "
                          "[6:12, :] of [24, 10] and [10:14, :] of [24, 10]"));
    EXPECT_THAT(status.message(),
                HasSubstr("tensor model.w is in the state twice with shards that overlap, "
                          "[6:12, :] of [24, 10] and [6:12, :] of [24, 10]"));
    const TestTrainer good = Holding(Blocks(4, 2, rank), 5);
    VARVE_EXPECT_OK(checkpointer->Save(1, good.state).status());
    VARVE_EXPECT_OK(checkpointer->Wait());
  });
}

TEST_F(SeveralShardsTest, AreNotKeptPerRank) {
  const CheckpointerOptions options = WithReplicas({{"w", ReplicaPolicy::kKeepPerRank}});
  Run(
      2,
      [&](int rank, AsyncCheckpointer* checkpointer) {
        TestTrainer trainer = Holding(Blocks(4, 2, rank), 5);
        EXPECT_THAT(checkpointer->Save(1, trainer.state),
                    FailsWith(StatusCode::kInvalidArgument,
                              "tensor w: a rank has several shards of it, and it is kept per "
                              "rank, expected one shard"));
        const TestTrainer good = Holding(Blocks(2, 2, rank), 5);
        VARVE_EXPECT_OK(checkpointer->Save(1, good.state).status());
        VARVE_EXPECT_OK(checkpointer->Wait());
      },
      options);
}

// One rank, with a store of its own.
class SeveralShardsAloneTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    store_.reset();
    ckpt_ = AsyncCheckpointer::Open(path(), {}).value();
  }
  void TearDown() override {
    VARVE_EXPECT_OK(ckpt_->Close());
    ckpt_.reset();
    StoreTest::TearDown();
  }
  void Save(uint64_t step, const TrainingState& state) {
    VARVE_ASSERT_OK(ckpt_->Save(step, state).status());
    VARVE_ASSERT_OK(ckpt_->Wait());
  }
  std::unique_ptr<AsyncCheckpointer> ckpt_;
};

TEST_F(SeveralShardsAloneTest, TheOrderOfTheStateMakesNoDifference) {
  TestTrainer trainer = Holding(Blocks(4, 1, 0), 5);
  Save(1, trainer.state);
  std::reverse(trainer.state.tensors.begin(), trainer.state.tensors.end());
  Save(2, trainer.state);
  EXPECT_EQ(ckpt_->last_stats()->changed_bytes, 0u);
  EXPECT_EQ(ckpt_->last_stats()->new_bytes, 0u);
  ExpectGlobal(*Store::OpenForReading(path()).value(), 2, 4, 5);
  TestTrainer into = Holding(Blocks(6, 1, 0), 77);
  const auto report = ckpt_->Restore("latest", {}, &into.state);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectHas(into, 5);
}

TEST_F(SeveralShardsAloneTest, OneOfThemChanges) {
  TestTrainer trainer = Holding(Blocks(4, 1, 0), 5);
  Save(1, trainer.state);
  static_cast<float*>(trainer.state.tensors[2].data)[0] += 1;
  Save(2, trainer.state);
  EXPECT_EQ(ckpt_->last_stats()->new_bytes, 60u * sizeof(float));  // of that shard alone
}

TEST_F(SeveralShardsAloneTest, TiedShardsAreTiedOneByOne) {
  TestTrainer trainer;
  AddMasters(Blocks(4, 1, 0), 5, &trainer);
  for (size_t i : {3, 0, 2, 1}) {
    StateTensor tied = trainer.state.tensors[i];
    tied.name = "head";
    trainer.state.tensors.push_back(tied);
  }
  Save(1, trainer.state);
  EXPECT_EQ(ckpt_->last_stats()->new_bytes, GlobalBytes(5).size());
  TestTrainer into;
  AddMasters(Blocks(3, 1, 0), 77, &into);
  for (size_t i : {0, 1, 2}) {
    StateTensor tied = into.state.tensors[i];
    tied.name = "head";
    into.state.tensors.push_back(tied);
  }
  const auto report = ckpt_->Restore("1", {}, &into.state);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectHas(into, 5);
}

TEST_F(SeveralShardsAloneTest, MastersAreMadeShardByShard) {
  Save(1, Holding(Blocks(4, 1, 0), 5).state);
  for (const int64_t parts : {4, 3}) {  // cut as the weights of the target are, and in another way
    TestTrainer into;
    AddMasters(Blocks(parts, 1, 0), 77, &into);
    AddWeights(Blocks(4, 1, 0), 77, &into);
    const auto report = ckpt_->Restore("1", {.optimizer = false}, &into.state);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->made, ElementsAre("w"));
    for (const StateTensor& tensor : into.state.tensors) {
      if (tensor.dtype != DType::kF32) continue;
      const auto weights = CutShard(Rounded(5), 2, *tensor.layout, {});
      for (size_t i = 0; i < weights.size() / 2; ++i) {
        uint16_t high = 0;
        std::memcpy(&high, &weights[2 * i], 2);
        const uint32_t wide = uint32_t{high} << 16;
        EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<const float*>(tensor.data)[i]), wide);
      }
    }
  }
}

TEST_F(SeveralShardsAloneTest, ReportsAndFaultsNameATensorOnce) {
  Save(1, Holding(Blocks(4, 1, 0), 5).state);
  TestTrainer into = Holding(Blocks(4, 1, 0), 77);
  for (StateTensor& tensor : into.state.tensors) {
    if (tensor.name == "w") tensor.name = "x";
    tensor.derived_from.clear();
  }
  Status status = ckpt_->Restore("1", {}, &into.state).status();
  const std::string& text = status.message();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(text, HasSubstr("tensor x: missing in the checkpoint"));
  EXPECT_EQ(text.find("tensor x"), text.rfind("tensor x"));
  const auto report = ckpt_->Restore("1", {.strictness = Strictness::kIgnoreAll}, &into.state);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->missing, ElementsAre("x"));
  EXPECT_THAT(report->unexpected, ElementsAre("w"));
}

TEST_F(SeveralShardsAloneTest, OfOneTensorAllSaysTheSame) {
  Save(1, Holding(Blocks(4, 1, 0), 5).state);
  const auto refused = [&](const char* text, const std::function<void(TrainingState*)>& change) {
    TestTrainer trainer = Holding(Blocks(4, 1, 0), 5);
    change(&trainer.state);
    EXPECT_THAT(ckpt_->BeginSave(2, trainer.state), FailsWith(StatusCode::kInvalidArgument, text));
    EXPECT_THAT(ckpt_->Restore("latest", {}, &trainer.state),
                FailsWith(StatusCode::kInvalidArgument, text));
  };
  refused("tensor w is in the state twice with roles optimizer and buffer, expected shards of one",
          [](TrainingState* state) { state->tensors[1].role = TensorRole::kBuffer; });
  refused("tensor model.w is in the state twice with masters \"w\" and \"\"",
          [](TrainingState* state) { state->tensors[5].derived_from.clear(); });
  refused("tensor w is in the state twice, expected once, or a layout for each of its shards",
          [](TrainingState* state) { state->tensors[1].layout.reset(); });
}

}  // namespace
}  // namespace varve::internal::testing
