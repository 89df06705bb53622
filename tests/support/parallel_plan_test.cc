// SPDX-License-Identifier: Apache-2.0
//
// That the plans of the tests are what the trainers do: known values, and that the ranks of a plan
// hold every element of the model.
#include "tests/support/parallel_plan.h"

#include <algorithm>
#include <map>

#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

std::vector<RankTensors> Ranks(const Model& model, const char* plan) {
  const auto ranks = TensorsOfRanks(model, *ParsePlan(plan));
  EXPECT_TRUE(ranks.ok()) << plan << ": " << ranks.status().ToString();
  return *ranks;
}

// Returns what the ranks hold of a tensor, by rank.
std::vector<std::string> HeldOf(const std::vector<RankTensors>& ranks, std::string_view name) {
  std::vector<std::string> texts;
  for (const RankTensors& held : ranks) {
    texts.push_back("-");
    for (const HeldTensor& tensor : held) {
      if (tensor.name == name) texts.back() = ToString(tensor.layout);
    }
  }
  return texts;
}

class PlanTest : public ::testing::TestWithParam<const char*> {};

// Layouts that are equal are replicas. All others together hold each element once.
TEST_P(PlanTest, HoldsEveryElement) {
  const Model model = OddModel();
  std::map<std::string, std::vector<ShardLayout>> layouts;
  for (const RankTensors& held : Ranks(model, GetParam())) {
    for (const HeldTensor& tensor : held) {
      auto& distinct = layouts[tensor.name];
      for (const ShardLayout& shard : tensor.shards) {
        const ShardLayout layout = Canonical(shard);
        if (std::find(distinct.begin(), distinct.end(), layout) == distinct.end()) {
          distinct.push_back(layout);
        }
      }
    }
  }
  EXPECT_EQ(layouts.size(), model.parameters.size() * 6);
  for (const auto& [name, distinct] : layouts) {
    SCOPED_TRACE(name);
    ExpectCoversOnce(distinct);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PlanTest,
    ::testing::Values("dp2", "mp4", "pp3", "sharding3 stage1 in-order", "sharding4 stage1 v2",
                      "sharding3 stage3", "mp2 pp2 vpp2", "mp2 sharding2 stage1",
                      "mp2 pp2 sharding2 stage2 save_sharded_model", "mp2 pp2 sharding2 stage1 v2",
                      "mp2 sharding3 per-tensor", "mp4 sharding2 buckets", "sharding5 fsdp",
                      "mp2 pp7", "mp8", "mp8 sharding2 stage1 v2", "mp8 sharding3 per-tensor"));

TEST(ParsePlanTest, ReadsTheSeedsNames) {
  const ParallelPlan plan = *ParsePlan("pp2 mp4 sharding8 stage1 v2 vpp3 dp5 save_sharded_model");
  EXPECT_EQ(std::vector<int64_t>({plan.dp, plan.tp, plan.pp, plan.vpp, plan.sharding}),
            std::vector<int64_t>({5, 4, 2, 3, 8}));
  EXPECT_EQ(plan.kind, Sharding::kFused);
  EXPECT_TRUE(plan.sharded_weights);
  EXPECT_THAT(ParsePlan("pp2 mq4"), FailsWith(StatusCode::kInvalidArgument, "\"mq4\" in the plan"));
  EXPECT_THAT(ParsePlan("pp"), FailsWith(StatusCode::kInvalidArgument, "\"pp\""));
}

TEST(PlanKnownValuesTest, MpPpVpp) {
  const auto ranks = Ranks(OddModel(), "mp2 pp2 vpp2");
  EXPECT_THAT(HeldOf(ranks, "transformer.h.5.attn.c_proj.weight"),
              ElementsAre("[:, 0:12] of [29, 24]", "[:, 12:24] of [29, 24]", "-", "-"));
  EXPECT_THAT(HeldOf(ranks, "transformer.h.6.mlp.gate_up.weight.moment1"),
              ElementsAre("-", "-", "[0:20+40:60, :] of [80, 29]", "[20:40+60:80, :] of [80, 29]"));
  EXPECT_THAT(HeldOf(ranks, "lm_head.weight"), ElementsAre("-", "-", "[0:32768, :] of [65535, 2]",
                                                           "[32768:65535+pad 1, :] of [65535, 2]"));
  EXPECT_THAT(HeldOf(ranks, "transformer.wte.weight"),
              ElementsAre("[0:25216, :] of [50257, 3]", "[25216:50257+pad 175, :] of [50257, 3]",
                          "-", "-"));
}

// Eight ranks and four keys.
TEST(PlanKnownValuesTest, SharedKeys) {
  const auto ranks = Ranks(HeadsModel(), "mp8");
  const auto held = HeldOf(ranks, "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(held[6], "[18:21+33:36+45:48] of [48]");
  EXPECT_EQ(held[7], "[21:24+33:36+45:48] of [48]");
}

TEST(PlanKnownValuesTest, Stage3SlicesWhatIsLarge) {
  const auto ranks = Ranks(OddModel(), "sharding2 stage3");
  EXPECT_THAT(HeldOf(ranks, "transformer.h.3.equal"),
              ElementsAre("[:, :] of [1024, 1024]", "[:, :] of [1024, 1024]"));
  EXPECT_THAT(HeldOf(ranks, "transformer.h.6.above.master"),
              ElementsAre("[:, :] of [17, 61681], elements 0:524320",
                          "[:, :] of [17, 61681], elements 524320:1048640"));
}

}  // namespace
}  // namespace varve::internal::testing
