// SPDX-License-Identifier: Apache-2.0
//
// Trainers of several ranks, which are threads here, each with its hooks: one decision at each
// step, and one outcome of each call.
#include <csignal>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/trainer_hooks/state_fixture.h"
#include "varve/group.h"
#include "varve/trainer_hooks.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<int64_t> kRanksShape = {12, 10};
constexpr int kLayers = 6;

// Rows of a matrix and, as a stage of a pipeline, some whole layers. All values are the step.
struct ToyRank {
  explicit ToyRank(int parts = 1, int rank = 0) {
    ShardLayout rows = ShardLayout::Whole(kRanksShape);
    rows.axes[0] = {{.begin = rank * 12 / parts, .length = 12 / parts}};
    AddZeros("w", rows);
    for (int layer = rank; layer < kLayers; layer += parts) {
      AddZeros("h." + std::to_string(layer), ShardLayout::Whole({7}));
    }
    trainer.state.topology =
        Topology{.tp = static_cast<uint32_t>(parts), .world_size = static_cast<uint32_t>(parts)};
  }
  void AddZeros(const std::string& name, const ShardLayout& layout) {
    trainer.Add({.name = name, .shape = layout.LocalShape(), .layout = layout},
                std::vector<std::byte>(static_cast<size_t>(layout.NumLocal()) * sizeof(float)));
  }
  void Step() {
    for (const StateTensor& tensor : state().tensors) {
      auto* values = static_cast<float*>(tensor.data);
      const auto size = static_cast<size_t>(tensor.layout->NumLocal());
      for (float& value : std::span(values, size)) ++value;
    }
    ++state().trainer.global_step;
  }
  TrainingState& state() { return trainer.state; }
  std::vector<float> Values() {
    std::vector<float> all;
    for (const StateTensor& tensor : state().tensors) {
      const std::vector<float> values = trainer.Values<float>(tensor.name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  TestTrainer trainer;
};

// How the training of a rank ended.
struct Ending {
  Status status;
  StopReason reason = StopReason::kNone;
  int exit_code = 0;
  int64_t step = 0;
  std::vector<float> values;
};

class TrainerHooksRanksTest : public ::testing::Test {
 protected:
  CheckpointFlags Saving(uint64_t interval) const {
    return {.save = root(), .save_interval = interval};
  }
  CheckpointFlags Resuming(uint64_t interval) const {
    CheckpointFlags flags = Saving(interval);
    flags.load = root();
    return flags;
  }
  std::string root() const { return folder_.path() / "root"; }

  using BeforeStep = std::function<void(int rank, ToyRank* toy)>;

  static Status TrainOne(const CheckpointFlags& flags, int64_t last, RankGroup* ranks,
                         const BeforeStep& before_step, ToyRank* toy, Ending* ending) {
    HooksOptions options;
    options.ranks = ranks;
    options.log = [](const std::string&) {};
    options.load.rank_states = RankStates::kDrop;
    options.load.exchange = true;
    VARVE_ASSIGN_OR_RETURN(const auto hooks, TrainerHooks::Start(flags, &toy->state(), options));
    for (bool stops = false; !stops;) {
      VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());
      toy->Step();
      if (before_step) before_step(ranks == nullptr ? 0 : ranks->rank(), toy);
      VARVE_ASSIGN_OR_RETURN(
          stops, hooks->AfterStep(toy->state(), toy->state().trainer.global_step == last));
    }
    ending->reason = hooks->stop_reason();
    ending->exit_code = hooks->exit_code();
    return hooks->Finish();
  }

  // Trains up to step `last`, or until the hooks say stop. `flags_of` may differ from rank to rank.
  static std::vector<Ending> TrainRanks(int size,
                                        const std::function<CheckpointFlags(int)>& flags_of,
                                        int64_t last, const BeforeStep& before_step = {}) {
    std::vector<Ending> endings(static_cast<size_t>(size));
    auto groups = ThreadRanks(size, std::chrono::seconds(60));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<size_t>(rank);
        ToyRank toy(size, rank);
        Ending& ending = endings[at];
        ending.status =
            TrainOne(flags_of(rank), last, groups[at].get(), before_step, &toy, &ending);
        ending.step = toy.state().trainer.global_step;
        if (ending.status.ok()) ending.values = toy.Values();
      });
    }
    threads.clear();
    return endings;
  }
  static std::vector<Ending> TrainRanks(int size, const CheckpointFlags& flags, int64_t last,
                                        const BeforeStep& before_step = {}) {
    return TrainRanks(
        size, [&](int) { return flags; }, last, before_step);
  }

  static Ending TrainAlone(const CheckpointFlags& flags, int64_t last) {
    Ending ending;
    ToyRank toy;
    ending.status = TrainOne(flags, last, nullptr, {}, &toy, &ending);
    ending.step = toy.state().trainer.global_step;
    ending.values = toy.Values();
    return ending;
  }

  // All ranks have ended so, and hold what is right for their step.
  static void ExpectEndings(const std::vector<Ending>& endings, StopReason reason, int64_t step) {
    for (const Ending& ending : endings) {
      VARVE_EXPECT_OK(ending.status);
      EXPECT_EQ(ending.reason, reason);
      EXPECT_EQ(ending.step, step);
      EXPECT_THAT(ending.values, Each(static_cast<float>(step)));
    }
  }
  static void ExpectFailures(const std::vector<Ending>& endings, StatusCode code,
                             const std::string& text) {
    for (const Ending& ending : endings) EXPECT_THAT(ending.status, FailsWith(code, text));
  }

  std::vector<uint64_t> Steps(const std::string& path) const {
    const auto store = Store::OpenForReading(path).value();
    EXPECT_THAT(store->Check({.read_data = true}).value().errors, IsEmpty());
    std::vector<uint64_t> steps;
    for (const CheckpointInfo& info : store->ListCheckpoints("main").value()) {
      steps.push_back(info.id.step);
    }
    return steps;
  }
  std::vector<uint64_t> Steps() const { return Steps(root()); }

  TempFolder folder_;
};

TEST_F(TrainerHooksRanksTest, OtherRanksGoOnWhereTheseStopped) {
  ExpectEndings(TrainRanks(4, Saving(2), 5), StopReason::kLastStep, 5);
  EXPECT_TRUE(Group::IsRoot(root()));
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 5));
  ExpectEndings(TrainRanks(3, Resuming(2), 7), StopReason::kLastStep, 7);
  ExpectEndings(TrainRanks(2, Resuming(2), 8), StopReason::kLastStep, 8);
  ExpectEndings({TrainAlone(Resuming(2), 9)}, StopReason::kLastStep, 9);
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 5, 6, 7, 8, 9));
}

TEST_F(TrainerHooksRanksTest, RanksLoadWhatOneRankHasSavedAndTheReverse) {
  const std::string single = folder_.path() / "single", back = folder_.path() / "back";
  ExpectEndings({TrainAlone({.save = single, .save_interval = 3}, 3)}, StopReason::kLastStep, 3);
  EXPECT_FALSE(Group::IsRoot(single));
  CheckpointFlags flags = Saving(10);
  flags.load = single;
  ExpectEndings(TrainRanks(3, flags, 5), StopReason::kLastStep, 5);
  ExpectEndings({TrainAlone({.save = back, .save_interval = 10, .load = root()}, 6)},
                StopReason::kLastStep, 6);
  EXPECT_FALSE(Group::IsRoot(back));
  EXPECT_THAT(Steps(), ElementsAre(5));
  EXPECT_THAT(Steps(back), ElementsAre(6));
  // A store of one rank does not become a group's.
  ExpectFailures(TrainRanks(2, CheckpointFlags{.save = single, .save_interval = 1}, 5),
                 StatusCode::kFailedPrecondition, single);
}

TEST_F(TrainerHooksRanksTest, NothingToLoadStartsAllAfresh) {
  ExpectEndings(TrainRanks(2, Resuming(3), 3), StopReason::kLastStep, 3);
  CheckpointFlags flags = Resuming(3);
  flags.ckpt_step = "2";
  ExpectFailures(TrainRanks(2, flags, 5), StatusCode::kNotFound, "step 2");
  flags = Saving(3);
  flags.load = folder_.path() / "nowhere";
  flags.exit_on_missing_checkpoint = true;
  flags.run = "other";
  ExpectFailures(TrainRanks(2, flags, 5), StatusCode::kNotFound, "rank 0: ");
}

// Otherwise some ranks would start anew while others go on.
TEST_F(TrainerHooksRanksTest, WhatOneRankAloneDoesNotFindFailsAll) {
  const std::string single = folder_.path() / "single";
  ExpectEndings({TrainAlone({.save = single, .save_interval = 3}, 3)}, StopReason::kLastStep, 3);
  for (const int blind : {0, 1, 2}) {
    const auto flags_of = [&](int rank) {
      CheckpointFlags flags = Saving(3);
      flags.load = rank == blind ? (folder_.path() / "nowhere").string() : single;
      return flags;
    };
    ExpectFailures(TrainRanks(3, flags_of, 5), StatusCode::kNotFound,
                   "rank " + std::to_string(blind) + ": ");
  }
  EXPECT_THAT(Store::OpenForReading(root()).value()->ListRuns().value(), IsEmpty());
}

// A folder may be mounted elsewhere on another machine.
TEST_F(TrainerHooksRanksTest, WhetherTheyGoOnIsDecidedOnce) {
  ExpectEndings(TrainRanks(2, Saving(2), 2), StopReason::kLastStep, 2);
  for (const int other : {0, 1}) {
    const int64_t last = 3 + other;
    const auto copy = folder_.path() / ("copy" + std::to_string(other));
    std::filesystem::copy(root(), copy, std::filesystem::copy_options::recursive);
    const auto flags_of = [&](int rank) {
      CheckpointFlags flags = Resuming(2);
      if (rank == other) flags.load = copy;
      return flags;
    };
    const auto endings = TrainRanks(2, flags_of, last);
    if (other == 0) {  // rank 0 says that it is another store, and --save has steps
      ExpectFailures(endings, StatusCode::kFailedPrecondition, "has steps up to 2");
    } else {
      ExpectEndings(endings, StopReason::kLastStep, last);
    }
  }
  EXPECT_THAT(Steps(), ElementsAre(2, 4));
}

TEST_F(TrainerHooksRanksTest, FlagsThatAllGoByMustBeTheSame) {
  const auto differ = [&](const std::function<void(CheckpointFlags*)>& change,
                          const std::string& text) {
    const auto flags_of = [&](int rank) {
      CheckpointFlags flags = Resuming(1);
      if (rank == 2) change(&flags);
      return flags;
    };
    ExpectFailures(TrainRanks(3, flags_of, 2), StatusCode::kInvalidArgument, text);
  };
  differ([](CheckpointFlags* flags) { flags->run = "other"; },
         "flags of ranks differ: rank 0 has --run main, rank 2 has --run other");
  differ([](CheckpointFlags* flags) { flags->finetune = true; },
         "rank 0 has --finetune not given, rank 2 has --finetune given");
  differ([](CheckpointFlags* flags) { flags->load.clear(); }, "rank 2 has --load not given");
  differ([](CheckpointFlags* flags) { flags->ckpt_step = "1"; }, "rank 2 has --ckpt-step given");
  differ([](CheckpointFlags* flags) { flags->exit_on_missing_checkpoint = true; },
         "rank 2 has --exit-on-missing-checkpoint given");
  differ([](CheckpointFlags* flags) { flags->async_save = false; }, "--no-async-save");
  differ([](CheckpointFlags* flags) { flags->strictness = Strictness::kIgnoreAll; },
         "rank 2 has --dist-ckpt-strictness ignore_all");
}

// It fails behind the back of the steps, at its own time on each rank, and ends the training of all
// at one step.
TEST_F(TrainerHooksRanksTest, ASaveThatFailsOnOneRankEndsAllAtOneStep) {
  const auto blocks = [&](int rank, ToyRank* toy) {
    if (rank != 0 || toy->state().trainer.global_step != 4) return;
    for (const auto& member : std::filesystem::directory_iterator(root() + "/members")) {
      // By one rename, as the save before may still write there.
      std::filesystem::rename(member.path() / "incoming", root() + "/aside");
      std::ofstream(member.path() / "incoming") << "in the way";
      return;
    }
  };
  const auto endings = TrainRanks(3, Saving(2), 1000000, blocks);
  for (const Ending& ending : endings) {
    EXPECT_THAT(ending.status, FailsWith(StatusCode::kIOError, "incoming"));
    EXPECT_EQ(ending.status.ToString(), endings[0].status.ToString());
    EXPECT_EQ(ending.step, endings[0].step);
  }
}

TEST_F(TrainerHooksRanksTest, GoingBackForksTheLaterSteps) {
  ExpectEndings(TrainRanks(2, Saving(1), 4), StopReason::kLastStep, 4);
  CheckpointFlags flags = Resuming(1);
  flags.ckpt_step = "2";
  ExpectEndings(TrainRanks(3, flags, 3), StopReason::kLastStep, 3);
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
}

TEST_F(TrainerHooksRanksTest, RankZeroDecidesWhenToSaveAndToStop) {
  const auto flags_of = [&](int rank) {
    CheckpointFlags flags = Saving(rank == 0 ? 3 : 2);
    flags.exit_interval = rank == 0 ? 7 : 5;
    flags.exit_duration_in_mins = rank == 0 ? 1e9 : 1e-9;
    return flags;
  };
  ExpectEndings(TrainRanks(3, flags_of, 50), StopReason::kExitInterval, 7);
  EXPECT_THAT(Steps(), ElementsAre(3, 6, 7));
}

TEST_F(TrainerHooksRanksTest, ASignalStopsAllAtOneStepWithASave) {
  const auto endings = TrainRanks(3, Saving(100), 50, [](int rank, ToyRank* toy) {
    if (rank == 1 && toy->state().trainer.global_step == 12) std::raise(SIGUSR1);
  });
  ExpectEndings(endings, StopReason::kSignal, 12);
  for (const Ending& ending : endings) EXPECT_EQ(ending.exit_code, kPreemptedExitCode);
  EXPECT_THAT(Steps(), ElementsAre(12));
}

TEST_F(TrainerHooksRanksTest, WhatFailsOnOneRankFailsOnAll) {
  const auto flags_of = [&](int rank) {
    CheckpointFlags flags = Saving(3);
    if (rank == 1) flags.save_interval.reset();
    return flags;
  };
  ExpectFailures(TrainRanks(3, flags_of, 5), StatusCode::kInvalidArgument, "rank 1: ");
  const auto loses_memory = [](int rank, ToyRank* toy) {
    if (rank == 2) toy->state().tensors[0].data = nullptr;
  };
  ExpectFailures(TrainRanks(3, Saving(1), 1, loses_memory), StatusCode::kInvalidArgument,
                 "rank 2: tensor w: data is null");
}

TEST_F(TrainerHooksRanksTest, RanksAtDifferentStepsAreFound) {
  const auto skips = [](int rank, ToyRank* toy) {
    if (rank == 1) ++toy->state().trainer.global_step;
  };
  ExpectFailures(TrainRanks(2, Saving(5), 5, skips), StatusCode::kFailedPrecondition,
                 "global_step is 1 on one rank and 2 on another");
}

TEST_F(TrainerHooksRanksTest, UnexpectedIsWhatNoRankHas) {
  const auto adds = [](int rank, ToyRank* toy) {
    if (rank == 1) toy->AddZeros("h.extra", ShardLayout::Whole({2}));
  };
  for (const Ending& ending : TrainRanks(2, Saving(1), 1, adds)) VARVE_EXPECT_OK(ending.status);
  ExpectFailures(TrainRanks(2, Resuming(1), 2), StatusCode::kInvalidArgument,
                 "tensor h.extra: unexpected");
  CheckpointFlags flags = Resuming(1);
  flags.strictness = Strictness::kLogUnexpected;
  ExpectEndings(TrainRanks(2, flags, 2), StopReason::kLastStep, 2);
}

TEST_F(TrainerHooksRanksTest, TrainsWithoutSaving) {
  ExpectEndings(TrainRanks(2, CheckpointFlags{}, 3), StopReason::kLastStep, 3);
}

TEST_F(TrainerHooksRanksTest, WillSaveIsOneAnswerOnAllRanks) {
  auto groups = ThreadRanks(3, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ToyRank toy(3, rank);
      HooksOptions options;
      options.ranks = groups[static_cast<size_t>(rank)].get();
      options.log = [](const std::string&) {};
      const auto hooks = TrainerHooks::Start(Saving(2), &toy.state(), options).value();
      std::vector<bool> said;
      for (int64_t step = 1; step <= 5; ++step) {
        VARVE_ASSERT_OK(hooks->BeforeOptimizerStep());
        toy.Step();
        said.push_back(hooks->WillSave(step, step == 5).value());
        EXPECT_EQ(hooks->AfterStep(toy.state(), step == 5).value(), step == 5);
      }
      EXPECT_THAT(said, ElementsAre(false, true, false, true, true));
      EXPECT_THAT(hooks->WillSave(rank == 1 ? 7 : 6),
                  FailsWith(StatusCode::kFailedPrecondition, "global_step is 6 on one rank and 7"));
      VARVE_EXPECT_OK(hooks->Finish());
    });
  }
  threads.clear();
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 5));
}

}  // namespace
}  // namespace varve::internal::testing
