// SPDX-License-Identifier: Apache-2.0
#include "gpt/trainer.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <map>

#include "tests/examples/gpt/trainer_fixture.h"

namespace gpt {
namespace {

struct Outcome {
  std::vector<float> losses;
  std::vector<std::string> state;
  bool operator==(const Outcome&) const = default;
};

Outcome TrainOn(int num_threads, int64_t steps, Precision precision = Precision::kBf16) {
  // Even where there are fewer cores.
  tbb::global_control limit(tbb::global_control::max_allowed_parallelism, num_threads);
  tbb::task_arena arena(num_threads);
  return arena.execute([&] {
    TrainerOptions options = SmallOptions();
    options.precision = precision;
    Trainer trainer(options, SmallText());
    std::vector<float> losses = TrainTo(steps, &trainer);
    return Outcome{std::move(losses), StateBytes(&trainer)};
  });
}

TEST(TrainerTest, SameSeedSameBits) { EXPECT_EQ(TrainOn(2, 6), TrainOn(2, 6)); }

TEST(TrainerTest, ThreadsDoNotChangeBits) {
  const Outcome alone = TrainOn(1, 6);
  EXPECT_EQ(TrainOn(2, 6), alone);
  EXPECT_EQ(TrainOn(5, 6), alone);
}

TEST(TrainerTest, ThreadsDoNotChangeBitsOfFp32) {
  EXPECT_EQ(TrainOn(1, 6, Precision::kFp32), TrainOn(5, 6, Precision::kFp32));
}

TEST(TrainerTest, PrecisionChangesTheLosses) {
  EXPECT_NE(TrainOn(2, 3, Precision::kFp32).losses, TrainOn(2, 3).losses);
}

TEST(TrainerTest, DropoutChangesTheLosses) {
  TrainerOptions options = SmallOptions();
  Trainer with(options, SmallText());
  options.dropout = 0;
  Trainer without(options, SmallText());
  EXPECT_NE(TrainTo(1, &with), TrainTo(1, &without));
}

TEST(TrainerTest, OtherSeedOtherWeights) {
  TrainerOptions options = SmallOptions();
  Trainer one(options, SmallText());
  options.seed += 1;
  Trainer other(options, SmallText());
  EXPECT_NE(StateBytes(&one), StateBytes(&other));
}

TEST(TrainerTest, Learns) {
  Trainer trainer(SmallOptions(), SmallText());
  const std::vector<float> losses = TrainTo(20, &trainer);
  EXPECT_NEAR(losses.front(), std::log(kVocabSize), 0.3);
  EXPECT_LT(losses.back(), losses.front() - 1.5f);
}

TEST(TrainerTest, WeightsAreRoundedMasters) {
  Trainer trainer(SmallOptions(), SmallText());
  TrainTo(2, &trainer);
  std::map<std::string, varve::StateTensor> by_name;
  for (const varve::StateTensor& tensor : trainer.state()->tensors) by_name[tensor.name] = tensor;
  for (const auto& [name, tensor] : by_name) {
    ASSERT_EQ(tensor.derived_from.empty(), !name.starts_with("model.")) << name;
    if (tensor.derived_from.empty()) continue;
    ASSERT_TRUE(by_name.contains(tensor.derived_from)) << name;
    const varve::StateTensor& source = by_name[tensor.derived_from];
    ASSERT_EQ(tensor.shape, source.shape) << name;
    const int64_t size = varve::NumElements(tensor.shape).value();
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(static_cast<const uint16_t*>(tensor.data)[i],
                RoundToBf16(static_cast<const float*>(source.data)[i]))
          << name << "[" << i << "]";
    }
  }
}

TEST(TrainerTest, Fp32HasNoMasters) {
  TrainerOptions options = SmallOptions();
  options.precision = Precision::kFp32;
  Trainer trainer(options, SmallText());
  for (const varve::StateTensor& tensor : trainer.state()->tensors) {
    EXPECT_EQ(tensor.dtype, varve::DType::kF32) << tensor.name;
    EXPECT_TRUE(tensor.derived_from.empty()) << tensor.name;
    EXPECT_FALSE(tensor.name.starts_with("master.")) << tensor.name;
  }
}

TEST(TrainerTest, HeadSharesTheEmbedding) {
  Trainer trainer(SmallOptions(), SmallText());
  const void* embedding = nullptr;
  const void* head = nullptr;
  for (const varve::StateTensor& tensor : trainer.state()->tensors) {
    if (tensor.name == "model.transformer.wte.weight") embedding = tensor.data;
    if (tensor.name == "model.lm_head.weight") head = tensor.data;
  }
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(head, embedding);
}

// A save may read the state until the update.
TEST(TrainerTest, ForwardBackwardLeavesTheStateAlone) {
  for (const Precision precision : {Precision::kBf16, Precision::kFp32}) {
    TrainerOptions options = SmallOptions();
    options.precision = precision;
    Trainer trainer(options, SmallText());
    TrainTo(1, &trainer);
    const std::vector<std::string> before = StateBytes(&trainer);
    trainer.ForwardBackward(4);
    EXPECT_EQ(StateBytes(&trainer), before);
    trainer.Update();
    EXPECT_NE(StateBytes(&trainer), before);
  }
}

TEST(TrainerTest, CountsSamplesAndShowsTheLearningRate) {
  Trainer trainer(SmallOptions(), SmallText());
  Step(&trainer, 3);
  const StepReport report = Step(&trainer, 5);
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.first_sample, 3);
  EXPECT_EQ(report.last_sample, 7);
  const varve::TrainerProgress& state = trainer.state()->trainer;
  EXPECT_EQ(state.consumed_samples, 8);
  EXPECT_EQ(state.lr_scheduler.at("lr"), varve::StateValue(SmallOptions().schedule.At(2)));
  EXPECT_EQ(trainer.state()->metrics.at("loss"), report.loss);
}

class ResumeChecksTest : public testing::Test {
 protected:
  // Returns what a trainer with other options or text says about a state that another has saved.
  varve::Status Resume(const TrainerOptions& options, const std::string& text) {
    Trainer trainer(options, text);
    trainer.state()->trainer = saved_;
    return trainer.Resume({});
  }
  static varve::TrainerProgress MakeSaved() {
    Trainer trainer(SmallOptions(), SmallText());
    Step(&trainer);
    return trainer.state()->trainer;
  }
  varve::TrainerProgress saved_ = MakeSaved();
};

TEST_F(ResumeChecksTest, TakesItsOwn) {
  const varve::Status status = Resume(SmallOptions(), SmallText());
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_F(ResumeChecksTest, RefusesAnotherSchedule) {
  TrainerOptions options = SmallOptions();
  options.schedule.decay_iters += 1;
  const varve::Status status = Resume(options, SmallText());
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("decay_iters"), std::string::npos) << status.message();
}

TEST_F(ResumeChecksTest, RefusesAnotherLearningRate) {
  saved_.lr_scheduler["lr"] = 0.5;
  const varve::Status status = Resume(SmallOptions(), SmallText());
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("in lr"), std::string::npos) << status.message();
}

TEST_F(ResumeChecksTest, RefusesAnotherText) {
  std::string text = SmallText();
  text.back() ^= 1;
  const varve::Status status = Resume(SmallOptions(), text);
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("text_hash"), std::string::npos) << status.message();
}

TEST_F(ResumeChecksTest, RefusesAnotherSeed) {
  TrainerOptions options = SmallOptions();
  options.seed += 1;
  const varve::Status status = Resume(options, SmallText());
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("seed"), std::string::npos) << status.message();
}

TEST_F(ResumeChecksTest, RefusesAMalformedGenerator) {
  saved_.rng[0].state.resize(10);
  EXPECT_EQ(Resume(SmallOptions(), SmallText()).code(), varve::StatusCode::kInvalidArgument);
  saved_.rng.clear();
  EXPECT_EQ(Resume(SmallOptions(), SmallText()).code(), varve::StatusCode::kInvalidArgument);
}

// `varve import` leaves such a state: the metadata of a safetensors file, and the step.
TEST_F(ResumeChecksTest, TakesAnImportedStateWithItsOwnScheduleDataAndGenerator) {
  saved_ = {.global_step = 40, .consumed_samples = 160, .extra = {{"safetensors.format", "pt"}}};
  Trainer trainer(SmallOptions(), SmallText());
  const varve::TrainerProgress fresh = trainer.state()->trainer;
  trainer.state()->trainer = saved_;
  const varve::Status status = trainer.Resume({.optimizer = false});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const varve::TrainerProgress& state = trainer.state()->trainer;
  EXPECT_EQ(state.global_step, 40);
  EXPECT_EQ(state.lr_scheduler.at("lr"), varve::StateValue(SmallOptions().schedule.At(40)));
  EXPECT_EQ(state.extra.at("safetensors.format"), varve::StateValue("pt"));
  EXPECT_EQ(state.extra.at("text_hash"), fresh.extra.at("text_hash"));
  ASSERT_EQ(state.rng.size(), 1u);
  EXPECT_NE(state.rng[0].state, fresh.rng[0].state);
  saved_ = state;
  EXPECT_TRUE(Resume(SmallOptions(), SmallText()).ok());  // what it saves next is its own
}

// A file without metadata has no trainer state: the hooks set the step alone.
TEST_F(ResumeChecksTest, TakesTheStepOfAnImportWithoutState) {
  Trainer trainer(SmallOptions(), SmallText());
  trainer.state()->trainer.global_step = 40;
  const varve::Status status = trainer.Resume({.optimizer = false});
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(ValidateOptionsTest, NamesWhatIsWrong) {
  TrainerOptions options = SmallOptions();
  EXPECT_TRUE(ValidateOptions(options, SmallText()).ok());
  EXPECT_FALSE(ValidateOptions(options, std::string(24, 'x')).ok());
  EXPECT_TRUE(ValidateOptions(options, std::string(25, 'x')).ok());
  options.model.num_heads = 3;
  EXPECT_NE(ValidateOptions(options, SmallText()).message().find("3 attention heads"),
            std::string::npos);
}

}  // namespace
}  // namespace gpt
