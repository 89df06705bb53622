// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/store/store_fixture.h"
#include "varve/global_names.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

// Seven layers in four pieces: 0 1 | 2 3 | 4 5 | 6.
constexpr Pipeline kSeven{.layers = 7, .stages = 2, .chunks = 2};

TEST(PipelineTest, RemainderLayersGoToTheFirstPieces) {
  EXPECT_EQ(*LayersOfChunk(kSeven, 0, 0), (Range{0, 2}));
  EXPECT_EQ(*LayersOfChunk(kSeven, 1, 0), (Range{2, 4}));
  EXPECT_EQ(*LayersOfChunk(kSeven, 0, 1), (Range{4, 6}));
  EXPECT_EQ(*LayersOfChunk(kSeven, 1, 1), (Range{6, 7}));
  EXPECT_THAT(*LayersOfStage(kSeven, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(*LayersOfStage(kSeven, 1), ElementsAre(2, 3, 6));
  EXPECT_THAT(*LayersOfStage({.layers = 7, .stages = 4}, 3), ElementsAre(6));
  EXPECT_THAT(*LayersOfStage({.layers = 2, .stages = 3}, 2), ElementsAre());
}

TEST(PipelineTest, EveryLayerIsFoundWhereItIs) {
  for (const Pipeline& pipeline :
       {kSeven, Pipeline{.layers = 1}, Pipeline{.layers = 3, .stages = 5},
        Pipeline{.layers = 24, .stages = 3, .chunks = 4},
        Pipeline{.layers = 61, .stages = 8, .chunks = 3}}) {
    std::set<int64_t> seen;
    for (int64_t stage = 0; stage < pipeline.stages; ++stage) {
      const auto layers = *LayersOfStage(pipeline, stage);
      seen.insert(layers.begin(), layers.end());
      for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
        const Range range = *LayersOfChunk(pipeline, stage, chunk);
        for (int64_t layer = range.begin; layer < range.end; ++layer) {
          EXPECT_EQ(*FindLayer(pipeline, layer),
                    (PipelinePlace{stage, chunk, layer - range.begin}));
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), pipeline.layers);
    EXPECT_EQ(*seen.rbegin(), pipeline.layers - 1);
  }
}

TEST(PipelineTest, SaysWhatIsOutOfRange) {
  EXPECT_THAT(LayersOfChunk(kSeven, 2, 0), FailsWith(kInvalid, "stage 2, expected one below 2"));
  EXPECT_THAT(LayersOfChunk(kSeven, 0, -1), FailsWith(kInvalid, "chunk -1, expected one below 2"));
  EXPECT_THAT(FindLayer(kSeven, 7), FailsWith(kInvalid, "layer 7, expected one below 7"));
  EXPECT_THAT(LayersOfStage({.layers = 7, .stages = 0}, 0),
              FailsWith(kInvalid, "a pipeline of 7 layers on 0 stages of 1 chunks"));
  EXPECT_THAT(LayersOfStage({.layers = 7, .chunks = 0}, 0), FailsWith(kInvalid, "of 0 chunks"));
}

TEST(ExpertsOfRankTest, EqualPartsInOrder) {
  EXPECT_THAT(*ExpertsOfRank(8, {1, 4}), ElementsAre(2, 3));
  EXPECT_THAT(ExpertsOfRank(8, {1, 3}),
              FailsWith(kInvalid, "8 experts, expected a multiple of 3 ranks"));
  EXPECT_THAT(ExpertsOfRank(-3, {1, 3}), FailsWith(kInvalid, "-3 experts, expected at least 0"));
}

class GlobalNamesTest : public ::testing::Test {
 protected:
  std::string Global(std::string_view name) {
    const auto global = names_.Apply(name);
    EXPECT_TRUE(global.ok()) << global.status().ToString();
    return global.ok() ? global->value_or("(skipped)") : "";
  }

  GlobalNames names_;
};

TEST_F(GlobalNamesTest, StageLocalLayersOfSevenOnPp2Vpp2) {
  VARVE_ASSERT_OK(names_.AddNumbers("transformer.h", *LayersOfStage(kSeven, 1)));
  EXPECT_EQ(Global("transformer.h.0.ln_1.weight"), "transformer.h.2.ln_1.weight");
  EXPECT_EQ(Global("transformer.h.1.attn.c_attn.bias"), "transformer.h.3.attn.c_attn.bias");
  EXPECT_EQ(Global("transformer.h.2"), "transformer.h.6");
  EXPECT_EQ(Global("transformer.wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(Global("exp_avg.transformer.h.0.ln_1.weight"), "exp_avg.transformer.h.2.ln_1.weight");
  EXPECT_THAT(names_.Apply("transformer.h.3.ln_1.weight"),
              FailsWith(kInvalid,
                        "\"transformer.h.3.ln_1.weight\": number 3 of transformer.h, "
                        "expected one below 3"));
}

TEST_F(GlobalNamesTest, OnlyNumbersBehindTheWholePrefix) {
  VARVE_ASSERT_OK(names_.AddNumbers("h", {7}));
  EXPECT_EQ(Global("h.0"), "h.7");
  EXPECT_EQ(Global("a.h.0.h.0"), "a.h.7.h.0");
  EXPECT_EQ(Global("h.h.0"), "h.h.7");
  for (const char* name : {"h", "ah.0", "h.a.0", "h.0a", "h.-1", "h.", "0.h", "h0.0"}) {
    EXPECT_EQ(Global(name), name);
  }
}

TEST_F(GlobalNamesTest, WrappersAndAliases) {
  VARVE_ASSERT_OK(names_.AddNumbers("h", {4}));
  EXPECT_EQ(Global("module.module.module.h.0.w"), "h.4.w");
  EXPECT_EQ(Global("my.module.h.0.w"), "my.module.h.4.w");
  EXPECT_EQ(Global("modules.w"), "modules.w");
  EXPECT_EQ(Global("__pp_chunk_0.h.9.w"), "(skipped)");
  EXPECT_EQ(Global("module.model.__pp_first.w"), "(skipped)");
  EXPECT_EQ(Global("model.my__pp.w"), "model.my__pp.w");
}

TEST_F(GlobalNamesTest, WrappersOfTorchAndOfOptimizerState) {
  VARVE_ASSERT_OK(names_.AddNumbers("h", {4}));
  for (const std::string wrapped :
       {"module.h.0.w", "_orig_mod.module.h.0.w", "module._orig_mod.h.0.w",
        "_fsdp_wrapped_module.h.0._fsdp_wrapped_module.w", "h.0._checkpoint_wrapped_module.w"}) {
    EXPECT_EQ(Global(wrapped), "h.4.w");
    for (const std::string kind : {"exp_avg.", "exp_avg_sq.", "master.", "optimizer.state.exp_avg.",
                                   "optimizer.fp32_param."}) {
      EXPECT_EQ(Global(kind + wrapped), kind + "h.4.w");
      EXPECT_EQ(Global("module." + kind + wrapped), kind + "h.4.w");
    }
  }
  for (const char* name : {"optimizer.module.w", "state.exp_avg.module.w", "exp_avg", "module",
                           "exp_avg.module", "my_orig_mod.w", "ema.module.w"}) {
    EXPECT_EQ(Global(name), name);
  }
}

// The second of two stages, on the last of four expert-parallel ranks.
TEST_F(GlobalNamesTest, LayersAndExpertsTogether) {
  VARVE_ASSERT_OK(names_.AddNumbers("layers", *LayersOfStage({.layers = 5, .stages = 2}, 1)));
  VARVE_ASSERT_OK(names_.AddNumbers("mlp.experts", *ExpertsOfRank(8, {3, 4})));
  EXPECT_EQ(Global("module.layers.1.mlp.experts.0.w1"), "layers.4.mlp.experts.6.w1");
  EXPECT_EQ(Global("layers.0.mlp.experts.1.w1"), "layers.3.mlp.experts.7.w1");
  EXPECT_EQ(Global("layers.0.mlp.router.w"), "layers.3.mlp.router.w");
}

TEST_F(GlobalNamesTest, RefusesWrongPrefixes) {
  EXPECT_THAT(names_.AddNumbers("", {1}), FailsWith(kInvalid, "empty prefix"));
  VARVE_EXPECT_OK(names_.AddNumbers("a.b", {1}));
  EXPECT_THAT(names_.AddNumbers("a.b", {2}), FailsWith(kInvalid, "\"a.b\" has numbers already"));
}

}  // namespace

}  // namespace varve::internal
