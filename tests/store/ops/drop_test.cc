// SPDX-License-Identifier: Apache-2.0
//
// Dropping and reclaiming: what goes, what stays, and what comes back.
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using DropTest = StoreTest;

TEST_F(DropTest, EverythingComesBack) {
  for (uint64_t step = 0; step < 5; ++step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {4 << 20}, step)}).status());
  }
  const auto report = store_->Drop(std::vector<CheckpointId>{{"main", 0}, {"main", 3}}).value();
  EXPECT_EQ(report.dropped.size(), 2u);
  EXPECT_GE(report.reclaim.freed_bytes, uint64_t{8} << 20);
  EXPECT_EQ(report.reclaim.pending_bytes, 0u);
  EXPECT_EQ(report.reclaim.rewritten_bytes, 0u);
  EXPECT_LE(report.reclaim.disk_bytes_after + (uint64_t{8} << 20),
            report.reclaim.disk_bytes_before);
  VARVE_ASSERT_OK(DropSteps({1, 2, 4}));
  ExpectEmpty();
}

TEST_F(DropTest, MissingStepsAreAllNamedAndNothingGoes) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {1000}, 1)}).status());
  const Status status = DropSteps({1, 7, 8});
  EXPECT_THAT(status, FailsWith(StatusCode::kNotFound, "step 7 of run main, step 8 of run main"));
  EXPECT_EQ(GetStats().num_steps, 1u);
  EXPECT_THAT(store_->Drop(std::vector<CheckpointId>{{"other", 1}}),
              FailsWith(StatusCode::kNotFound, "other"));
}

TEST_F(DropTest, BaseOfASaveInProgressStays) {
  const TestTensor t = RandomTensor("t", DType::kU8, {1000}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  auto writer = store_->Begin(2).value();
  EXPECT_THAT(DropSteps({1}), FailsWith(StatusCode::kFailedPrecondition, "save in progress"));
  writer->Abandon();
  VARVE_ASSERT_OK(DropSteps({1}));
}

// One save of many chunks of which a later step keeps a few.
class PartlyDeadTest : public StoreTest {
 protected:
  void SaveAndDrop(int kept_of_16) {
    std::vector<TestTensor> first;
    for (int i = 0; i < 16; ++i) {
      first.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {3 << 20}, i));
    }
    VARVE_ASSERT_OK(Save(1, first).status());
    kept_.assign(first.begin(), first.begin() + kept_of_16);
    VARVE_ASSERT_OK(Save(2, kept_).status());
    const std::vector<CheckpointId> ids = {{"main", 1}};
    const auto forecast = store_->ForecastDrop(ids).value();
    const auto reader = Store::OpenForReading(path()).value();
    EXPECT_EQ(reader->ForecastDrop(ids)->freed_now, forecast.freed_now);
    EXPECT_EQ(reader->ForecastDrop(ids)->freed_later, forecast.freed_later);
    report_ = store_->Drop(ids).value().reclaim;
    EXPECT_EQ(forecast.freed_now, report_.freed_bytes);
    EXPECT_EQ(forecast.freed_later, report_.pending_bytes);
  }
  std::vector<TestTensor> kept_;
  ReclaimReport report_;
};

TEST_F(PartlyDeadTest, FileMostlyDeadIsRewritten) {
  SaveAndDrop(4);
  EXPECT_GE(report_.freed_bytes, uint64_t{36} << 20);
  EXPECT_LE(report_.rewritten_bytes, report_.freed_bytes);
  EXPECT_EQ(report_.pending_bytes, 0u);
  ExpectHolds(2, kept_);
}

TEST_F(PartlyDeadTest, FileMostlyAliveWaitsForReclaimAll) {
  SaveAndDrop(12);
  EXPECT_EQ(report_.freed_bytes, 0u);
  EXPECT_GE(report_.pending_bytes, uint64_t{12} << 20);
  EXPECT_LE(report_.pending_bytes, GetStats().stored_bytes);  // garbage <= live
  const ReclaimReport all = store_->Reclaim({.all = true}).value();
  EXPECT_GE(all.freed_bytes, uint64_t{12} << 20);
  EXPECT_EQ(all.pending_bytes, 0u);
  ExpectHolds(2, kept_);
}

TEST_F(DropTest, SpaceDroppedWithoutReclaimIsFoundAfterReopening) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {4 << 20}, 1)}).status());
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  EXPECT_GE(GetStats().pending_bytes, uint64_t{4} << 20);
  Reopen();
  EXPECT_GE(store_->Reclaim().value().freed_bytes, uint64_t{4} << 20);
  ExpectEmpty();
}

TEST_F(DropTest, RandomHistoryAgainstAModel) {
  std::mt19937 random(17);
  std::map<uint64_t, std::vector<TestTensor>> model;
  std::vector<TestTensor> state;
  for (int i = 0; i < 6; ++i) {
    state.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {40000 + 300000 * i}, i));
  }
  for (int round = 0; round < 120; ++round) {
    const int action = static_cast<int>(random() % 10);
    if (action < 6) {
      for (TestTensor& t : state) {
        if (random() % 3 == 0) t.bytes[random() % t.bytes.size()] ^= std::byte{0x55};
      }
      const uint64_t step = random() % 40;
      const SaveOptions replace{.on_existing = OnExisting::kReplace};
      VARVE_ASSERT_OK(Save(step, state, replace).status());
      model[step] = state;
    } else if (action < 9 && !model.empty()) {
      auto it = model.begin();
      std::advance(it, random() % model.size());
      VARVE_ASSERT_OK(DropSteps({it->first}, {.reclaim = random() % 2 == 0}));
      model.erase(it);
    } else {
      VARVE_ASSERT_OK(store_->Reclaim({.all = random() % 2 == 0}).status());
      if (random() % 2 == 0) Reopen();
    }
    if (round % 20 == 19) {
      for (const auto& [step, tensors] : model) ExpectHolds(step, tensors);
      ASSERT_THAT(store_->Check().value().errors, ::testing::IsEmpty()) << "round " << round;
    }
  }
  const StoreStats stats = GetStats();
  EXPECT_LE(stats.pending_bytes, stats.stored_bytes);
}

}  // namespace
}  // namespace varve::internal::testing
