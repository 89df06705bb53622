// SPDX-License-Identifier: Apache-2.0
//
// The trainer on several ranks, which are threads here. spawn_test.py runs the program with
// processes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "gpt/trainer.h"
#include "tests/examples/gpt/trainer_fixture.h"

namespace gpt {
namespace {

constexpr int kSteps = 6;

struct Case {
  std::string name;
  Topology topology;
};

TrainerOptions OptionsOf(Precision precision) {
  TrainerOptions options = SmallOptions();
  options.precision = precision;
  options.model.num_layers = 3;  // that two stages cannot share equally
  return options;
}

// Runs `body` with a trainer on each rank.
void OnRanks(const Topology& topology, const TrainerOptions& options,
             const std::function<void(int rank, Trainer*)>& body) {
  std::vector<std::thread> threads;
  for (auto& group : varve::ThreadRanks(topology.size(), std::chrono::minutes(4))) {
    threads.emplace_back([&, world = std::move(group)]() mutable {
      const int rank = world->rank();
      const auto ranks = Ranks::Make(std::move(world), topology);
      ASSERT_TRUE(ranks.ok()) << ranks.status().ToString();
      Trainer trainer(options, SmallText(), ranks->get());
      body(rank, &trainer);
      EXPECT_TRUE(trainer.status().ok()) << trainer.status().ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Outcome {
  std::vector<float> losses, norms;
  std::vector<std::vector<std::string>> states;  // by rank
  bool operator==(const Outcome&) const = default;
};

Outcome TrainOnRanks(const Topology& topology, Precision precision) {
  Outcome outcome;
  std::vector<std::vector<float>> losses(topology.size()), norms(topology.size());
  outcome.states.resize(topology.size());
  OnRanks(topology, OptionsOf(precision), [&](int rank, Trainer* trainer) {
    for (int i = 0; i < kSteps; ++i) {
      const StepReport report = Step(trainer);
      losses[rank].push_back(report.loss);
      norms[rank].push_back(report.grad_norm);
    }
    outcome.states[rank] = StateBytes(trainer);
  });
  for (int r = 1; r < topology.size(); ++r) {
    EXPECT_EQ(losses[r], losses[0]) << "rank " << r;
    EXPECT_EQ(norms[r], norms[0]) << "rank " << r;
  }
  outcome.losses = losses[0];
  outcome.norms = norms[0];
  return outcome;
}

void ExpectClose(const std::vector<float>& values, const std::vector<float>& expected,
                 float tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i + 1;
  }
}

class GptRanksTest : public ::testing::TestWithParam<Case> {};

TEST_P(GptRanksTest, LossesAreThoseOfOneRank) {
  const Outcome alone = TrainOnRanks({}, Precision::kFp32);
  const Outcome shared = TrainOnRanks(GetParam().topology, Precision::kFp32);
  ExpectClose(shared.losses, alone.losses, 1e-4f);
  ExpectClose(shared.norms, alone.norms, 1e-3f);
}

TEST_P(GptRanksTest, Bf16LossesAreAboutThoseOfOneRank) {
  const Outcome alone = TrainOnRanks({}, Precision::kBf16);
  const Outcome shared = TrainOnRanks(GetParam().topology, Precision::kBf16);
  ExpectClose(shared.losses, alone.losses, 2e-3f);
}

TEST_P(GptRanksTest, SameRanksSameBits) {
  const Topology& topology = GetParam().topology;
  EXPECT_EQ(TrainOnRanks(topology, Precision::kBf16), TrainOnRanks(topology, Precision::kBf16));
}

// Calls body(part index, whole index) for each element of a shard.
void ForEachElement(const TensorShard& shard, const std::function<void(int64_t, int64_t)>& body) {
  const Param& param = shard.param;
  int64_t i = 0;
  const std::vector<Range> one{{0, 1}};
  const bool is_matrix = param.axes.size() == 2;
  for (const Range& rows : param.axes[0]) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Range& columns : is_matrix ? param.axes[1] : one) {
        for (int64_t column = columns.begin; column < columns.end; ++column, ++i) {
          if (i < shard.flat.begin || i >= shard.flat.end) continue;
          body(i - shard.flat.begin, is_matrix ? row * param.global_shape[1] + column : row);
        }
      }
    }
  }
}

using Elements = std::map<std::string, std::map<int64_t, std::string>>;  // by name and index

// Adds a rank's state to the whole. Elements that two ranks hold must be equal.
void Assemble(Trainer* trainer, Elements* whole) {
  for (const varve::StateTensor& tensor : trainer->state()->tensors) {
    const TensorShard* shard = trainer->ShardOf(tensor.name);
    ASSERT_NE(shard, nullptr) << tensor.name;
    const uint64_t bytes = varve::NumBytes(tensor.dtype, tensor.shape).value();
    const uint64_t element = varve::NumBytes(tensor.dtype, std::vector<int64_t>{1}).value();
    ASSERT_EQ(bytes, shard->flat.size() * element) << tensor.name;
    const auto* data = static_cast<const char*>(tensor.data);
    auto& elements = (*whole)[tensor.name];
    ForEachElement(*shard, [&](int64_t i, int64_t global) {
      const std::string value(data + i * element, element);
      const auto [it, is_new] = elements.emplace(global, value);
      EXPECT_TRUE(is_new || it->second == value) << tensor.name << " element " << global;
    });
  }
}

// By their shards the ranks hold all of the state between them, and at the start that of one rank.
TEST_P(GptRanksTest, ShardsMakeTheWholeState) {
  const Topology& topology = GetParam().topology;
  for (const int steps : {0, 2}) {
    Trainer alone(OptionsOf(Precision::kBf16), SmallText());
    TrainTo(steps, &alone);
    Elements expected;
    Assemble(&alone, &expected);

    Elements whole;
    std::mutex mutex;
    OnRanks(topology, OptionsOf(Precision::kBf16), [&](int, Trainer* trainer) {
      TrainTo(steps, trainer);
      const std::lock_guard lock(mutex);
      Assemble(trainer, &whole);
    });
    ASSERT_EQ(whole.size(), expected.size());
    for (const auto& [name, elements] : expected) {
      EXPECT_EQ(whole[name].size(), elements.size()) << name;
      EXPECT_TRUE(steps > 0 || whole[name] == elements) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Topologies, GptRanksTest,
    ::testing::Values(Case{"Tp2", {.tp = 2}}, Case{"Tp4", {.tp = 4}}, Case{"Pp2", {.pp = 2}},
                      Case{"Pp3", {.pp = 3}}, Case{"Dp2", {.dp = 2}}, Case{"Dp4", {.dp = 4}},
                      Case{"ZeroDp2", {.dp = 2, .zero = true}},
                      Case{"ZeroDp4", {.dp = 4, .zero = true}},
                      Case{"Tp2Pp2Dp2", {.tp = 2, .pp = 2, .dp = 2}},
                      Case{"Tp2Pp2ZeroDp2", {.tp = 2, .pp = 2, .dp = 2, .zero = true}}),
    [](const auto& test) { return test.param.name; });

TEST(GptTopologyTest, RanksAreNumberedAsInMegatron) {
  const Topology topology{.tp = 2, .pp = 3, .dp = 4};
  int rank = 0;
  for (int pp = 0; pp < 3; ++pp) {
    for (int dp = 0; dp < 4; ++dp) {
      for (int tp = 0; tp < 2; ++tp, ++rank) {
        const Position at = Position::Of(topology, rank);
        EXPECT_EQ(at.tp_rank, tp);
        EXPECT_EQ(at.pp_rank, pp);
        EXPECT_EQ(at.dp_rank, dp);
      }
    }
  }
}

TEST(GptTopologyTest, WhatCannotBeSharedIsAnError) {
  const TrainerOptions options = SmallOptions();
  EXPECT_TRUE(ValidateOptions(options, SmallText(), {.tp = 4, .pp = 2}).ok());
  EXPECT_EQ(ValidateOptions(options, SmallText(), {.tp = 3}).message(),
            "3 tensor parallel ranks cannot share 4 attention heads and 256 words equally");
  EXPECT_EQ(ValidateOptions(options, SmallText(), {.pp = 3}).message(),
            "3 stages cannot share 2 layers");
  const auto ranks = Ranks::Make(std::move(varve::ThreadRanks(1)[0]), {.tp = 2});
  EXPECT_EQ(ranks.status().message(),
            "2 tensor parallel x 1 pipeline parallel x 1 data parallel ranks are not 1");
}

// A rank that leaves in the middle ends the training of the others with an error, not with a hang.
TEST(GptTopologyTest, RankThatLeavesIsNamed) {
  const Topology topology{.tp = 2};
  std::vector<std::thread> threads;
  for (auto& group : varve::ThreadRanks(2)) {
    threads.emplace_back([&, world = std::move(group)]() mutable {
      const int rank = world->rank();
      const auto ranks = Ranks::Make(std::move(world), topology);
      ASSERT_TRUE(ranks.ok());
      Trainer trainer(OptionsOf(Precision::kFp32), SmallText(), ranks->get());
      TrainTo(1, &trainer);
      if (rank == 1) return;
      TrainTo(3, &trainer);
      EXPECT_EQ(trainer.status().code(), varve::StatusCode::kUnavailable);
      EXPECT_NE(trainer.status().message().find("rank 1 left the group"), std::string::npos);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gpt
