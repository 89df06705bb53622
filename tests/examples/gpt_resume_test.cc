// SPDX-License-Identifier: Apache-2.0
//
// Through the library: a trainer that is saved and loaded goes on bit for bit.
#include <gtest/gtest.h>

#include <memory>

#include "gpt/checkpoint.h"
#include "tests/examples/trainer_fixture.h"
#include "tests/support/temp_folder.h"

namespace gpt {
namespace {

class ResumeTest : public testing::Test {
 protected:
  void SetUp() override { store_ = OpenOrDie(); }
  void TearDown() override {
    const auto report = store_->Check({.read_data = true, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (const std::string& error : report->errors) ADD_FAILURE() << error;
  }
  std::unique_ptr<varve::Store> OpenOrDie() {
    auto store = varve::Store::OpenOrCreate(folder_.path() / "store");
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return std::move(store).value();
  }
  void SaveOrDie(Trainer* trainer) {
    const auto report = SaveCheckpoint(store_.get(), trainer);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }
  std::vector<uint64_t> Steps() {
    std::vector<uint64_t> steps;
    const auto checkpoints = store_->ListCheckpoints(kRun);
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status().ToString();
    for (const auto& info : checkpoints.value()) steps.push_back(info.id.step);
    return steps;
  }

  varve::testing::TempFolder folder_;
  std::unique_ptr<varve::Store> store_;
};

TEST_F(ResumeTest, TenAndTenEqualTwenty) {
  Trainer whole(SmallOptions(), SmallText());
  const std::vector<float> losses = TrainTo(20, &whole);

  Trainer first(SmallOptions(), SmallText());
  TrainTo(10, &first);
  SaveOrDie(&first);
  store_.reset();  // as if in another process
  store_ = OpenOrDie();

  TrainerOptions options = SmallOptions();
  options.seed = 99;  // everything random comes from the checkpoint
  Trainer second(options, SmallText());
  const varve::Status status = LoadCheckpoint(*store_, 10, &second);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(StateBytes(&second), StateBytes(&first));
  EXPECT_EQ(TrainTo(20, &second), std::vector<float>(losses.begin() + 10, losses.end()));
  EXPECT_EQ(StateBytes(&second), StateBytes(&whole));
  EXPECT_EQ(second.State().consumed_samples, whole.State().consumed_samples);
}

TEST_F(ResumeTest, SavesTheLossAsAMetric) {
  Trainer trainer(SmallOptions(), SmallText());
  TrainTo(1, &trainer);
  SaveOrDie(&trainer);
  const auto info = store_->OpenCheckpoint(kRun, 1).value()->info();
  ASSERT_TRUE(info.metrics.contains("loss"));
  EXPECT_EQ(info.metrics.at("loss"), trainer.last_loss());
}

TEST_F(ResumeTest, GoesOnFromAnOlderStep) {
  Trainer trainer(SmallOptions(), SmallText());
  for (const int64_t step : {2, 4}) {
    TrainTo(step, &trainer);
    SaveOrDie(&trainer);
  }
  Trainer older(SmallOptions(), SmallText());
  ASSERT_TRUE(LoadCheckpoint(*store_, 2, &older).ok());
  TrainTo(4, &older);
  SaveOrDie(&older);  // replaces step 4
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(StateBytes(&older), StateBytes(&trainer));
}

TEST_F(ResumeTest, RefusesAnotherModel) {
  Trainer trainer(SmallOptions(), SmallText());
  TrainTo(1, &trainer);
  SaveOrDie(&trainer);
  TrainerOptions options = SmallOptions();
  options.model.hidden_size = 40;
  Trainer other(options, SmallText());
  const varve::Status status = LoadCheckpoint(*store_, 1, &other);
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("model.transformer.wte.weight"), std::string::npos);
}

TEST_F(ResumeTest, NamesAMissingStep) {
  Trainer trainer(SmallOptions(), SmallText());
  TrainTo(1, &trainer);
  SaveOrDie(&trainer);
  EXPECT_EQ(LoadCheckpoint(*store_, 7, &trainer).code(), varve::StatusCode::kNotFound);
}

TEST_F(ResumeTest, KeepsTheLastSteps) {
  Trainer trainer(SmallOptions(), SmallText());
  for (int64_t step = 1; step <= 4; ++step) {
    TrainTo(step, &trainer);
    SaveOrDie(&trainer);
  }
  ASSERT_TRUE(KeepLast(store_.get(), 2).ok());
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{3, 4}));
  ASSERT_TRUE(KeepLast(store_.get(), 2).ok());
  EXPECT_EQ(Steps(), (std::vector<uint64_t>{3, 4}));
}

}  // namespace
}  // namespace gpt
