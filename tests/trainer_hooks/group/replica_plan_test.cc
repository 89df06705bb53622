// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replica_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "store/shards/regions.h"
#include "tests/store/store_fixture.h"
#include "tests/trainer_hooks/holding.h"
#include "trainer_hooks/group/rank_part.h"
#include "varve/layouts.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using Lists = std::vector<std::vector<HeldTensor>>;

HeldTensor Held(const std::string& name, const ShardLayout& layout,
                const std::string& derived_from = "") {
  return testing::Holding(Canonical(layout),
                          {.name = testing::Kept(name),
                           .dtype = derived_from.empty() ? DType::kF32 : DType::kBF16,
                           .derived_from = testing::Kept(derived_from),
                           .can_cut = true});
}

// The ZeRO slice of a layout that one of `dp` ranks has.
ShardLayout Slice(const ShardLayout& layout, int64_t dp, int64_t rank) {
  return SliceFlat(layout, {rank, dp}).value();
}
ShardLayout Rows(const ShardLayout& layout, int64_t tp, int64_t rank) {
  return SplitEvenly(layout, 0, {rank, tp}).value();
}

// Returns what each rank saves, by name, as text: "[0, 5)".
std::map<std::string, std::string> Writes(const Lists& held, const ReplicaPlan& plan, size_t rank) {
  std::map<std::string, std::string> writes;
  for (size_t i = 0; i < held[rank].size(); ++i) {
    const std::optional<Range>& range = plan.writes[rank][i];
    if (!range.has_value()) continue;
    writes[std::string(held[rank][i].name)] =
        "[" + std::to_string(range->begin) + ", " + std::to_string(range->end) + ")";
  }
  return writes;
}

// Every element that somebody holds is saved, and none twice.
void ExpectWhole(const Lists& held, const ReplicaPlan& plan) {
  std::map<std::string_view, std::vector<ShardLayout>> saved;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (size_t i = 0; i < held[rank].size(); ++i) {
      const std::optional<Range>& range = plan.writes[rank][i];
      auto& layouts = saved[held[rank][i].name];
      if (!range.has_value()) continue;
      const ShardLayout layout = held[rank][i].Layout();
      EXPECT_LE(range->end, layout.NumLocal());
      layouts.push_back(Canonical(CutLayout(layout, *range)));
      EXPECT_EQ(std::count(layouts.begin(), layouts.end(), layouts.back()), 1)
          << held[rank][i].name << ": " << ToString(layouts.back());
    }
  }
  for (const auto& [name, layouts] : saved) {
    ASSERT_FALSE(layouts.empty()) << name;
    const Status whole = ProveCoverage(layouts);
    EXPECT_TRUE(whole.ok()) << name << ": " << whole.ToString();
  }
}

std::vector<uint64_t> Loads(const Lists& held, const ReplicaPlan& plan) {
  std::vector<uint64_t> loads(held.size());
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (size_t i = 0; i < held[rank].size(); ++i) {
      const auto range = plan.writes[rank][i].value_or(Range{});
      const auto bits = static_cast<uint64_t>(DTypeBits(held[rank][i].dtype));
      loads[rank] += static_cast<uint64_t>(range.end - range.begin) * bits / 8;
    }
  }
  return loads;
}

// A transformer of some layers with weights and Adam, in bytes as unequal as they are.
std::vector<HeldTensor> Model(int layers) {
  std::vector<HeldTensor> held;
  const auto add = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    for (const char* kind : {"", "exp_avg.", "exp_avg_sq."}) {
      held.push_back(Held(kind + name, ShardLayout::Whole(shape)));
    }
  };
  add("wte", {50257, 768});
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "h." + std::to_string(i) + ".";
    add(layer + "attn", {2304, 768});
    add(layer + "fc", {3072, 768});
    add(layer + "ln", {768});
  }
  return held;
}

TEST(ReplicaPlanTest, WhatAllHoldIsSavedOnceAndSpread) {
  const Lists held(4, Model(6));
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  const std::vector<uint64_t> loads = Loads(held, plan);
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  EXPECT_LT(static_cast<double>(*most), 1.02 * static_cast<double>(*least));
  EXPECT_EQ(plan.groups.size(), held[0].size());
  for (const ReplicaGroup& group : plan.groups) EXPECT_EQ(group.holders.size(), 4u);
}

// A step of the optimizer can be replayed only from the same part of the weight and its moments.
TEST(ReplicaPlanTest, MomentsAreSavedWhereTheirWeightsAre) {
  Lists held(4, Model(6));
  for (auto& tensors : held) {
    for (HeldTensor& tensor : tensors) {
      const size_t dot = tensor.name.find('.');
      if (tensor.name.starts_with("exp_")) tensor.moment_of = tensor.name.substr(dot + 1);
    }
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  const std::vector<uint64_t> loads = Loads(held, plan);
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  EXPECT_LT(static_cast<double>(*most), 1.1 * static_cast<double>(*least));
  size_t num_weights = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    const auto writes = Writes(held, plan, rank);
    for (const auto& [name, range] : writes) {
      if (name.starts_with("exp_")) continue;
      ++num_weights;
      EXPECT_EQ(writes.at("exp_avg." + name), range);
      EXPECT_EQ(writes.at("exp_avg_sq." + name), range);
    }
  }
  EXPECT_GE(num_weights, held[0].size() / 3);
  // Also when a store has them elsewhere from before, and not where the weight cannot be cut.
  for (size_t i = 0; i < held[1].size(); ++i) {
    held[1][i].had = Range{0, held[1][i].Layout().NumLocal()};
    for (auto& tensors : held) tensors[i].can_cut = tensors[i].moment_of.empty();
  }
  const ReplicaPlan later = PlanReplicas(held);
  ExpectWhole(held, later);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    const auto writes = Writes(held, later, rank);
    if (!writes.contains("h.0.ln")) continue;
    EXPECT_TRUE(writes.contains("exp_avg.h.0.ln") && writes.contains("exp_avg_sq.h.0.ln")) << rank;
  }
}

TEST(ReplicaPlanTest, OneRankSavesEverything) {
  const Lists held(1, Model(1));
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_TRUE(plan.groups.empty());
  for (const auto& range : plan.writes[0]) EXPECT_TRUE(range.has_value());
}

TEST(ReplicaPlanTest, TheOrderOfTheListsMakesNoDifference) {
  const Lists held(3, Model(4));
  const ReplicaPlan plan = PlanReplicas(held);
  Lists shuffled = held;
  std::mt19937 random(7);
  for (auto& tensors : shuffled) std::shuffle(tensors.begin(), tensors.end(), random);
  const ReplicaPlan other = PlanReplicas(shuffled);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    EXPECT_EQ(Writes(held, plan, rank), Writes(shuffled, other, rank)) << rank;
  }
}

TEST(ReplicaPlanTest, LargeTensorsAreCutAtChunks) {
  const Lists held(3, {Held("w", ShardLayout::Whole({20'000'000}))});
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(plan.writes[rank][0].has_value());
    EXPECT_EQ(plan.writes[rank][0]->begin % 262144, 0);
  }
  const std::vector<uint64_t> loads = Loads(held, plan);
  EXPECT_LE(
      *std::max_element(loads.begin(), loads.end()) - *std::min_element(loads.begin(), loads.end()),
      uint64_t{2} << 20);
}

TEST(ReplicaPlanTest, WhatCannotBeCutStaysWhole) {
  Lists held(3, {Held("strided", ShardLayout::Whole({20'000'000}))});
  held[1][0].can_cut = false;
  EXPECT_THAT(Writes(held, PlanReplicas(held), 0),
              ElementsAre(std::pair("strided", "[0, 20000000)")));
  // Its padding comes back only from a shard of the same layout.
  const ShardLayout padded =
      SplitPadded(ShardLayout::Whole({9'999'999, 2}), 0, 10'000'000, {0, 1}).value();
  const Lists padding(2, {Held("padded", padded)});
  EXPECT_THAT(Writes(padding, PlanReplicas(padding), 0),
              ElementsAre(std::pair("padded", "[0, 20000000)")));
}

TEST(ReplicaPlanTest, WeightsAreSavedWhereTheirMastersAre) {
  Lists held(4);
  const ShardLayout whole = ShardLayout::Whole({10, 7});  // 70 elements, slices of 18
  for (int64_t rank = 0; rank < 4; ++rank) {
    held[static_cast<size_t>(rank)] = {Held("w", whole, "m"), Held("m", Slice(whole, 4, rank))};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 0),
              ElementsAre(std::pair("m", "[0, 18)"), std::pair("w", "[0, 18)")));
  EXPECT_THAT(Writes(held, plan, 1),
              ElementsAre(std::pair("m", "[0, 18)"), std::pair("w", "[18, 36)")));
  EXPECT_THAT(Writes(held, plan, 3),  // two elements behind the end
              ElementsAre(std::pair("m", "[0, 18)"), std::pair("w", "[54, 70)")));
  ASSERT_EQ(plan.groups.size(), 1u);  // the masters have no replicas
  EXPECT_EQ(held[0][plan.groups[0].holders[0].tensor].name, "w");
}

TEST(ReplicaPlanTest, SlicesBehindTheEndArePaddingOnly) {
  Lists held(4);
  const ShardLayout whole = ShardLayout::Whole({2});
  for (int64_t rank = 0; rank < 4; ++rank) {
    held[static_cast<size_t>(rank)] = {Held("w", whole, "m"), Held("m", Slice(whole, 4, rank))};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 1),
              ElementsAre(std::pair("m", "[0, 1)"), std::pair("w", "[1, 2)")));
  EXPECT_THAT(Writes(held, plan, 3), ElementsAre(std::pair("m", "[0, 1)")));
}

TEST(ReplicaPlanTest, MastersMayBeRowsOfTheWeight) {
  Lists held(2);
  const ShardLayout whole = ShardLayout::Whole({5, 4});
  for (int64_t rank = 0; rank < 2; ++rank) {
    held[static_cast<size_t>(rank)] = {Held("w", whole, "m"),
                                       Held("m", SplitChunks(whole, 0, {rank, 2}).value())};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 0),
              ElementsAre(std::pair("m", "[0, 12)"), std::pair("w", "[0, 12)")));
  EXPECT_THAT(Writes(held, plan, 1),
              ElementsAre(std::pair("m", "[0, 8)"), std::pair("w", "[12, 20)")));
}

TEST(ReplicaPlanTest, MastersThatAreNoRangeOfTheWeightLeaveItWhole) {
  Lists held(2);
  const ShardLayout whole = ShardLayout::Whole({5, 4});
  for (int64_t rank = 0; rank < 2; ++rank) {
    held[static_cast<size_t>(rank)] = {Held("w", whole, "m"),
                                       Held("m", SplitEvenly(whole, 1, {rank, 2}).value())};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 0),
              ElementsAre(std::pair("m", "[0, 10)"), std::pair("w", "[0, 20)")));
  EXPECT_THAT(Writes(held, plan, 1), ElementsAre(std::pair("m", "[0, 10)")));
}

TEST(ReplicaPlanTest, WholeMastersAndTheirWeightsGoTogether) {
  Lists held(3);
  for (auto& tensors : held) {
    for (const std::string name : {"a", "b", "c"}) {
      tensors.push_back(Held(name, ShardLayout::Whole({100}), "m." + name));
      tensors.push_back(Held("m." + name, ShardLayout::Whole({100})));
    }
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  const std::string all = "[0, 100)";
  EXPECT_THAT(Writes(held, plan, 0), ElementsAre(std::pair("a", all), std::pair("m.a", all)));
  EXPECT_THAT(Writes(held, plan, 1), ElementsAre(std::pair("b", all), std::pair("m.b", all)));
  EXPECT_THAT(Writes(held, plan, 2), ElementsAre(std::pair("c", all), std::pair("m.c", all)));
}

TEST(ReplicaPlanTest, TwoDataParallelGroupsOfTwoTensorParallelRanks) {
  // In ranks, tp is fastest. The replicas of a shard are those of the other dp rank of the same tp
  // rank. Norms are replicas on all four.
  Lists held(4);
  const ShardLayout weight = ShardLayout::Whole({8, 6}), norm = ShardLayout::Whole({6});
  for (int64_t rank = 0; rank < 4; ++rank) {
    const ShardLayout part = Rows(weight, 2, rank % 2);
    held[static_cast<size_t>(rank)] = {
        Held("norm", norm, "m.norm"), Held("m.norm", Slice(norm, 2, rank / 2)),
        Held("w", part, "m.w"), Held("m.w", Slice(part, 2, rank / 2))};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_EQ(Writes(held, plan, 0).at("w"), "[0, 12)");
  EXPECT_EQ(Writes(held, plan, 3).at("w"), "[12, 24)");
  // The slice of the norm's master that ranks 0 and 1 both have is saved by one of them, with the
  // norm.
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto writes = Writes(held, plan, rank);
    EXPECT_EQ(writes.contains("norm"), writes.contains("m.norm")) << rank;
  }
  std::map<std::string_view, std::vector<size_t>> sizes;
  for (const ReplicaGroup& group : plan.groups) {
    const ReplicaGroup::Holder& first = group.holders[0];
    sizes[held[first.rank][first.tensor].name].push_back(group.holders.size());
  }
  EXPECT_THAT(sizes["norm"], ElementsAre(4));
  EXPECT_THAT(sizes["m.norm"], ElementsAre(2, 2));
  EXPECT_THAT(sizes["w"], ElementsAre(2, 2));
  EXPECT_FALSE(sizes.contains("m.w"));
}

TEST(ReplicaPlanTest, EmptyShardsAndRanksWithPaddingOnly) {
  Lists held(4);
  const ShardLayout whole = ShardLayout::Whole({2, 3});
  for (int64_t rank = 0; rank < 4; ++rank) {
    held[static_cast<size_t>(rank)] = {
        Held("chunks", SplitChunks(whole, 0, {rank, 4}).value()),     // ranks 2, 3 have none
        Held("padded", SplitPadded(whole, 0, 8, {rank, 4}).value()),  // only rank 0 has rows
        Held("empty", ShardLayout::Whole({0, 3}))};
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  size_t saved = 0;
  for (const auto& writes : plan.writes) {
    saved += static_cast<size_t>(
        std::ranges::count_if(writes, [](const auto& range) { return range.has_value(); }));
  }
  EXPECT_EQ(saved,
            6u);  // of `chunks` two rows and nothing, of `padded` rows and padding, and `empty`
}

TEST(ReplicaPlanTest, TiedTensorsAreSavedByOneRank) {
  Lists held(2);
  for (auto& tensors : held) {
    tensors = {Held("a", ShardLayout::Whole({50})), Held("b", ShardLayout::Whole({40})),
               Held("tied", ShardLayout::Whole({50}))};
    tensors[2].alias_of = "a";
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  const std::string all = "[0, 50)";
  EXPECT_THAT(Writes(held, plan, 0), ElementsAre(std::pair("a", all), std::pair("tied", all)));
  EXPECT_THAT(Writes(held, plan, 1), ElementsAre(std::pair("b", "[0, 40)")));
}

TEST(ReplicaPlanTest, RulesDecideWhoSaves) {
  Lists held(3, {Held("lowest", ShardLayout::Whole({50})), Held("own", ShardLayout::Whole({40}))});
  for (auto& tensors : held) {
    tensors[0].policy = ReplicaPolicy::kTakeLowest;
    tensors[1].policy = ReplicaPolicy::kKeepPerRank;
  }
  const ReplicaPlan plan = PlanReplicas(held);
  EXPECT_THAT(Writes(held, plan, 0),
              ElementsAre(std::pair("lowest", "[0, 50)"), std::pair("own", "[0, 40)")));
  EXPECT_THAT(Writes(held, plan, 2), ElementsAre(std::pair("own", "[0, 40)")));
  ASSERT_EQ(plan.groups.size(), 1u);
}

// With 2^31 elements in FP32, elements * bytes are 2^64.
TEST(ReplicaPlanTest, TensorsOfAnySizeAreSpread) {
  const ShardLayout huge = ShardLayout::Whole({int64_t{1} << 31});
  Lists held(2, {Held("a", huge), Held("b", huge)});
  for (auto& tensors : held) {
    for (HeldTensor& tensor : tensors) tensor.can_cut = false;
  }
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 0), ElementsAre(std::pair("a", "[0, 2147483648)")));
  EXPECT_THAT(Writes(held, plan, 1), ElementsAre(std::pair("b", "[0, 2147483648)")));
}

TEST(ReplicaPlanTest, PartsOfHugeTensorsCountForWhatTheyAre) {
  // Ranks 0 and 1 save half of it each, so rank 2 has the least to save.
  const HeldTensor huge = Held("huge", ShardLayout::Whole({2, int64_t{1} << 31}));
  const HeldTensor small = Held("small", ShardLayout::Whole({1000}));
  const Lists held = {{huge}, {huge, small}, {small}};
  const ReplicaPlan plan = PlanReplicas(held);
  ExpectWhole(held, plan);
  EXPECT_THAT(Writes(held, plan, 1), ElementsAre(std::pair("huge", "[2147483648, 4294967296)")));
  EXPECT_THAT(Writes(held, plan, 2), ElementsAre(std::pair("small", "[0, 1000)")));
}

// The lists of a save after one with this plan.
Lists After(Lists held, const ReplicaPlan& plan) {
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (size_t i = 0; i < held[rank].size(); ++i) held[rank][i].had = plan.writes[rank][i];
  }
  return held;
}

// Bytes that ranks save and have not saved before.
uint64_t Moved(const Lists& held, const ReplicaPlan& plan) {
  uint64_t moved = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (size_t i = 0; i < held[rank].size(); ++i) {
      const Range range = plan.writes[rank][i].value_or(Range{});
      const Range had = held[rank][i].had.value_or(Range{});
      const int64_t begin = std::max(range.begin, had.begin), end = std::min(range.end, had.end);
      const int64_t known = std::max<int64_t>(end - begin, 0);
      const auto bits = static_cast<uint64_t>(DTypeBits(held[rank][i].dtype));
      moved += static_cast<uint64_t>(range.end - range.begin - known) * bits / 8;
    }
  }
  return moved;
}

uint64_t Most(const Lists& held, const ReplicaPlan& plan) {
  const std::vector<uint64_t> loads = Loads(held, plan);
  return *std::max_element(loads.begin(), loads.end());
}

Lists Forgotten(Lists held) {
  for (auto& tensors : held) {
    for (HeldTensor& tensor : tensors) tensor.had.reset();
  }
  return held;
}

void ExpectBalanced(const Lists& held, const ReplicaPlan& plan) {
  const Lists scratch = Forgotten(held);
  EXPECT_LE(Most(held, plan), Most(scratch, PlanReplicas(scratch)) * 3 / 2);
}

TEST(StickyPlanTest, TheSameListsHaveTheSamePlan) {
  const Lists held(4, Model(6));
  const ReplicaPlan plan = PlanReplicas(held);
  EXPECT_EQ(PlanReplicas(After(held, plan)).writes, plan.writes);
}

TEST(StickyPlanTest, ANewTensorMovesNoOther) {
  const Lists before(4, Model(6));
  const ReplicaPlan plan = PlanReplicas(before);
  Lists held = After(before, plan);
  // The largest of all, so that a plan from scratch gives it out first.
  const HeldTensor added = Held("a.head", ShardLayout::Whole({50257, 770}));
  constexpr uint64_t kAddedBytes = uint64_t{50257} * 770 * 4;
  for (auto& tensors : held) tensors.push_back(added);
  const ReplicaPlan next = PlanReplicas(held);
  ExpectWhole(held, next);
  ExpectBalanced(held, next);
  EXPECT_EQ(Moved(held, next), kAddedBytes);
  // What it is for: a plan from scratch moves others, too.
  const ReplicaPlan scratch = PlanReplicas(Forgotten(held));
  EXPECT_GT(Moved(held, scratch), 2 * kAddedBytes);
}

TEST(StickyPlanTest, WhatARankLeavesIsGivenOutAndNothingElse) {
  const Lists before(4, Model(6));
  const ReplicaPlan plan = PlanReplicas(before);
  Lists held = After(before, plan);
  const uint64_t orphaned = Loads(before, plan)[1];
  held.erase(held.begin() + 1);
  const ReplicaPlan next = PlanReplicas(held);
  ExpectWhole(held, next);
  ExpectBalanced(held, next);
  EXPECT_EQ(Moved(held, next), orphaned);
}

TEST(StickyPlanTest, NewRanksTakeTheirShare) {
  const Lists before(4, Model(12));
  Lists held = After(before, PlanReplicas(before));
  held.resize(8, Model(12));
  const ReplicaPlan next = PlanReplicas(held);
  ExpectWhole(held, next);
  ExpectBalanced(held, next);
  uint64_t all = 0;
  for (const uint64_t load : Loads(held, next)) {
    EXPECT_GT(load, 0u);
    all += load;
  }
  EXPECT_LT(Moved(held, next), all * 2 / 3);
}

TEST(StickyPlanTest, OneRankThatHadAllKeepsWhatItMay) {
  Lists held(4, Model(6));
  for (HeldTensor& tensor : held[2]) tensor.had = Range{0, tensor.Layout().NumLocal()};
  const ReplicaPlan next = PlanReplicas(held);
  ExpectWhole(held, next);
  ExpectBalanced(held, next);
  EXPECT_GE(Loads(held, next)[2] * 4, Most(held, next) * 2);
}

TEST(StickyPlanTest, WhateverRanksSayTheyHadAllIsSavedOnce) {
  std::mt19937 random(9);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  for (int round = 0; round < 200; ++round) {
    Lists held(static_cast<size_t>(1 + below(6)));
    for (int64_t i = 0; i < 12; ++i) {
      const HeldTensor tensor =
          Held("t" + std::to_string(i), ShardLayout::Whole({1 + below(4) * 9'000'000}));
      for (auto& tensors : held) {
        if (below(4) == 0 && &tensors != &held[0]) continue;
        tensors.push_back(tensor);
        tensors.back().can_cut = below(8) > 0;
        const int64_t n = tensor.Layout().NumLocal();
        const int64_t begin = below(2) * below(n), end = begin + 1 + below(n - begin);
        if (below(3) > 0) tensors.back().had = Range{begin, below(2) == 0 ? n : end};
      }
    }
    const ReplicaPlan plan = PlanReplicas(held);
    ExpectWhole(held, plan);
    ExpectBalanced(held, plan);
    const Lists after = After(held, plan);
    ExpectWhole(after, PlanReplicas(after));
  }
}

TEST(ReplicaRulesTest, AreTheSameOnAllRanks) {
  Lists held(3, {Held("bn", ShardLayout::Whole({5})), Held("w", ShardLayout::Whole({4}))});
  for (auto& tensors : held) tensors[0].policy = ReplicaPolicy::kTakeLowest;
  VARVE_EXPECT_OK(CompareRules(held));
  VARVE_EXPECT_OK(CompareRules({}));
  held[2].push_back(Held("own", ShardLayout::Whole({4})));  // nobody else holds it
  held[2].back().policy = ReplicaPolicy::kKeepPerRank;
  VARVE_EXPECT_OK(CompareRules(held));

  Lists first = held;
  first[0][0].policy = ReplicaPolicy::kMustBeEqual;
  EXPECT_THAT(
      CompareRules(first),
      FailsWith(StatusCode::kInvalidArgument,
                "tensor bn: the rule for its replicas is kMustBeEqual on rank 0 and "
                "kTakeLowest on ranks 1, 2; CheckpointerOptions::replicas must be the same"));
  Lists last = held;
  last[2][1].policy = ReplicaPolicy::kKeepPerRank;
  EXPECT_THAT(CompareRules(last),
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor w: the rule for its replicas is kMustBeEqual on ranks 0, 1 and "
                        "kKeepPerRank on rank 2"));
}

TEST(ReplicaRulesTest, RanksThatDisagreeOnRoleOrMasterAreTold) {
  Lists held(3, {Held("b", ShardLayout::Whole({5})), Held("w", ShardLayout::Whole({4}))});
  held[1][1].derived_from = "master.w";  // ranks 0 and 2 have no part of the master
  VARVE_EXPECT_OK(CompareRules(held));
  held[2][1].derived_from = "master.v";
  held[0][0].role = TensorRole::kParameter;
  const Status status = CompareRules(held);
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                "tensor b: its role is parameter on rank 0 and other on ranks 1, "
                                "2; StateTensor::role must be the same on all ranks\n"));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                "tensor w: its master is master.w on rank 1 and master.v on rank "
                                "2; StateTensor::derived_from must be"));
}

TEST(ReplicaRulesTest, HoldForAllPartsOfATensor) {
  Lists held = {{Held("w", Rows(ShardLayout::Whole({4, 2}), 2, 0))},
                {Held("w", Rows(ShardLayout::Whole({4, 2}), 2, 1))}};
  VARVE_EXPECT_OK(CompareRules(held));
  held[1][0].policy = ReplicaPolicy::kKeepPerRank;
  EXPECT_THAT(CompareRules(held), FailsWith(StatusCode::kInvalidArgument, "tensor w"));
}

}  // namespace

}  // namespace varve::internal
