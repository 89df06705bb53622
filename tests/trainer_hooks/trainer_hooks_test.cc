// SPDX-License-Identifier: Apache-2.0
//
// The loop of trainer_hooks.h, with a trainer of one tensor whose state is a function of its steps.
#include "varve/trainer_hooks.h"

#include <csignal>

#include "tests/trainer_hooks/test_state.h"

namespace varve::internal::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes of `t` at step n: n in each of them.
struct ToyTrainer {
  ToyTrainer() {
    weights = state.Add({"w", DType::kU8, {1000}, std::vector<std::byte>(1000), {}});
    moments = state.Add({"m", DType::kU8, {1000}, std::vector<std::byte>(1000), {}},
                        TensorRole::kOptimizer);
  }
  void Step() {
    for (TestTensor* tensor : {weights, moments}) {
      for (std::byte& b : tensor->bytes) b = static_cast<std::byte>(static_cast<int>(b) + 1);
    }
  }
  TrainingState& training_state() { return state.state(); }
  int64_t step() { return training_state().trainer.global_step; }

  TestState state;
  TestTensor* weights;
  TestTensor* moments;
};

class TrainerHooksTest : public StoreTest {
 protected:
  CheckpointFlags Saving(uint64_t interval) { return {.save = path(), .save_interval = interval}; }
  CheckpointFlags Resuming(uint64_t interval) {
    CheckpointFlags flags = Saving(interval);
    flags.load = path();
    return flags;
  }

  // Trains up to step `last`, or until the hooks say stop. `before_step` runs before each step.
  Status Train(const CheckpointFlags& flags, int64_t last, ToyTrainer* trainer,
               const std::function<void(int64_t)>& before_step = {}) {
    store_.reset();
    HooksOptions options;
    options.log = [this](const std::string& line) { log_.push_back(line); };
    VARVE_ASSIGN_OR_RETURN(const auto hooks,
                           TrainerHooks::Start(flags, &trainer->training_state(), options));
    TrainingState& state = trainer->training_state();
    for (int64_t step = state.trainer.global_step + 1; step <= last; ++step) {
      if (before_step) before_step(step);
      VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());
      trainer->Step();
      state.trainer.global_step = step;
      VARVE_ASSIGN_OR_RETURN(const bool stop, hooks->AfterStep(state, step == last));
      if (stop) break;
    }
    reason_ = hooks->stop_reason();
    exit_code_ = hooks->exit_code();
    return hooks->Finish();
  }

  std::vector<uint64_t> Steps(const std::string& run = "main") {
    if (store_ == nullptr) Reopen();
    std::vector<uint64_t> steps;
    for (const CheckpointInfo& info : store_->ListCheckpoints(run).value()) {
      steps.push_back(info.id.step);
    }
    return steps;
  }

  std::vector<std::string> log_;
  StopReason reason_ = StopReason::kNone;
  int exit_code_ = 0;
};

TEST_F(TrainerHooksTest, EveryNthAndTheLastStepAreSaved) {
  ToyTrainer trainer;
  VARVE_ASSERT_OK(Train(Saving(5), 20, &trainer));
  EXPECT_THAT(Steps(), ElementsAre(5, 10, 15, 20));
  EXPECT_EQ(log_.size(), 4u) << "one line a save";
  ToyTrainer other;
  VARVE_ASSERT_OK(Train(Resuming(5), 22, &other));
  EXPECT_THAT(Steps(), ElementsAre(5, 10, 15, 20, 22));
  EXPECT_EQ(other.weights->bytes[0], std::byte{22});
}

// It never calls BeforeOptimizerStep. Its state is not changed here, so that nothing races.
TEST_F(TrainerHooksTest, AForgottenCallIsFoundAtTheNextStepAndNothingIsCommitted) {
  store_.reset();
  ToyTrainer trainer;
  TrainingState& state = trainer.training_state();
  {
    const auto hooks = TrainerHooks::Start(Saving(2), &state).value();
    for (int64_t step = 1; step <= 2; ++step) {
      state.trainer.global_step = step;
      EXPECT_FALSE(hooks->AfterStep(state, false).value());
    }
    state.trainer.global_step = 3;
    EXPECT_THAT(hooks->AfterStep(state, false),
                FailsWith(StatusCode::kFailedPrecondition, "step 2 is not saved"));
    EXPECT_THAT(hooks->Finish(),
                FailsWith(StatusCode::kFailedPrecondition, "BeforeOptimizerStep of TrainerHooks"));
  }
  Reopen();
  EXPECT_TRUE(store_->ListRuns().value().empty());
}

TEST_F(TrainerHooksTest, OneFlagAloneFailsBeforeTheFirstStep) {
  ToyTrainer trainer;
  CheckpointFlags flags;
  flags.save = path();
  EXPECT_THAT(Train(flags, 5, &trainer),
              FailsWith(StatusCode::kInvalidArgument, "--save-interval"));
  EXPECT_EQ(trainer.step(), 0);
}

TEST_F(TrainerHooksTest, KeepsTheNewestByNumberAndReclaims) {
  ToyTrainer trainer;
  trainer.training_state().trainer.global_step = 999'998;
  CheckpointFlags flags = Saving(1);
  flags.max_checkpoint_keep = 1;
  VARVE_ASSERT_OK(Train(flags, 1'000'001, &trainer));
  EXPECT_THAT(Steps(), ElementsAre(1'000'001));
  EXPECT_EQ(store_->Stats().value().pending_bytes, 0u);
}

TEST_F(TrainerHooksTest, TrainsWithoutSavingOrLoading) {
  ToyTrainer trainer;
  VARVE_ASSERT_OK(Train({}, 3, &trainer));
  EXPECT_EQ(trainer.step(), 3);
  EXPECT_EQ(reason_, StopReason::kLastStep);
}

TEST_F(TrainerHooksTest, NothingToLoadStartsAfreshUnlessTold) {
  ToyTrainer trainer;
  VARVE_ASSERT_OK(Train(Resuming(5), 5, &trainer));
  EXPECT_THAT(log_, Contains(HasSubstr("starting afresh")));
  CheckpointFlags flags;
  flags.load = path().string() + "-nowhere";
  flags.exit_on_missing_checkpoint = true;
  EXPECT_THAT(Train(flags, 5, &trainer), FailsWith(StatusCode::kNotFound, "nowhere"));
  flags.exit_on_missing_checkpoint = false;
  flags.finetune = true;
  EXPECT_THAT(Train(flags, 5, &trainer), FailsWith(StatusCode::kNotFound, "nowhere"));
  flags = Resuming(5);
  flags.ckpt_step = "4";
  EXPECT_THAT(Train(flags, 5, &trainer), FailsWith(StatusCode::kNotFound, "4"));
}

TEST_F(TrainerHooksTest, GoingBackForksTheLaterSteps) {
  ToyTrainer first;
  VARVE_ASSERT_OK(Train(Saving(10), 40, &first));
  ToyTrainer second;
  CheckpointFlags flags = Resuming(10);
  flags.ckpt_step = "20";
  VARVE_ASSERT_OK(Train(flags, 30, &second));
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30));
  EXPECT_THAT(Steps("main~1"), ElementsAre(30, 40));
}

TEST_F(TrainerHooksTest, AFreshStartDoesNotMixWithAnotherTraining) {
  ToyTrainer first;
  VARVE_ASSERT_OK(Train(Saving(10), 20, &first));
  ToyTrainer second;
  EXPECT_THAT(Train(Saving(5), 30, &second),
              FailsWith(StatusCode::kFailedPrecondition, "has steps up to 20"));
  EXPECT_EQ(second.step(), 0);
  CheckpointFlags flags = Saving(5);
  flags.run = "second";
  VARVE_ASSERT_OK(Train(flags, 10, &second));
  EXPECT_THAT(Steps("second"), ElementsAre(5, 10));
}

TEST_F(TrainerHooksTest, ARunGoesOnFromItselfOrBegins) {
  ToyTrainer first;
  VARVE_ASSERT_OK(Train(Saving(10), 20, &first));
  ToyTrainer second;
  CheckpointFlags flags = Resuming(10);
  flags.ckpt_step = "main@10";  // its own run, said in full
  VARVE_ASSERT_OK(Train(flags, 20, &second));
  EXPECT_THAT(Steps("main~1"), ElementsAre(20));
  // Loads from another run, and from another store, into a run that has steps.
  ToyTrainer third;
  flags.ckpt_step = "main~1@20";
  EXPECT_THAT(Train(flags, 30, &third),
              FailsWith(StatusCode::kFailedPrecondition, "has steps up to 20"));
  ToyTrainer fourth;
  flags = Resuming(10);
  flags.save = folder_.path() / "there";
  VARVE_ASSERT_OK(Train(flags, 30, &fourth));
  EXPECT_THAT(Train(flags, 40, &fourth),
              FailsWith(StatusCode::kFailedPrecondition, "has steps up to 30"));
}

TEST_F(TrainerHooksTest, ACheckpointWithoutTrainerStateIsOfItsStep) {
  ToyTrainer trainer;
  for (TestTensor* t : {trainer.weights, trainer.moments})
    std::ranges::fill(t->bytes, std::byte{7});
  VARVE_ASSERT_OK(Save(7, trainer.state.Snapshot()).status());
  ToyTrainer next;
  VARVE_ASSERT_OK(Train(Resuming(100), 9, &next));
  EXPECT_THAT(Steps(), ElementsAre(7, 9));
  EXPECT_EQ(next.weights->bytes[0], std::byte{9});
}

TEST_F(TrainerHooksTest, FinetuneTakesTheWeightsAndStartsAtZero) {
  ToyTrainer first;
  VARVE_ASSERT_OK(Train(Saving(10), 10, &first));
  ToyTrainer second;
  CheckpointFlags flags = Resuming(5);
  flags.finetune = true;
  flags.run = "tuned";
  flags.ckpt_step = "main@10";
  VARVE_ASSERT_OK(Train(flags, 5, &second));
  EXPECT_EQ(second.weights->bytes[0], std::byte{15});
  EXPECT_EQ(second.moments->bytes[0], std::byte{5});
  EXPECT_THAT(Steps("tuned"), ElementsAre(5));
}

TEST_F(TrainerHooksTest, TheOptimizerIsOptionalBothWays) {
  ToyTrainer first;
  CheckpointFlags flags = Saving(10);
  flags.save_optim = false;
  first.training_state().items = {{.name = "loader", .value = {std::byte{7}}}};
  first.training_state().topology = Topology{};
  first.training_state().metrics = {{"loss", 0.5}};
  first.training_state().tags = {"small"};
  VARVE_ASSERT_OK(Train(flags, 10, &first));
  Reopen();
  const auto saved = store_->OpenCheckpoint("main", 10).value();
  EXPECT_THAT(saved->Find("m"), FailsWith(StatusCode::kNotFound, "m"));
  EXPECT_THAT(saved->ListBytes().value(), ElementsAre("loader"));
  EXPECT_EQ(saved->ReadTrainerProgress().value()->global_step, 10);
  EXPECT_TRUE(saved->ReadTopology().value().has_value());
  EXPECT_EQ(saved->info().metrics.at("loss"), 0.5);
  EXPECT_THAT(saved->info().tags, ElementsAre("small"));
  ToyTrainer second;
  EXPECT_THAT(Train(Resuming(10), 20, &second), FailsWith(StatusCode::kInvalidArgument, "m"));
  flags = Resuming(10);
  flags.load_optim = false;
  VARVE_ASSERT_OK(Train(flags, 12, &second));
  EXPECT_EQ(second.weights->bytes[0], std::byte{12});
  EXPECT_EQ(second.moments->bytes[0], std::byte{2});
}

TEST_F(TrainerHooksTest, StopsAtAnIntervalAndAfterATime) {
  ToyTrainer trainer;
  CheckpointFlags flags = Saving(100);
  flags.exit_interval = 7;
  VARVE_ASSERT_OK(Train(flags, 50, &trainer));
  EXPECT_EQ(reason_, StopReason::kExitInterval);
  EXPECT_THAT(Steps(), ElementsAre(7));
  flags = Resuming(100);
  flags.exit_duration_in_mins = 1e-9;
  VARVE_ASSERT_OK(Train(flags, 50, &trainer));
  EXPECT_EQ(reason_, StopReason::kExitDuration);
  EXPECT_THAT(Steps(), ElementsAre(7, 8));
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(TrainerHooksTest, ASignalEndsTheTrainingWithASave) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Reset({});
    ToyTrainer trainer;
    CheckpointFlags flags = Saving(100);
    flags.exit_deadline_in_secs = 30;
    VARVE_ASSERT_OK(Train(flags, 50, &trainer, [&](int64_t step) {
      if (step == 12) std::raise(signal);
    }));
    EXPECT_EQ(reason_, StopReason::kSignal);
    EXPECT_EQ(exit_code_, kPreemptedExitCode);
    EXPECT_THAT(Steps(), ElementsAre(12));
    ToyTrainer next;
    VARVE_ASSERT_OK(Train(Resuming(100), 13, &next));
    EXPECT_EQ(next.weights->bytes[0], std::byte{13});
  }
}

TEST_F(TrainerHooksTest, WillSaveSaysWhatAfterStepDoes) {
  store_.reset();
  ToyTrainer trainer;
  CheckpointFlags flags = Saving(3);
  flags.exit_interval = 8;
  const auto hooks = TrainerHooks::Start(flags, &trainer.training_state()).value();
  std::vector<int64_t> said;
  for (int64_t step = 1; step <= 20; ++step) {
    const bool early = hooks->WillSave(step).value();
    VARVE_ASSERT_OK(hooks->BeforeOptimizerStep());
    trainer.Step();
    EXPECT_EQ(hooks->WillSave(step).value(), early) << "asking does not change it";
    if (early) said.push_back(step);
    trainer.training_state().trainer.global_step = step;
    if (hooks->AfterStep(trainer.training_state(), false).value()) break;
    EXPECT_FALSE(hooks->WillSave(step).value()) << "it is saved";
  }
  EXPECT_EQ(hooks->stop_reason(), StopReason::kExitInterval);
  VARVE_ASSERT_OK(hooks->Finish());
  EXPECT_THAT(said, ElementsAre(3, 6, 8));
  EXPECT_THAT(Steps(), ElementsAre(3, 6, 8));
}

TEST_F(TrainerHooksTest, ASignalAfterWillSaveTakesEffectAtTheNextStep) {
  store_.reset();
  ToyTrainer trainer;
  TrainingState& state = trainer.training_state();
  const auto hooks = TrainerHooks::Start(Saving(100), &state).value();
  EXPECT_FALSE(hooks->WillSave(1).value());
  std::raise(SIGTERM);
  state.trainer.global_step = 1;
  EXPECT_FALSE(hooks->AfterStep(state, false).value());
  VARVE_ASSERT_OK(hooks->BeforeOptimizerStep());
  EXPECT_TRUE(hooks->WillSave(2).value());
  state.trainer.global_step = 2;
  EXPECT_TRUE(hooks->AfterStep(state, false).value());
  EXPECT_EQ(hooks->stop_reason(), StopReason::kSignal);
  VARVE_ASSERT_OK(hooks->Finish());
  EXPECT_THAT(Steps(), ElementsAre(2));
}

TEST_F(TrainerHooksTest, WillSaveKnowsTheLastStepAndThatNothingIsSaved) {
  store_.reset();
  ToyTrainer trainer;
  TrainingState& state = trainer.training_state();
  {
    const auto hooks = TrainerHooks::Start(Saving(100), &state).value();
    EXPECT_TRUE(hooks->WillSave(1, /*is_last=*/true).value());
    EXPECT_FALSE(hooks->WillSave(1).value());
    // Whatever was said, the last step is saved.
    state.trainer.global_step = 1;
    EXPECT_TRUE(hooks->AfterStep(state, true).value());
    EXPECT_THAT(hooks->WillSave(-1), FailsWith(StatusCode::kInvalidArgument, "global_step is -1"));
    VARVE_ASSERT_OK(hooks->Finish());
  }
  EXPECT_THAT(Steps(), ElementsAre(1));
  const auto hooks = TrainerHooks::Start({}, &state).value();
  EXPECT_FALSE(hooks->WillSave(2, /*is_last=*/true).value());
}

TEST_F(TrainerHooksTest, VariablesOfItemsAreFilledAtTheStartAndReadWhenASaveIsDue) {
  ToyTrainer first;
  int64_t seen = 0;
  first.training_state().items = {ItemOf("seen", &seen)};
  VARVE_ASSERT_OK(Train(Saving(5), 12, &first, [&](int64_t step) { seen = 100 + step; }));
  ToyTrainer second;
  int64_t restored = 0;
  second.training_state().items = {ItemOf("seen", &restored)};
  CheckpointFlags flags = Resuming(5);
  flags.ckpt_step = "10";
  VARVE_ASSERT_OK(Train(flags, 11, &second, [&](int64_t step) {
    if (step == 11) {
      EXPECT_EQ(restored, 110);
    }
  }));
}

TEST_F(TrainerHooksTest, LoadsFromAnotherStore) {
  ToyTrainer first;
  VARVE_ASSERT_OK(Train(Saving(10), 20, &first));
  const auto there = folder_.path() / "there";
  CheckpointFlags flags = Resuming(10);
  flags.save = there;
  flags.ckpt_step = "10";
  ToyTrainer second;
  VARVE_ASSERT_OK(Train(flags, 15, &second));
  EXPECT_EQ(second.weights->bytes[0], std::byte{15});
  const auto store = Store::OpenForReading(there).value();
  EXPECT_EQ(store->LatestStep("main").value(), 15u);
  EXPECT_THAT(store->Check({.read_data = true}).value().errors, ::testing::IsEmpty());
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
}

}  // namespace
}  // namespace varve::internal::testing
