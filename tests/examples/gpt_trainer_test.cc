// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <map>

#include "gpt/trainer.h"
#include "tests/examples/trainer_fixture.h"

namespace gpt {
namespace {

struct Outcome {
  std::vector<float> losses;
  std::vector<std::string> state;
  bool operator==(const Outcome&) const = default;
};

Outcome TrainOn(int num_threads, int64_t steps) {
  // Even where there are fewer cores.
  tbb::global_control limit(tbb::global_control::max_allowed_parallelism, num_threads);
  tbb::task_arena arena(num_threads);
  return arena.execute([&] {
    Trainer trainer(SmallOptions(), SmallText());
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
  std::map<std::string, StateTensor> by_name;
  for (const StateTensor& tensor : trainer.Tensors()) by_name[tensor.name] = tensor;
  for (const auto& [name, tensor] : by_name) {
    if (tensor.derived_from.empty()) continue;
    ASSERT_TRUE(by_name.contains(tensor.derived_from)) << name;
    const StateTensor& source = by_name[tensor.derived_from];
    ASSERT_EQ(tensor.shape, source.shape) << name;
    const int64_t size = varve::NumElements(tensor.shape).value();
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(static_cast<const uint16_t*>(tensor.data)[i],
                RoundToBf16(static_cast<const float*>(source.data)[i]))
          << name << "[" << i << "]";
    }
  }
}

TEST(TrainerTest, HeadSharesTheEmbedding) {
  Trainer trainer(SmallOptions(), SmallText());
  const void* embedding = nullptr;
  const void* head = nullptr;
  for (const StateTensor& tensor : trainer.Tensors()) {
    if (tensor.name == "model.transformer.wte.weight") embedding = tensor.data;
    if (tensor.name == "model.lm_head.weight") head = tensor.data;
  }
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(head, embedding);
}

TEST(TrainerTest, RestoreRefusesAnotherSchedule) {
  Trainer trainer(SmallOptions(), SmallText());
  TrainerOptions options = SmallOptions();
  options.schedule.decay_iters += 1;
  const varve::Status status = Trainer(options, SmallText()).Restore(trainer.State());
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("decay_iters"), std::string::npos) << status.message();
}

TEST(TrainerTest, RestoreRefusesAnotherText) {
  Trainer trainer(SmallOptions(), SmallText());
  std::string text = SmallText();
  text.back() ^= 1;
  const varve::Status status = Trainer(SmallOptions(), text).Restore(trainer.State());
  EXPECT_EQ(status.code(), varve::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("text_hash"), std::string::npos) << status.message();
}

TEST(TrainerTest, RestoreRefusesAMalformedGenerator) {
  Trainer trainer(SmallOptions(), SmallText());
  varve::TrainerState state = trainer.State();
  state.rng[0].state.resize(10);
  EXPECT_EQ(trainer.Restore(state).code(), varve::StatusCode::kInvalidArgument);
  state.rng.clear();
  EXPECT_EQ(trainer.Restore(state).code(), varve::StatusCode::kInvalidArgument);
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
