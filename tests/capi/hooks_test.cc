// SPDX-License-Identifier: Apache-2.0
//
// Hooks in C: a training that saves, resumes, and stops.
#include <csignal>

#include "tests/capi/c_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

// A trainer of one tensor, a counter and a text whose length changes.
struct Trainer {
  Trainer() {
    const int64_t shape = 100;
    auto tensor = Struct<varve_tensor>();
    tensor.name = "w";
    tensor.dtype = VARVE_F32;
    tensor.num_axes = 1;
    tensor.shape = &shape;
    tensor.data = weights.data();
    EXPECT_OK(varve_state_create(&state));
    EXPECT_OK(varve_state_add_tensor(state, &tensor));
    auto item = Struct<varve_item>();
    item.name = "seen";
    item.data = &seen;
    item.capacity = sizeof(seen);
    EXPECT_OK(varve_state_add_item(state, &item));
    item.name = "text";
    item.data = text;
    item.capacity = sizeof(text);
    item.size = &text_size;
    EXPECT_OK(varve_state_add_item(state, &item));
  }
  ~Trainer() { varve_state_close(state); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  std::vector<float> weights = std::vector<float>(100);
  int64_t seen = 0;
  char text[8] = {};
  size_t text_size = 0;
  varve_state* state = nullptr;
};

class CHooksTest : public CTest {
 protected:
  void SetUp() override { ASSERT_OK(varve_flags_create(&flags_)); }
  void TearDown() override {
    varve_flags_close(flags_);
    CTest::TearDown();
  }
  void Set(const char* name, const std::string& value = "") {
    EXPECT_OK(varve_flags_set(flags_, name, value.c_str()));
  }
  void SetSaving(const std::string& interval) {
    Set("--save", path());
    Set("--save-interval", interval);
  }
  varve_hooks* Start(Trainer* trainer) {
    auto options = Struct<varve_hooks_options>();
    options.log = [](void* context, const char* line) {
      static_cast<std::vector<std::string>*>(context)->emplace_back(line);
    };
    options.log_context = &log_;
    options.check_staging = 1;
    varve_hooks* hooks = nullptr;
    EXPECT_OK(varve_hooks_start(flags_, trainer->state, &options, &hooks));
    return hooks;
  }
  // Trains to step `last`. Every value is the step.
  static void Train(int64_t last, Trainer* trainer, varve_hooks* hooks) {
    auto progress = Struct<varve_progress>();
    ASSERT_OK(varve_state_get_progress(trainer->state, &progress));
    int stop = 0;
    for (int64_t step = progress.global_step + 1; step <= last && stop == 0; ++step) {
      ASSERT_OK(varve_hooks_before_optimizer_step(hooks));
      for (float& weight : trainer->weights) ++weight;
      ++trainer->seen;
      trainer->text_size = static_cast<size_t>(step % 8);
      for (size_t i = 0; i < trainer->text_size; ++i) trainer->text[i] = 'x';
      ASSERT_OK(varve_hooks_after_step(hooks, step, step == last ? 1 : 0, &stop));
    }
  }
  std::vector<uint64_t> Steps() {
    Open(VARVE_OPEN_READ);
    varve_list* list = nullptr;
    EXPECT_OK(varve_list_steps(store_, "main", &list));
    size_t size = 0;
    EXPECT_OK(varve_list_size(list, &size));
    std::vector<uint64_t> steps;
    for (size_t i = 0; i < size; ++i) {
      auto info = Struct<varve_step_info>();
      EXPECT_OK(varve_list_step(list, i, &info));
      steps.push_back(info.step);
    }
    varve_list_close(list);
    return steps;
  }

  varve_flags* flags_ = nullptr;
  std::vector<std::string> log_;  // used by one save at a time
};

TEST_F(CHooksTest, ATrainingGoesOnWhereItStopped) {
  SetSaving("5");
  Set("--load", path());
  auto report = Struct<varve_load_report>();
  {
    Trainer trainer;
    varve_hooks* hooks = Start(&trainer);
    EXPECT_FAILS(varve_hooks_loaded(hooks, &report), VARVE_NOT_FOUND, "loaded nothing");
    Train(12, &trainer, hooks);
    uint32_t reason = 0;
    int code = 99;
    EXPECT_OK(varve_hooks_stop_reason(hooks, &reason, &code));
    EXPECT_EQ(reason, static_cast<uint32_t>(VARVE_STOP_LAST_STEP));
    EXPECT_EQ(code, 0);
    EXPECT_OK(varve_hooks_set_metric(hooks, 12, "loss", 0.5));
    EXPECT_OK(varve_hooks_set_tag(hooks, 12, "good"));
    EXPECT_OK(varve_hooks_finish(hooks));
    EXPECT_NE(varve_hooks_set_tag(hooks, 12, "late"), VARVE_OK);
    varve_hooks_close(hooks);
  }
  EXPECT_THAT(Steps(), ElementsAre(5, 10, 12));
  varve_store_close(store_);
  Set("--ckpt-step", "best:loss");
  Trainer trainer;
  varve_hooks* hooks = Start(&trainer);
  ASSERT_OK(varve_hooks_loaded(hooks, &report));
  EXPECT_STREQ(report.run, "main");
  EXPECT_EQ(report.step, 12u);
  EXPECT_EQ(report.num_tensors, 1u);
  EXPECT_EQ(trainer.weights[99], 12);
  EXPECT_EQ(trainer.seen, 12);
  EXPECT_EQ(trainer.text_size, 4u);
  Train(14, &trainer, hooks);
  EXPECT_OK(varve_hooks_finish(hooks));
  varve_hooks_close(hooks);
  EXPECT_EQ(trainer.weights[0], 14);
  EXPECT_THAT(Steps(), ElementsAre(5, 10, 12, 14));
}

TEST_F(CHooksTest, WillSaveMetricsAndTags) {
  SetSaving("2");
  Trainer trainer;
  varve_hooks* hooks = Start(&trainer);
  ASSERT_OK(varve_state_add_tag(trainer.state, "first"));
  int stop = 0, saves = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    ASSERT_OK(varve_hooks_before_optimizer_step(hooks));
    ASSERT_OK(varve_hooks_will_save(hooks, step, 0, &saves));
    EXPECT_EQ(saves, step % 2 == 0 ? 1 : 0);
    ASSERT_OK(varve_state_set_metric(trainer.state, "loss", static_cast<double>(step)));
    ASSERT_OK(varve_hooks_after_step(hooks, step, 0, &stop));
  }
  ASSERT_OK(varve_hooks_before_optimizer_step(hooks));
  EXPECT_OK(varve_hooks_finish(hooks));
  varve_hooks_close(hooks);
  Open(VARVE_OPEN_READ);
  varve_reader* reader = nullptr;
  ASSERT_OK(varve_reader_open(store_, "first", &reader));  // which step 4 did not take
  auto info = Struct<varve_step_info>();
  ASSERT_OK(varve_reader_info(reader, &info));
  EXPECT_EQ(info.step, 2u);
  EXPECT_EQ(info.metrics[0].value, 2);
  varve_reader_close(reader);
}

TEST_F(CHooksTest, ASignalStopsTheTraining) {
  SetSaving("100");
  Trainer trainer;
  varve_hooks* hooks = Start(&trainer);
  Train(3, &trainer, hooks);
  int stop = 0;
  std::raise(SIGTERM);
  ASSERT_OK(varve_hooks_before_optimizer_step(hooks));
  ASSERT_OK(varve_hooks_after_step(hooks, 4, 0, &stop));
  EXPECT_EQ(stop, 1);
  int code = 0;
  uint32_t reason = 0;
  EXPECT_OK(varve_hooks_stop_reason(hooks, &reason, &code));
  EXPECT_EQ(code, 75);
  EXPECT_EQ(reason, static_cast<uint32_t>(VARVE_STOP_SIGNAL));
  EXPECT_OK(varve_hooks_finish(hooks));
  varve_hooks_close(hooks);
}

TEST_F(CHooksTest, FlagsOfACommandLine) {
  char words[][32] = {"train", "--save", "x", "--lr", "1", "--save-interval=5"};
  char* argv[7] = {};
  for (int i = 0; i < 6; ++i) argv[i] = words[i];
  int argc = 6;
  ASSERT_OK(varve_flags_take(flags_, &argc, argv));
  EXPECT_EQ(argc, 3);
  EXPECT_STREQ(argv[1], "--lr");
  EXPECT_EQ(argv[3], nullptr);
  EXPECT_THAT(std::string(varve_flags_help()), ::testing::HasSubstr("  --save FOLDER "));
  EXPECT_FAILS(varve_flags_set(flags_, "--save-interval", "x"), VARVE_INVALID_ARGUMENT,
               "wants a whole number");
}

TEST_F(CHooksTest, WhatDoesNotFitIsSaidAtTheStart) {
  Set("--save", path());
  Trainer trainer;
  varve_hooks* hooks = nullptr;
  EXPECT_FAILS(varve_hooks_start(flags_, trainer.state, nullptr, &hooks), VARVE_INVALID_ARGUMENT,
               "--save needs --save-interval");
  EXPECT_EQ(hooks, nullptr);
  Set("--save-interval", "1");
  auto options = Struct<varve_hooks_options>();
  options.check_staging = 2;
  EXPECT_EQ(varve_hooks_start(flags_, trainer.state, &options, &hooks), VARVE_INVALID_ARGUMENT);
  options.check_staging = 0;
  options.retries = UINT32_MAX;
  EXPECT_FAILS(varve_hooks_start(flags_, trainer.state, &options, &hooks), VARVE_INVALID_ARGUMENT,
               "retries is 4294967295");
}

TEST_F(CHooksTest, ItemsThatDoNotFit) {
  SetSaving("1");
  {
    Trainer trainer;
    varve_hooks* hooks = Start(&trainer);
    int stop = 0;
    trainer.text_size = 9;  // more than there is
    EXPECT_FAILS(varve_hooks_after_step(hooks, 1, 0, &stop), VARVE_INVALID_ARGUMENT,
                 "item text: *size is 9, and capacity is 8");
    trainer.text_size = 8;
    EXPECT_OK(varve_hooks_after_step(hooks, 1, 1, &stop));
    EXPECT_OK(varve_hooks_finish(hooks));
    varve_hooks_close(hooks);
  }
  Set("--load", path());
  Trainer trainer;
  char small[4] = {};
  size_t size = 3;
  auto item = Struct<varve_item>();
  item.name = "text";
  item.data = small;
  item.capacity = sizeof(small);
  item.size = &size;
  varve_state* state = nullptr;
  ASSERT_OK(varve_state_create(&state));
  ASSERT_OK(varve_state_add_item(state, &item));
  varve_hooks* hooks = nullptr;
  Set("--dist-ckpt-strictness", "ignore_all");
  EXPECT_FAILS(varve_hooks_start(flags_, state, nullptr, &hooks), VARVE_INVALID_ARGUMENT,
               "item text: has 8 bytes, expected at most 4");
  EXPECT_EQ(size, 3u);
  varve_state_close(state);
}

TEST_F(CHooksTest, HooksKeepTheirStateAndSaveNothingWithoutTheFlag) {
  Trainer trainer;
  varve_hooks* hooks = Start(&trainer);
  varve_state_close(trainer.state);
  int stop = 0;
  ASSERT_OK(varve_hooks_before_optimizer_step(hooks));
  ASSERT_OK(varve_hooks_after_step(hooks, 1, 1, &stop));
  EXPECT_EQ(stop, 1);
  EXPECT_FAILS(varve_hooks_set_tag(hooks, 1, "x"), VARVE_FAILED_PRECONDITION, "--save");
  EXPECT_OK(varve_hooks_finish(hooks));
  EXPECT_OK(varve_hooks_finish(hooks));
  varve_hooks_close(hooks);
}

}  // namespace
}  // namespace varve::internal::testing
