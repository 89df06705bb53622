// SPDX-License-Identifier: Apache-2.0
//
// Each step of a training is saved, with what its optimizer did.
#include <filesystem>
#include <latch>

#include "tests/store/save/optimizer_training.h"
#include "tests/trainer_hooks/ranks_fixture.h"
#include "tests/trainer_hooks/test_state.h"
#include "varve/async_checkpointer.h"
#include "varve/group_checkpointer.h"

namespace varve::internal::testing {
namespace {

class ReplayedStepsTest : public StoreTest {
 protected:
  void Open(CheckpointerOptions options = {}) {
    store_.reset();
    ckpt_ = AsyncCheckpointer::Open(path(), options).value();
  }
  void TearDown() override {
    ckpt_.reset();
    StoreTest::TearDown();
  }

  // Does a step of the training, and lets the state know.
  uint64_t Step() {
    const auto hint = training_.Next();
    for (const TestTensor& tensor : training_.states.back()) {
      if (!tensors_.contains(tensor.name)) tensors_[tensor.name] = state_.Add(tensor);
      std::ranges::copy(tensor.bytes, tensors_[tensor.name]->bytes.begin());
    }
    state_.state().optimizer_step = hint;
    return hint->number;
  }
  void SaveNext() {
    const uint64_t step = Step();
    ASSERT_TRUE(ckpt_->Save(step, state_.state()).value());
    VARVE_ASSERT_OK(ckpt_->Wait());
  }
  void ExpectHoldsStep(size_t i) {
    ExpectHolds(ckpt_->store(), Training::kFirst + i, training_.states[i]);
  }
  uint64_t ReplayedBytes() {
    for (const CodecUse& use : ckpt_->store().Stats().value().by_codec) {
      if (use.codec == "replay") return use.raw_bytes;
    }
    return 0;
  }

  Training training_{70000, /*has_bf16=*/false, /*num=*/2};
  const uint64_t replayed_ = 2 * 4 * (70000 + 70001);  // of a step
  TestState state_;
  std::map<std::string, TestTensor*> tensors_;
  std::unique_ptr<AsyncCheckpointer> ckpt_;
};

TEST_F(ReplayedStepsTest, EachStepIsThere) {
  Open();
  for (int i = 0; i < 6; ++i) SaveNext();
  for (size_t i = 0; i < 6; ++i) ExpectHoldsStep(i);
  EXPECT_EQ(ReplayedBytes(), 5 * replayed_);
}

// The optimizer did two steps since the one that was saved last.
TEST_F(ReplayedStepsTest, ASkippedStepIsNotReplayed) {
  std::latch in_flight(1), go_on(1);
  Open({.when_busy = WhenBusy::kSkip, .on_save = [&](const SaveStats& stats) {
          if (stats.step != Training::kFirst) return;
          in_flight.count_down();
          go_on.wait();
        }});
  ASSERT_TRUE(ckpt_->Save(Step(), state_.state()).value());
  in_flight.wait();
  EXPECT_FALSE(ckpt_->Save(Step(), state_.state()).value());
  go_on.count_down();
  VARVE_ASSERT_OK(ckpt_->Wait());
  SaveNext();
  EXPECT_EQ(ReplayedBytes(), 0u);
  SaveNext();
  EXPECT_EQ(ReplayedBytes(), replayed_);
  for (const size_t i : {0, 2, 3}) ExpectHoldsStep(i);
}

// The step that stays when others are dropped is not predicted from them.
TEST_F(ReplayedStepsTest, AStepThatRetentionKeepsIsNotReplayed) {
  Open({.retention = RetentionPolicy{.keep_last = 3, .keep_every = 4}});
  static_assert(Training::kFirst % 4 == 0);
  for (int i = 0; i < 3; ++i) SaveNext();
  EXPECT_EQ(ReplayedBytes(), 2 * replayed_);
  for (int i = 0; i < 2; ++i) SaveNext();
  EXPECT_EQ(ReplayedBytes(), 3 * replayed_);  // of 15, of 14, and of 13, which 14 needs
  for (const size_t i : {0, 2, 3, 4}) ExpectHoldsStep(i);
}

// Also without a hint of its own.
TEST_F(ReplayedStepsTest, AStepThatRetentionKeepsNeedsNoOther) {
  Open({.retention = RetentionPolicy{.keep_last = 1, .keep_every = 4}});
  for (int i = 0; i < 4; ++i) SaveNext();
  EXPECT_EQ(ReplayedBytes(), 3 * replayed_);
  const uint64_t step = Step();
  state_.state().optimizer_step = nullptr;
  ASSERT_TRUE(ckpt_->Save(step, state_.state()).value());
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_EQ(ReplayedBytes(), 0u);
  for (const size_t i : {0, 4}) ExpectHoldsStep(i);
}

TEST_F(ReplayedStepsTest, WhereEachStepStaysAllAreReplayed) {
  Open({.retention = RetentionPolicy{.keep_last = 1, .keep_every = 1}});
  for (int i = 0; i < 4; ++i) SaveNext();
  EXPECT_EQ(ReplayedBytes(), 3 * replayed_);
}

// Ranks that hold the same parameters: each saves some of them with their moments, and all know
// which steps stay.
class ReplayedGroupTest : public RanksTest {};

TEST_F(ReplayedGroupTest, RanksReplayWhatTheySaveAndKnowWhichStepsStay) {
  Training training(70000, /*has_bf16=*/false, /*num=*/2);
  std::vector<std::shared_ptr<OptimizerStep>> hints;
  for (int i = 0; i < 6; ++i) hints.push_back(training.Next());
  const auto save_all = [&](int, AsyncCheckpointer* checkpointer) {
    for (size_t i = 0; i < hints.size(); ++i) {
      TestTrainer trainer;
      for (const TestTensor& tensor : training.states[i]) {
        trainer.Add({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape},
                    tensor.bytes);
      }
      trainer.state.optimizer_step = hints[i];
      VARVE_EXPECT_OK(checkpointer->Save(hints[i]->number, trainer.state).status());
      VARVE_EXPECT_OK(checkpointer->Wait());
    }
  };
  Run(2, save_all, {.retention = RetentionPolicy{.keep_last = 100, .keep_every = 4}});
  uint64_t replayed = 0;
  int num_members = 0;
  for (const auto& member : std::filesystem::directory_iterator(root() / "members")) {
    const auto store = Store::OpenForReading(member.path()).value();
    uint64_t of_member = 0;
    for (const CodecUse& use : store->Stats().value().by_codec) {
      if (use.codec == "replay") of_member += use.raw_bytes;
    }
    EXPECT_GT(of_member, 0u);
    replayed += of_member;
    ++num_members;
  }
  EXPECT_EQ(num_members, 2);
  static_assert(Training::kFirst % 4 == 0);
  EXPECT_EQ(replayed, 4 * 2 * 4 * (70000 + 70001));  // of 13, 14, 15 and 17, and not of 16
  const auto store = Store::OpenForReading(root()).value();
  for (size_t i = 0; i < hints.size(); ++i) {
    const auto reader = store->OpenCheckpoint("main", hints[i]->number).value();
    ExpectReadsTogether(*reader, training.states[i]);
  }
}

TEST_F(ReplayedStepsTest, ARestoredStepIsWhereTheOptimizerGoesOn) {
  Open();
  for (int i = 0; i < 2; ++i) SaveNext();
  VARVE_ASSERT_OK(ckpt_->Close());
  const uint64_t before = replayed_;
  Open();
  EXPECT_EQ(ReplayedBytes(), before);
  VARVE_ASSERT_OK(ckpt_->Restore("latest", {}, &state_.state()).status());
  SaveNext();
  EXPECT_EQ(ReplayedBytes(), before + replayed_);
  VARVE_ASSERT_OK(ckpt_->Close());
  // Nobody knows from where this one goes on.
  Open();
  SaveNext();
  EXPECT_EQ(ReplayedBytes(), before + replayed_);
  for (size_t i = 0; i < 4; ++i) ExpectHoldsStep(i);
}

}  // namespace
}  // namespace varve::internal::testing
