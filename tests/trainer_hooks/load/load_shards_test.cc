// SPDX-License-Identifier: Apache-2.0
//
// Loads of checkpoints that ranks saved in shards, into ranks that hold other parts.
#include <algorithm>
#include <span>

#include "store/save/save_session.h"
#include "tests/support/shard_reference.h"
#include "tests/trainer_hooks/state_fixture.h"
#include "trainer_hooks/load/convert.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

// Returns one of equal parts of an axis.
ShardLayout Part(const std::vector<int64_t>& shape, size_t axis, int64_t parts, int64_t rank) {
  ShardLayout layout = ShardLayout::Whole(shape);
  const int64_t each = shape[axis] / parts;
  layout.axes[axis] = {{rank * each, each}};
  return layout;
}

class LoadShardsTest : public StateTest {
 protected:
  static const inline std::vector<int64_t> kShape = {12, 10};

  void SetUp() override {
    StateTest::SetUp();
    std::vector<float> values(120);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / (1.0f + static_cast<float>(i));
    global_ = BytesOf(values);
  }

  // A rank with the part `layout` of the FP32 tensor `name`.
  TestTrainer Rank(const std::string& name, const ShardLayout& layout, std::byte padding = {}) {
    TestTrainer rank;
    rank.Add({.name = name, .shape = layout.LocalShape(), .layout = layout},
             CutShard(global_, 4, layout, padding));
    return rank;
  }

  template <typename... Rank>
  static std::vector<TestTrainer> Ranks(Rank&&... ranks) {
    std::vector<TestTrainer> all;
    (all.push_back(std::move(ranks)), ...);
    return all;
  }

  // Saves what all these ranks hold in one checkpoint.
  void SaveRanks(uint64_t step, const std::vector<TestTrainer>& ranks,
                 const std::optional<Topology>& topology = {}) {
    auto writer = store_->Begin(step).value();
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      for (const StateTensor& tensor : ranks[rank].state.tensors) {
        VARVE_ASSERT_OK(writer->Put({.name = tensor.name,
                                     .dtype = tensor.dtype,
                                     .shape = tensor.shape,
                                     .data = tensor.data,
                                     .shard = rank,
                                     .layout = &*tensor.layout}));
      }
      for (const StateItem& item : ranks[rank].state.items) {
        VARVE_ASSERT_OK(
            writer->PutBytes(EncodeItemName({item.name, item.rank}).value(), item.value));
      }
    }
    if (topology) VARVE_ASSERT_OK(writer->SetTopology(*topology));
    VARVE_ASSERT_OK(writer->SetTrainerProgress(ranks[0].state.trainer));
    VARVE_ASSERT_OK(writer->Commit().status());
  }

  void SaveColumns(uint64_t step) {
    SaveRanks(step, Ranks(Rank("w", Part(kShape, 1, 2, 0)), Rank("w", Part(kShape, 1, 2, 1))));
  }

  std::vector<std::byte> global_;
};

TEST_F(LoadShardsTest, EachRankGetsItsOwnPart) {
  SaveColumns(5);
  for (int64_t rank = 0; rank < 3; ++rank) {
    ShardLayout layout = Part(kShape, 0, 3, rank);
    layout.flat = Range{7, 45};  // a slice of four rows, and padding behind them
    const TestTrainer expected = Rank("w", layout);
    TestTrainer into = Rank("w", layout, std::byte{0x77});
    std::fill(into.memory[0].begin(), into.memory[0].end(), std::byte{0x77});
    const auto report = Load(5, &into);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(into.Bytes("w"), expected.Bytes("w"));
  }
}

TEST_F(LoadShardsTest, TargetsWithoutLayoutsGetTheWholeTensor) {
  SaveColumns(5);
  TestTrainer into;
  into.Add({.name = "w", .shape = kShape}, 2);
  ASSERT_TRUE(Load(5, &into).ok());
  EXPECT_EQ(into.Bytes("w"), global_);
}

TEST_F(LoadShardsTest, WholeTensorsAreCutForTheirTargets) {
  TestTrainer saved;
  saved.Add({.name = "w", .shape = kShape}, global_);
  SaveState(5, saved.state);
  const TestTrainer expected = Rank("w", Part(kShape, 1, 5, 3));
  TestTrainer into = Rank("w", Part(kShape, 1, 5, 3));
  std::fill(into.memory[0].begin(), into.memory[0].end(), std::byte{0});
  ASSERT_TRUE(Load(5, &into).ok());
  EXPECT_EQ(into.Bytes("w"), expected.Bytes("w"));
}

// The target has ZeRO's slice of a master and the whole weight. Without the optimizer's state the
// master is made from the weight, also when the checkpoint has no master.
TEST_F(LoadShardsTest, MastersOfUnlikeCutsAreMadeFromWeights) {
  std::vector<std::byte> weight(240);
  Convert(DType::kF32, global_, DType::kBF16, weight);
  std::vector<std::byte> widened(480);
  Convert(DType::kBF16, weight, DType::kF32, widened);
  for (const bool is_master_saved : {true, false}) {
    TestTrainer saved;
    if (is_master_saved) {
      saved.Add({.name = "m.w", .shape = kShape, .role = TensorRole::kOptimizer}, 7);
    }
    saved.Add({.name = "w", .dtype = DType::kBF16, .shape = kShape}, weight);
    const uint64_t step = is_master_saved ? 5 : 6;
    SaveState(step, saved.state);
    for (int64_t rank = 0; rank < 4; ++rank) {
      ShardLayout layout = ShardLayout::Whole(kShape);
      layout.flat = Range{31 * rank, 31 * rank + 31};  // the last one ends in padding
      TestTrainer into;
      into.Add({.name = "w", .dtype = DType::kBF16, .shape = kShape, .derived_from = "m.w"}, 2);
      into.Add({.name = "m.w", .shape = {31}, .role = TensorRole::kOptimizer, .layout = layout}, 3);
      const auto report = Load(step, &into, {.optimizer = false});
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_THAT(report->made, ElementsAre("m.w"));
      EXPECT_EQ(into.Bytes("w"), weight);
      EXPECT_EQ(into.Bytes("m.w"), CutShard(widened, 4, layout, {}));
    }
  }
}

TEST_F(LoadShardsTest, TypesAreConvertedOnTheWay) {
  SaveColumns(5);
  const ShardLayout layout = Part(kShape, 0, 2, 1);
  TestTrainer into;
  into.Add({.name = "w", .dtype = DType::kBF16, .shape = layout.LocalShape(), .layout = layout}, 3);
  ASSERT_TRUE(Load(5, &into, {.convert_dtype = true}).ok());
  std::vector<std::byte> expected(120);
  Convert(DType::kF32, CutShard(global_, 4, layout, {}), DType::kBF16, expected);
  EXPECT_EQ(into.Bytes("w"), expected);
}

TEST_F(LoadShardsTest, WeightsAreMadeFromMastersThatAreCutOtherwise) {
  std::vector<TestTrainer> ranks;
  for (int64_t rank = 0; rank < 4; ++rank) {  // ZeRO slices of the whole tensor
    ShardLayout slice = ShardLayout::Whole(kShape);
    slice.flat = Range{rank * 30, (rank + 1) * 30};
    ranks.push_back(Rank("master.w", slice));
  }
  SaveRanks(5, ranks);
  const ShardLayout layout = Part(kShape, 1, 2, 1);
  TestTrainer into;
  into.Add({.name = "w",
            .dtype = DType::kBF16,
            .shape = layout.LocalShape(),
            .role = TensorRole::kParameter,
            .derived_from = "master.w",
            .layout = layout},
           3);
  const auto report = Load(5, &into, {.strictness = Strictness::kLogUnexpected});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->made, ElementsAre("w"));
  std::vector<std::byte> expected(120);
  Convert(DType::kF32, CutShard(global_, 4, layout, {}), DType::kBF16, expected);
  EXPECT_EQ(into.Bytes("w"), expected);
}

TEST_F(LoadShardsTest, StridedTargetsHaveLayoutsToo) {
  SaveColumns(5);
  const ShardLayout layout = Part(kShape, 0, 2, 1);  // [6, 10], held transposed
  TestTrainer into;
  into.Add({{.name = "w", .shape = {6, 10}, .layout = layout}, nullptr, kHost, {1, 6}}, 3);
  ASSERT_TRUE(Load(5, &into).ok());
  const std::vector<float> values = into.Values<float>("w");
  const std::vector<std::byte> part = CutShard(global_, 4, layout, {});
  for (size_t i = 0; i < 60; ++i) {
    const auto value = std::as_bytes(std::span(values).subspan(i % 10 * 6 + i / 10, 1));
    EXPECT_TRUE(std::ranges::equal(value, std::span(part).subspan(i * 4, 4))) << i;
  }
}

TEST_F(LoadShardsTest, GlobalShapesAreCompared) {
  SaveColumns(5);
  TestTrainer into = Rank("w", Part(kShape, 0, 2, 0));
  into.state.tensors[0].layout->global_shape[0] = 13;
  ExpectRefused(5, &into, "tensor w: shape [12, 10], expected [13, 10]");
  TestTrainer other = Rank("w", Part(kShape, 0, 2, 0));
  other.state.tensors[0].shape = {10, 6};
  ExpectRefused(5, &other, "shape [10, 6], its layout [0:6, :] of [12, 10] has [6, 10]");
}

TEST_F(LoadShardsTest, AnotherTopologyIsReshardedOrRefusedByName) {
  SaveRanks(5, Ranks(Rank("w", Part(kShape, 1, 2, 0)), Rank("w", Part(kShape, 1, 2, 1))),
            Topology{.tp = 2, .world_size = 2});
  TestTrainer into = Rank("w", ShardLayout::Whole(kShape));
  into.state.topology = Topology{.dp = 4, .zero_stage = 1, .world_size = 4};
  EXPECT_THAT(Load(5, &into, {.reshard = false}),
              FailsWith(StatusCode::kInvalidArgument,
                        "step 5 of run main: saved by tp 2, 2 ranks, order tp-cp-ep-dp-pp; to be "
                        "loaded by dp 4, ZeRO stage 1, 4 ranks, order tp-cp-ep-dp-pp, and "
                        "resharding is not allowed"));
  VARVE_ASSERT_OK(Load(5, &into).status());
  EXPECT_EQ(into.Bytes("w"), global_);
  EXPECT_EQ(into.state.topology->dp, 4u);  // its own
}

TEST_F(LoadShardsTest, StatesOfSingleRanksAreNeverGivenToOthersSilently) {
  TestTrainer saved = Rank("w", ShardLayout::Whole(kShape));
  saved.state.trainer.rng = {{.rank = 1, .generator = "cpu", .state = {1, 2}}};
  saved.state.items = {{.name = "loader", .rank = 0, .value = {}}, {.name = "job", .value = {}}};
  SaveRanks(5, Ranks(std::move(saved)), Topology{.dp = 2, .world_size = 2});
  TestTrainer into = Rank("w", ShardLayout::Whole(kShape));
  into.state.topology = Topology{.dp = 3, .world_size = 3};
  EXPECT_THAT(Load(5, &into),
              FailsWith(StatusCode::kInvalidArgument,
                        "no rank of the new job: RNG cpu of rank 1, item loader of rank 0"));
  const auto report = Load(5, &into, {.rank_states = RankStates::kDrop});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->dropped, ElementsAre("RNG cpu of rank 1", "item loader of rank 0"));
  EXPECT_TRUE(into.state.trainer.rng.empty());
  ASSERT_EQ(into.state.items.size(), 1u);
  EXPECT_EQ(into.state.items[0].name, "job");
  EXPECT_NE(DerivedSeed(100, 0), DerivedSeed(100, 1));
  EXPECT_NE(DerivedSeed(100, 0), DerivedSeed(101, 0));
}

TEST_F(LoadShardsTest, AMissingShardIsAnErrorNotZeros) {
  const ShardLayout half = Part(kShape, 1, 2, 0);
  auto writer = SaveSession::Begin(store_.get(), 5).value();
  const std::vector<std::byte> bytes = CutShard(global_, 4, half, {});
  const std::vector<int64_t> shape = half.LocalShape();
  VARVE_ASSERT_OK(
      writer->Put({.name = "w", .shape = shape, .data = bytes.data(), .layout = &half}));
  writer->SetPartial();
  VARVE_ASSERT_OK(writer->Commit().status());
  TestTrainer into = Rank("w", Part(kShape, 0, 2, 0));
  EXPECT_THAT(Load(5, &into), FailsWith(StatusCode::kCorruption,
                                        "hold 30 of the 60 elements of [0:6, :] of [12, 10]"));
}

}  // namespace
}  // namespace varve::internal::testing
