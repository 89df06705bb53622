// SPDX-License-Identifier: Apache-2.0
//
// Tests writers that give up, meet, or race, and readers beside them.
#include <thread>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using WritersTest = StoreTest;

TEST_F(WritersTest, AbandonedSaveLeavesNothing) {
  const TestTensor t = RandomTensor("t", DType::kU8, {4 << 20}, 1);
  {
    auto writer = store_->Begin(1).value();
    VARVE_ASSERT_OK(writer->Put(t.view()));
    writer->Abandon();
    EXPECT_THAT(writer->Commit(),
                FailsWith(StatusCode::kFailedPrecondition, "abandoned; begin another save"));
  }
  { VARVE_ASSERT_OK(store_->Begin(2).value()->Put(t.view())); }  // destroyed without a word
  ExpectEmpty();
  EXPECT_TRUE(std::filesystem::is_empty(path() / "incoming"));
  EXPECT_THAT(store_->OpenCheckpoint("main", 1), FailsWith(StatusCode::kNotFound, "main"));
}

TEST_F(WritersTest, TwoSavesOfOneStepLeaveTheFirst) {
  const TestTensor a = RandomTensor("a", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("b", DType::kU8, {100000}, 2);
  auto first = store_->Begin(1).value();
  auto second = store_->Begin(1).value();
  VARVE_ASSERT_OK(first->Put(a.view()));
  VARVE_ASSERT_OK(second->Put(b.view()));
  VARVE_ASSERT_OK(first->Commit().status());
  EXPECT_THAT(second->Commit(), FailsWith(StatusCode::kAlreadyExists, "step 1 of run main"));
  ExpectHolds(1, {a});
}

TEST_F(WritersTest, SecondHandleIsLockedOutAndTheFirstGoesOn) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kLocked, path().string()));
  }
  const TestTensor a = RandomTensor("a", DType::kU8, {1000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
}

TEST_F(WritersTest, ThreadsSaveReadAndDropOnOneHandle) {
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string run = "run" + std::to_string(t);
      for (uint64_t step = 0; step < 8; ++step) {
        // The same tensor in all runs, so that the savers share and drop the same chunks.
        const std::vector<TestTensor> tensors = {RandomTensor("t", DType::kU8, {90000}, step / 2),
                                                 RandomTensor("u", DType::kU8, {70000}, t)};
        VARVE_EXPECT_OK(Save(step, tensors, {.run = run}).status());
        ExpectHolds(*store_, step, tensors, run);
        if (step >= 2) {
          VARVE_EXPECT_OK(store_->Drop(std::vector<CheckpointId>{{run, step - 2}}).status());
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(GetStats().num_steps, 8u);
}

TEST_F(WritersTest, ReaderSeesCommitsAndCannotWrite) {
  auto reader = Store::OpenForReading(path()).value();
  EXPECT_THAT(reader->LatestStep("main"), FailsWith(StatusCode::kNotFound, "main"));
  const TestTensor a = RandomTensor("a", DType::kU8, {300000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(reader->CatchUp());
  EXPECT_EQ(reader->LatestStep("main").value(), 1u);
  ExpectHolds(*reader, 1, {a});
  EXPECT_THAT(reader->Begin(2), FailsWith(StatusCode::kFailedPrecondition, "reading only"));
  EXPECT_THAT(reader->Drop({}), FailsWith(StatusCode::kFailedPrecondition, "reading only"));
  EXPECT_THAT(reader->Reclaim(), FailsWith(StatusCode::kFailedPrecondition, "reading only"));
  const auto check = reader->Check({.read_data = true}).value();
  EXPECT_THAT(check.errors, ::testing::IsEmpty());
}

TEST_F(WritersTest, ReaderOfADroppedOrReplacedStepIsTold) {
  const TestTensor a = RandomTensor("a", DType::kU8, {300000}, 1);
  const TestTensor b = RandomTensor("a", DType::kU8, {300000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(Save(2, {a}).status());
  auto reader = Store::OpenForReading(path()).value();
  const auto dropped = reader->OpenCheckpoint("main", 1).value();
  const auto replaced = reader->OpenCheckpoint("main", 2).value();
  VARVE_ASSERT_OK(DropSteps({1}));
  VARVE_ASSERT_OK(Save(2, {b}, {.on_existing = OnExisting::kReplace}).status());
  VARVE_ASSERT_OK(reader->CatchUp());
  std::vector<std::byte> out(300000);
  EXPECT_THAT(dropped->Read("a", out), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_THAT(replaced->Read("a", out), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(dropped->List(), FailsWith(StatusCode::kNotFound, "dropped"));
  ExpectHolds(*reader, 2, {b});
}

}  // namespace
}  // namespace varve::internal::testing
