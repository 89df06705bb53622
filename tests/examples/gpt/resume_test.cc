// SPDX-License-Identifier: Apache-2.0
//
// Through the hooks, with saves in the background: a trainer that is saved and loaded goes on bit
// for bit. Names begin with the row of docs/requirements.md.
#include <gtest/gtest.h>

#include <memory>

#include "tests/examples/gpt/trainer_fixture.h"
#include "tests/support/temp_folder.h"
#include "varve/store.h"
#include "varve/trainer_hooks.h"

namespace gpt {
namespace {

// A trainer that goes on from what its store holds.
class Job {
 public:
  Job(const TrainerOptions& options, const varve::CheckpointFlags& flags)
      : trainer(options, SmallText()) {
    varve::HooksOptions quiet;
    quiet.log = [](const std::string&) {};
    auto started = varve::TrainerHooks::Start(flags, trainer.state(), quiet);
    status = started.status();
    if (!status.ok()) return;
    hooks = std::move(started).value();
    if (hooks->loaded().has_value()) status = trainer.Resume({});
  }

  // To a step at which it stops. The losses on the way.
  std::vector<float> TrainTo(int64_t last, int batch_size = 4) {
    std::vector<float> losses;
    for (bool stops = false; !stops;) {
      trainer.ForwardBackward(batch_size);
      EXPECT_TRUE(hooks->BeforeOptimizerStep().ok());
      losses.push_back(trainer.Update().loss);
      const auto after = hooks->AfterStep(*trainer.state(), trainer.step() == last);
      EXPECT_TRUE(after.ok()) << after.status().ToString();
      stops = !after.ok() || *after;
    }
    const varve::Status finished = hooks->Finish();
    EXPECT_TRUE(finished.ok()) << finished.ToString();
    return losses;
  }

  Trainer trainer;
  std::unique_ptr<varve::TrainerHooks> hooks;
  varve::Status status;
};

class ResumeTest : public testing::Test {
 protected:
  void TearDown() override {
    const auto store = varve::Store::OpenForReading(path_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto report = (*store)->Check({.read_data = true, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (const std::string& error : report->errors) ADD_FAILURE() << error;
  }

  varve::CheckpointFlags Flags(uint64_t interval = 5) const {
    return {.save = path_, .save_interval = interval, .load = path_};
  }
  std::unique_ptr<Job> Start(const TrainerOptions& options, const varve::CheckpointFlags& flags) {
    auto job = std::make_unique<Job>(options, flags);
    EXPECT_TRUE(job->status.ok()) << job->status.ToString();
    return job;
  }
  // Ten steps, saved, and ten more by another trainer, against twenty.
  void ExpectTenAndTenEqualTwenty(const TrainerOptions& options) {
    Trainer whole(options, SmallText());
    std::vector<float> losses = TrainTo(20, &whole);
    losses.erase(losses.begin(), losses.begin() + 10);
    const auto first = Start(options, Flags());
    first->TrainTo(10);
    const auto second = Start(options, Flags());
    EXPECT_EQ(StateBytes(&second->trainer), StateBytes(&first->trainer));
    EXPECT_EQ(second->TrainTo(20), losses);
    EXPECT_EQ(StateBytes(&second->trainer), StateBytes(&whole));
    const varve::TrainerProgress& resumed = second->trainer.state()->trainer;
    const varve::TrainerProgress& expected = whole.state()->trainer;
    EXPECT_EQ(resumed.consumed_samples, expected.consumed_samples);
    EXPECT_EQ(resumed.lr_scheduler, expected.lr_scheduler);
    EXPECT_EQ(resumed.rng[0].state, expected.rng[0].state);
  }
  std::vector<uint64_t> Steps(const std::string& run = "main") const {
    std::vector<uint64_t> steps;
    const auto store = varve::Store::OpenForReading(path_).value();
    const auto checkpoints = store->ListCheckpoints(run);
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status().ToString();
    if (!checkpoints.ok()) return steps;
    for (const auto& info : *checkpoints) steps.push_back(info.id.step);
    return steps;
  }

  varve::internal::testing::TempFolder folder_;
  const std::string path_ = folder_.path() / "store";
};

TEST_F(ResumeTest, TwentyStepsByFiveAreFourCheckpoints) {
  Start(SmallOptions(), Flags(5))->TrainTo(20);
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{5, 10, 15, 20}));
}

TEST_F(ResumeTest, TheLastStepIsSavedToo) {
  Start(SmallOptions(), Flags(5))->TrainTo(7);
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{5, 7}));
}

TEST_F(ResumeTest, KeepsTheNewest) {
  varve::CheckpointFlags flags = Flags(1);
  flags.max_checkpoint_keep = 2;
  Start(SmallOptions(), flags)->TrainTo(4);
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{3, 4}));
}

TEST_F(ResumeTest, Bf16TenAndTenEqualTwenty) { ExpectTenAndTenEqualTwenty(SmallOptions()); }

TEST_F(ResumeTest, Fp32TenAndTenEqualTwenty) {
  TrainerOptions options = SmallOptions();
  options.precision = Precision::kFp32;
  ExpectTenAndTenEqualTwenty(options);
}

TEST_F(ResumeTest, GoesOnFromAnOlderStep) {
  const auto first = Start(SmallOptions(), Flags(2));
  first->TrainTo(4);
  varve::CheckpointFlags flags = Flags(2);
  flags.ckpt_step = "2";
  const auto second = Start(SmallOptions(), flags);
  EXPECT_EQ(second->trainer.step(), 2);
  second->TrainTo(4);
  EXPECT_EQ(StateBytes(&second->trainer), StateBytes(&first->trainer));
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(Steps("main~1"), (std::vector<uint64_t>{4}));
}

TEST_F(ResumeTest, RefusesAnotherModel) {
  Start(SmallOptions(), Flags())->TrainTo(1);
  TrainerOptions options = SmallOptions();
  options.model.hidden_size = 40;
  const Job other(options, Flags());
  EXPECT_EQ(other.status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(other.status.message().find("model.transformer.wte.weight"), std::string::npos);
}

TEST_F(ResumeTest, SavesTheLossAsAMetric) {
  const std::vector<float> losses = Start(SmallOptions(), Flags())->TrainTo(1);
  const auto store = varve::Store::OpenForReading(path_).value();
  EXPECT_EQ(store->OpenCheckpoint("main", 1).value()->info().metrics.at("loss"), losses[0]);
}

// The samples go on where they were, whatever the batch size is from there.
TEST_F(ResumeTest, OtherBatchSizeSameNextSample) {
  Trainer whole(SmallOptions(), SmallText());
  TrainTo(4, &whole);
  Start(SmallOptions(), Flags())->TrainTo(4);
  const auto resumed = Start(SmallOptions(), Flags());
  const StepReport expected = Step(&whole, 7);
  const StepReport report = Step(&resumed->trainer, 7);
  EXPECT_EQ(report.first_sample, 16);
  EXPECT_EQ(report.first_sample, expected.first_sample);
  EXPECT_EQ(report.last_sample, expected.last_sample);
  EXPECT_EQ(report.loss, expected.loss);
  EXPECT_EQ(StateBytes(&resumed->trainer), StateBytes(&whole));
}

TEST_F(ResumeTest, LearningRateGoesOnAcrossTheEndOfTheWarmUp) {
  TrainerOptions options = SmallOptions();
  options.schedule.warmup_iters = 6;
  Trainer whole(options, SmallText());
  std::vector<double> expected;
  for (int i = 0; i < 10; ++i) expected.push_back(Step(&whole).lr);
  Start(options, Flags())->TrainTo(4);
  const auto resumed = Start(options, Flags());
  EXPECT_EQ(resumed->trainer.state()->trainer.lr_scheduler.at("lr"),
            varve::StateValue(expected[3]));
  for (int i = 4; i < 10; ++i) EXPECT_EQ(Step(&resumed->trainer).lr, expected[i]) << i;
}

// Dropout draws from a generator that runs through the whole training.
TEST_F(ResumeTest, DropoutGoesOn) {
  TrainerOptions options = SmallOptions();
  options.dropout = 0.5f;
  Trainer whole(options, SmallText());
  const std::vector<float> losses = TrainTo(6, &whole);
  Start(options, Flags())->TrainTo(4);
  const auto resumed = Start(options, Flags());
  const std::vector<float> after(losses.begin() + 4, losses.end());
  EXPECT_EQ(TrainTo(6, &resumed->trainer), after);
  EXPECT_EQ(resumed->trainer.state()->trainer.rng[0].state, whole.state()->trainer.rng[0].state);
}

}  // namespace
}  // namespace gpt
