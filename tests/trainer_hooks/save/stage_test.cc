// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/stage.h"

#include <atomic>
#include <thread>

#include "store/save/save_session.h"
#include "tests/support/sizes.h"
#include "tests/trainer_hooks/test_state.h"

namespace varve::internal::testing {
namespace {

class StageTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    VARVE_ASSERT_OK(memory_.Resize(64 * kMiB));
  }
  void TearDown() override {
    session_.reset();  // before its store
    StoreTest::TearDown();
  }
  static std::shared_ptr<const StageLayout> LayoutOf(TestState& state) {
    return StageLayout::Make(MakeStateTensors(state.state().tensors)).value();
  }
  // A stage of `state` for a step, copied but not yet saved.
  std::unique_ptr<Stage> Copy(uint64_t step, TestState* state) {
    memory_.Clear();
    session_ = SaveSession::Begin(store_.get(), step).value();
    auto stage = std::make_unique<Stage>(&memory_, nullptr, LayoutOf(*state));
    Status status = stage->BeginDigests(session_->digest_seed(), {});
    if (status.ok()) status = stage->PutInto(session_.get());
    if (status.ok()) session_->ReadParents();
    EXPECT_TRUE(status.ok()) << status.ToString();
    stage->Work();
    status = stage->AwaitCopied();
    EXPECT_TRUE(status.ok()) << status.ToString();
    return stage;
  }
  Result<SaveReport> Commit(Stage*) { return session_->Commit(); }

  StagingMemory memory_;
  std::unique_ptr<SaveSession> session_;
};

TEST_F(StageTest, CopiesOnlyWhatChanged) {
  TestState state;
  TestTensor* const big = state.Add(NormalTensor("big", {1'000'000}, 1));
  state.Add(NormalTensor("small", {7}, 2));
  state.Add({"empty", DType::kF32, {0, 3}, {}, {}});
  auto first = Copy(1, &state);
  EXPECT_EQ(first->staged_bytes(), 4'000'028u);
  VARVE_ASSERT_OK(Commit(first.get()).status());

  auto same = Copy(2, &state);
  EXPECT_EQ(same->changed_bytes(), 0u);
  EXPECT_EQ(Commit(same.get()).value().new_bytes, 0u);

  big->bytes[2 * kMiB + 5] ^= std::byte{1};
  auto third = Copy(3, &state);
  EXPECT_EQ(third->changed_bytes(), kMiB);
  EXPECT_EQ(Commit(third.get()).value().new_bytes, kMiB);
  ExpectHolds(3, state.Snapshot());
}

TEST_F(StageTest, WhatIsSavedIsWhatWasThereWhenItWasCopied) {
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1'000'000}, 1));
  auto stage = Copy(1, &state);
  const auto snapshot = state.Snapshot();
  stage->AwaitReleased();
  std::fill(t->bytes.begin(), t->bytes.end(), std::byte{7});
  VARVE_ASSERT_OK(Commit(stage.get()).status());
  ExpectHolds(1, snapshot);
}

TEST_F(StageTest, WhatDoesNotFitIsReadWhereItLies) {
  VARVE_ASSERT_OK(memory_.Resize(kMiB));
  TestState state;
  TestTensor* const master = state.Add(NormalTensor("master.w", {1'000'000}, 1));
  state.Add(RoundedCopy(*master, "model.w"));
  state.Add(NormalTensor("last", {500'000}, 2));
  auto stage = Copy(1, &state);
  EXPECT_GT(stage->staged_bytes(), 0u);
  EXPECT_LE(stage->staged_bytes(), kMiB);
  EXPECT_FALSE(stage->is_all_staged());
  const auto snapshot = state.Snapshot();
  std::jthread trainer([&] {  // changes everything as soon as it may
    stage->AwaitReleased();
    std::fill(master->bytes.begin(), master->bytes.end(), std::byte{7});
  });
  const SaveReport report = Commit(stage.get()).value();
  EXPECT_EQ(report.new_bytes, 6'000'000u) << "the rounded copy costs nothing";
  trainer.join();
  ExpectHolds(1, snapshot);
}

TEST_F(StageTest, AChunkThatChangesWhileItIsStagedFailsTheSaveByName) {
  VARVE_ASSERT_OK(memory_.Resize(0));
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("layers.7.weight", {600'000}, 1));
  auto stage = Copy(1, &state);
  t->bytes[kMiB + 3] ^= std::byte{1};
  EXPECT_THAT(Commit(stage.get()),
              FailsWith(StatusCode::kFailedPrecondition,
                        "tensor layers.7.weight: chunk 1 changed while it was staged"));
  EXPECT_THAT(store_->OpenCheckpoint("main", 1), FailsWith(StatusCode::kNotFound, "no run main"));
}

// The trainer writes while the save reads what was not staged: what is committed is whole all the
// same.
TEST_F(StageTest, WhatIsReadWhereItLiesIsDigestedAsItIsEncoded) {
  if (kUnderTsan) GTEST_SKIP() << "a race on purpose";
  VARVE_ASSERT_OK(memory_.Resize(0));
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("busy", {2'000'000}, 1));
  for (uint64_t step = 1; step <= 5; ++step) {
    auto stage = Copy(step, &state);
    std::atomic<bool> stop = false;
    std::jthread trainer([&] {
      for (size_t i = 0; !stop; i = (i + 40'961) % t->bytes.size()) {
        std::atomic_ref<std::byte>(t->bytes[i]).store(std::byte{1});
      }
    });
    const auto saved = Commit(stage.get());
    stop = true;
    if (saved.ok()) continue;
    EXPECT_THAT(saved, FailsWith(StatusCode::kFailedPrecondition, "tensor busy"));
  }  // the fixture's check reads every chunk of what was committed
}

TEST_F(StageTest, StridedTensorsAreStaged) {
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {600, 1000}, 1));
  StateTensor& view = state.state().tensors[0];  // its transpose
  view.shape = {1000, 600};
  view.strides = {1, 1000};
  auto stage = Copy(1, &state);
  TestTensor expected{"t", DType::kF32, {1000, 600}, {}, {}};
  for (size_t i = 0; i < 1000; ++i) {
    for (size_t j = 0; j < 600; ++j) {
      const auto* from = &t->bytes[4 * (1000 * j + i)];
      expected.bytes.insert(expected.bytes.end(), from, from + 4);
    }
  }
  std::fill(t->bytes.begin(), t->bytes.end(), std::byte{7});
  VARVE_ASSERT_OK(Commit(stage.get()).status());
  ExpectHolds(1, {expected});
}

TEST_F(StageTest, TiedTensorsAreStagedOnceAndDivergedOnesApart) {
  TestState state;
  TestTensor* const wte = state.Add(NormalTensor("wte", {500'000}, 1));
  StateTensor tied = state.state().tensors[0];
  tied.name = "lm_head";
  state.state().tensors.push_back(tied);
  auto stage = Copy(1, &state);
  EXPECT_EQ(stage->staged_bytes(), 2'000'000u);
  EXPECT_EQ(Commit(stage.get()).value().new_bytes, 2'000'000u);
  EXPECT_EQ(store_->OpenCheckpoint("main", 1).value()->Find("lm_head").value().alias_of, "wte");

  // The same tie, but the step before lacks one of the names. So its chunks have nothing to be
  // compared with.
  auto step2 = Save(2, {*wte});
  VARVE_ASSERT_OK(step2.status());
  VARVE_ASSERT_OK(Commit(Copy(3, &state).get()).status());
  TestTensor head = *wte;
  head.name = "lm_head";
  ExpectHolds(3, {*wte, head});

  // Diverged: two memories.
  TestState apart;
  apart.Add(*wte);
  head.bytes[0] ^= std::byte{1};
  apart.Add(head);
  VARVE_ASSERT_OK(Commit(Copy(4, &apart).get()).status());
  ExpectHolds(4, {*wte, head});
  EXPECT_EQ(store_->OpenCheckpoint("main", 4).value()->Find("lm_head").value().alias_of, "");
}

TEST_F(StageTest, ADerivedCopyWhoseMasterDidNotChangeIsStoredForItself) {
  TestState state;
  TestTensor* const master = state.Add(NormalTensor("master.w", {300'000}, 1));
  TestTensor* const model = state.Add(RoundedCopy(*master, "model.w"));
  VARVE_ASSERT_OK(Commit(Copy(1, &state).get()).status());
  model->bytes[0] ^= std::byte{1};
  VARVE_ASSERT_OK(Commit(Copy(2, &state).get()).status());
  ExpectHolds(2, state.Snapshot());
}

// The trainer finds this when it comes late to a save that has failed.
TEST_F(StageTest, WhatIsOverIsNeitherReadNorWaitedFor) {
  TestState state;
  state.Add(NormalTensor("t", {3'000'000}, 1));
  VARVE_ASSERT_OK(memory_.Resize(kMiB));
  session_ = SaveSession::Begin(store_.get(), 1).value();
  Stage stage(&memory_, nullptr, LayoutOf(state));
  VARVE_ASSERT_OK(stage.BeginDigests(session_->digest_seed(), {}));
  VARVE_ASSERT_OK(stage.PutInto(session_.get()));
  session_->ReadParents();
  stage.ReleaseAll();
  stage.Work();
  VARVE_ASSERT_OK(stage.AwaitCopied());
  stage.AwaitReleased();
  EXPECT_EQ(stage.changed_bytes(), 0u);
}

// It fails while the trainer stages what has no room.
TEST_F(StageTest, WhatIsLeftWhenItIsOverIsNotWaitedFor) {
  TestState state;
  state.Add(NormalTensor("t", {3'000'000}, 1));
  VARVE_ASSERT_OK(memory_.Resize(kMiB));
  const auto stage = Copy(1, &state);
  EXPECT_GT(stage->changed_bytes(), stage->staged_bytes());
  stage->ReleaseAll();
  stage->AwaitReleased();
}

TEST_F(StageTest, SeveralThreadsStageTogether) {
  TestState state;
  for (int i = 0; i < 20; ++i) {
    state.Add(
        NormalTensor("t" + std::to_string(i), {int64_t{14'000} * i}, static_cast<uint64_t>(i)));
  }
  session_ = SaveSession::Begin(store_.get(), 1).value();
  Stage stage(&memory_, nullptr, LayoutOf(state));
  VARVE_ASSERT_OK(stage.BeginDigests(session_->digest_seed(), {}));
  VARVE_ASSERT_OK(stage.PutInto(session_.get()));
  session_->ReadParents();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { stage.Work(); });
  VARVE_ASSERT_OK(stage.AwaitCopied());
  VARVE_ASSERT_OK(Commit(&stage).status());
  ExpectHolds(1, state.Snapshot());
}

TEST(StagingMemoryTest, GivesOutWhatItHas) {
  StagingMemory memory;
  EXPECT_TRUE(memory.Take(1).empty());
  VARVE_ASSERT_OK(memory.Resize(1000));
  EXPECT_EQ(memory.Take(65).size(), 65u);
  EXPECT_TRUE(memory.Take(1000).empty());
  EXPECT_EQ(memory.Take(64).size(), 64u);
  memory.Clear();
  EXPECT_EQ(memory.Take(960).size(), 960u);
  memory.Release();
  const auto again = memory.Take(900);
  EXPECT_EQ(again[899], std::byte{0});
}

TEST(StagingMemoryTest, FreeMemoryIsKnown) { EXPECT_GT(HalfOfFreeMemory(), kMiB); }

}  // namespace
}  // namespace varve::internal::testing
