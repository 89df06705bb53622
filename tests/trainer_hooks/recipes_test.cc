// SPDX-License-Identifier: Apache-2.0
//
// The recipes of docs/hooks.md, word by word.
#include <algorithm>
#include <cmath>
#include <random>

#include "tests/trainer_hooks/state_fixture.h"

namespace varve::internal::testing {
namespace {

// moments[i] is the optimizer's state of params[i], cut and placed as the parameter is. `params` is
// passed by value, because the caller may pass state->tensors, which grows here.
void AddMoments(std::vector<varve::StateTensor> params, const std::vector<float*>& moments,
                varve::TrainingState* state) {
  for (size_t i = 0; i < params.size(); ++i) {
    varve::StateTensor moment = params[i];  // its shape, layout and device
    moment.name = "exp_avg." + params[i].name;
    moment.dtype = varve::DType::kF32;
    moment.data = moments[i];
    moment.strides.clear();
    moment.derived_from.clear();
    moment.role = varve::TensorRole::kOptimizer;
    state->tensors.push_back(std::move(moment));
  }
}

varve::Status EndTraining(uint64_t step, uint64_t last_saved, const varve::TrainingState& state,
                          varve::AsyncCheckpointer* checkpointer) {
  if (step != last_saved) VARVE_RETURN_IF_ERROR(checkpointer->Save(step, state).status());
  return checkpointer->Close();  // durable if ok. Free the tensors only after this call
}

struct LoaderPosition {
  int64_t file = 0, line = 0;
};
void AddItems(LoaderPosition* loader, std::vector<double>* history, varve::TrainingState* state) {
  state->items.push_back(varve::ItemOf("loader", loader));
  state->items.push_back(varve::ItemOf("history", history));
}

// `number` counts the steps of the optimizer from 1 on. `scale` is what clipping has multiplied the
// gradients by.
void TellStep(uint64_t number, double learning_rate, double scale, varve::TrainingState* state) {
  auto step = std::make_shared<varve::OptimizerStep>();
  step->number = number;
  step->gradient_scale = scale;
  step->groups = {{.learning_rate = learning_rate, .beta2 = 0.95, .weight_decay = 0.1}};
  step->parameters = {{"master.wte", "exp_avg.wte", "exp_avg_sq.wte"}};
  state->optimizer_step = std::move(step);
}

class RecipesTest : public StoreTest {};

TEST_F(RecipesTest, StateKnownByAnIndexIsNamedByItsParameter) {
  std::vector<uint16_t> w(6), v(4);
  std::vector<float> m0(6, 1), m1(4, 2);
  TrainingState state;
  state.tensors = {{{.name = "w", .dtype = DType::kBF16, .shape = {2, 3}}, w.data()},
                   {{.name = "v", .dtype = DType::kBF16, .shape = {4}}, v.data()}};
  AddMoments(state.tensors, {m0.data(), m1.data()}, &state);
  store_.reset();
  auto checkpointer = AsyncCheckpointer::Open(path()).value();
  VARVE_ASSERT_OK(EndTraining(7, 6, state, checkpointer.get()));
  Reopen();
  const auto reader = store_->OpenCheckpoint("main", 7).value();
  EXPECT_EQ(reader->Find("exp_avg.w").value().shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> read(4);
  VARVE_ASSERT_OK(reader->Read("exp_avg.v", std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, m1);
}

TEST_F(RecipesTest, TheLastStepIsSavedOnce) {
  std::vector<float> w(6);
  TrainingState state;
  state.tensors = {{{.name = "w", .shape = {6}}, w.data()}};
  store_.reset();
  auto checkpointer = AsyncCheckpointer::Open(path()).value();
  VARVE_ASSERT_OK(checkpointer->Save(7, state).status());
  VARVE_ASSERT_OK(EndTraining(7, 7, state, checkpointer.get()));
  Reopen();
  EXPECT_EQ(store_->ListCheckpoints("main").value().size(), 1u);
}

double ValidationLoss() { return 0.25; }

Status SaveWithLoss(varve::TrainerHooks* hooks, TrainingState state, int64_t step, int64_t last) {
  VARVE_ASSIGN_OR_RETURN(const bool saves, hooks->WillSave(step, step == last));
  if (saves) state.metrics["loss"] = ValidationLoss();
  VARVE_ASSIGN_OR_RETURN(const bool stop, hooks->AfterStep(state, step == last));
  EXPECT_EQ(stop, step == last);
  return Status::Ok();
}

TEST_F(RecipesTest, OnlyTheStepsThatAreSavedHaveTheLoss) {
  std::vector<float> w(6);
  TrainingState state;
  state.tensors = {{{.name = "w", .shape = {6}}, w.data()}};
  CheckpointFlags flags;
  flags.save = path();
  flags.save_interval = 2;
  store_.reset();
  auto hooks = TrainerHooks::Start(flags, &state).value();
  for (int64_t step = 1; step <= 4; ++step) {
    VARVE_ASSERT_OK(hooks->BeforeOptimizerStep());
    state.trainer.global_step = step;
    VARVE_ASSERT_OK(SaveWithLoss(hooks.get(), state, step, 4));
  }
  VARVE_ASSERT_OK(hooks->Finish());
  hooks.reset();
  Reopen();
  const auto steps = store_->ListCheckpoints("main").value();
  ASSERT_EQ(steps.size(), 2u);
  for (const auto& info : steps) EXPECT_EQ(info.metrics.at("loss"), 0.25);
}

TEST_F(RecipesTest, ASaveThatIsToldOfTheStepReplaysIt) {
  constexpr size_t kElements = 10000;
  constexpr float kRate = 3e-4f, kScale = 0.5f;
  std::vector<float> w(kElements, 0.02f), m(kElements), v(kElements);
  TrainingState state;
  for (auto& [name, values] :
       {std::pair{"master.wte", &w}, {"exp_avg.wte", &m}, {"exp_avg_sq.wte", &v}}) {
    state.tensors.push_back({{.name = name, .shape = {kElements}}, values->data()});
  }
  store_.reset();
  auto checkpointer = AsyncCheckpointer::Open(path()).value();
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.01f);
  for (uint64_t number = 1; number <= 3; ++number) {
    const auto t = static_cast<double>(number);
    const auto size = static_cast<float>(kRate / (1 - std::pow(0.9, t)));
    const auto bias = static_cast<float>(std::sqrt(1 - std::pow(0.95, t)));
    for (size_t i = 0; i < kElements; ++i) {
      const float g = normal(random) * kScale;
      m[i] = 0.9f * m[i] + 0.1f * g;
      v[i] = 0.95f * v[i] + 0.05f * g * g;
      w[i] = (1 - kRate * 0.1f) * w[i] - size * (m[i] / (std::sqrt(v[i]) / bias + 1e-8f));
    }
    TellStep(number, kRate, kScale, &state);
    ASSERT_TRUE(checkpointer->Save(number, state).value());
    VARVE_ASSERT_OK(checkpointer->Wait());
  }
  const auto uses = checkpointer->store().Stats().value().by_codec;
  const auto replay = std::ranges::find(uses, "replay", &CodecUse::codec);
  ASSERT_NE(replay, uses.end());
  EXPECT_EQ(replay->raw_bytes, 2 * 2 * 4 * kElements);  // v and w of two steps
  VARVE_ASSERT_OK(checkpointer->Close());
  Reopen();
  std::vector<float> read(kElements);
  const auto reader = store_->OpenCheckpoint("main", 3).value();
  VARVE_ASSERT_OK(reader->Read("master.wte", std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, w);
}

TEST_F(RecipesTest, AVariableIsSavedAndFilled) {
  std::vector<float> w(6);
  LoaderPosition loader{3, 7};
  std::vector<double> history = {2.5, 2.25};
  TrainingState state;
  state.tensors = {{{.name = "w", .shape = {6}}, w.data()}};
  AddItems(&loader, &history, &state);
  store_.reset();
  auto checkpointer = AsyncCheckpointer::Open(path()).value();
  VARVE_ASSERT_OK(EndTraining(7, 6, state, checkpointer.get()));
  loader = {};
  history.clear();
  Reopen();
  const auto reader = store_->OpenCheckpoint("main", 7).value();
  VARVE_ASSERT_OK(LoadState(*reader, {}, &state).status());
  EXPECT_EQ(loader.file, 3);
  EXPECT_EQ(loader.line, 7);
  EXPECT_EQ(history, (std::vector<double>{2.5, 2.25}));
}

}  // namespace
}  // namespace varve::internal::testing
