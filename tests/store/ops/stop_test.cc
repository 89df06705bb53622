// SPDX-License-Identifier: Apache-2.0
//
// Tests that a StopScope ends the long calls of its thread, and that nothing half done is left.
#include "varve/stop.h"

#include <optional>
#include <thread>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr std::string_view kAsked = "stopped, as the caller asked";

class StopTest : public StoreTest {
 protected:
  // Two chunks are in flight at a time, so that most are not when the first has come through.
  void SetUp() override { Reset({.store = {.pipeline_budget_bytes = 1}}); }

  std::filesystem::path other() const { return folder_.path() / "other"; }

  std::atomic<bool> stop_{false};
  const TestTensor old_ = NormalTensor("t", {4 << 20}, 1);
  const TestTensor new_ = NormalTensor("t", {4 << 20}, 2);
};

TEST_F(StopTest, ACommitThatIsStoppedInTheMiddleLeavesNothing) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  std::vector<uint64_t> done;
  const auto note_and_stop = [&](uint64_t done_bytes, uint64_t) {
    done.push_back(done_bytes);
    stop_ = true;
  };
  {
    const StopScope scope(&stop_);
    EXPECT_THAT(Save(2, {new_}, {.progress = note_and_stop}),
                FailsWith(StatusCode::kAborted, kAsked));
    EXPECT_THAT(Save(1, {new_}, {.on_existing = OnExisting::kReplace}),
                FailsWith(StatusCode::kAborted, "saving step 1 of run main"));
  }
  ASSERT_FALSE(done.empty());
  EXPECT_LT(done.back(), new_.bytes.size());  // it was in the middle
  EXPECT_TRUE(std::filesystem::is_empty(path() / "incoming"));
  EXPECT_EQ(GetStats().num_steps, 1u);
  ExpectHolds(1, {old_});
  VARVE_ASSERT_OK(Save(2, {new_}).status());  // the flag is set, but the scope is gone
  ExpectHolds(2, {new_});
}

TEST_F(StopTest, ReadsAreStopped) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  std::vector<std::byte> out(old_.bytes.size());
  const Range few[] = {{7, 9}};
  const StopScope scope(&stop_);
  VARVE_EXPECT_OK(reader->Read("t", out));
  stop_ = true;
  EXPECT_THAT(reader->Read("t", out), FailsWith(StatusCode::kAborted, kAsked));
  EXPECT_THAT(reader->ReadSlice("t", few, std::span(out).first(8)),
              FailsWith(StatusCode::kAborted, kAsked));
  stop_ = false;
  VARVE_EXPECT_OK(reader->Read("t", out));
  EXPECT_TRUE(out == old_.bytes);
}

TEST_F(StopTest, ACheckIsStoppedAndSaysNothingAboutTheStore) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  const StopScope scope(&stop_);
  const auto stop = [&](uint64_t, uint64_t) { stop_ = true; };
  EXPECT_THAT(store_->Check({.read_data = true, .progress = stop}),
              FailsWith(StatusCode::kAborted, kAsked));
  ASSERT_TRUE(stop_);
  EXPECT_THAT(store_->Check({}), FailsWith(StatusCode::kAborted, kAsked));
}

TEST_F(StopTest, ADiffIsStopped) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  VARVE_ASSERT_OK(Save(2, {new_}).status());
  stop_ = true;
  const StopScope scope(&stop_);
  EXPECT_THAT(store_->Diff({"main", 1}, {"main", 2}, {.values = true}),
              FailsWith(StatusCode::kAborted, kAsked));
}

TEST_F(StopTest, ACopyIsStoppedBetweenChunksAndKeepsWholeSteps) {
  const TestTensor larger = NormalTensor("t", {5 << 20}, 3);
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  VARVE_ASSERT_OK(Save(2, {larger}).status());
  auto to = Store::Create(other()).value();
  const CheckpointId ids[] = {{"main", 1}, {"main", 2}};
  const auto stop_at_second = [&](uint64_t, uint64_t total_bytes) {
    stop_ = total_bytes == larger.bytes.size();
  };
  {
    const StopScope scope(&stop_);
    EXPECT_THAT(store_->CopyTo(to.get(), ids, {.progress = stop_at_second}),
                FailsWith(StatusCode::kAborted, "copying step 2 of run main"));
  }
  EXPECT_EQ(to->Stats()->num_steps, 1u);
  ExpectHolds(*to, 1, {old_});
  EXPECT_TRUE(to->Check({.read_data = true})->ok());
}

TEST_F(StopTest, ABackupIsStoppedAndTheEarlierCopyStays) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  VARVE_ASSERT_OK(BackUp(path(), other()).status());
  VARVE_ASSERT_OK(Save(2, {new_}).status());
  {
    const StopScope scope(&stop_);
    const auto stop = [&](uint64_t, uint64_t) { stop_ = true; };
    EXPECT_THAT(BackUp(path(), other(), {.progress = stop}),
                FailsWith(StatusCode::kAborted, kAsked));
    ASSERT_TRUE(stop_);
  }
  {
    const auto copy = Store::OpenForReading(other()).value();
    EXPECT_EQ(copy->Stats()->num_steps, 1u);
    ExpectHolds(*copy, 1, {old_});
  }
  VARVE_ASSERT_OK(BackUp(path(), other()).status());
  ExpectHolds(*Store::OpenForReading(other()).value(), 2, {new_});
}

TEST_F(StopTest, AReclaimIsStoppedAndTheNextFreesTheRest) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  VARVE_ASSERT_OK(Save(2, {new_}).status());
  const CheckpointId ids[] = {{"main", 1}};
  {
    stop_ = true;
    const StopScope scope(&stop_);
    EXPECT_THAT(store_->Drop(ids), FailsWith(StatusCode::kAborted, "the steps are dropped"));
    EXPECT_THAT(store_->Reclaim(), FailsWith(StatusCode::kAborted, kAsked));
  }
  EXPECT_EQ(GetStats().num_steps, 1u);
  EXPECT_TRUE(store_->Check({.read_data = true})->ok());
  EXPECT_GT(store_->Reclaim()->freed_bytes, old_.bytes.size() / 2);
  ExpectHolds(2, {new_});
}

TEST_F(StopTest, AScopeIsOfItsThreadAndTheInnerHidesTheOuter) {
  VARVE_ASSERT_OK(Save(1, {old_}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  const auto read = [&] {
    std::vector<std::byte> out(old_.bytes.size());
    return reader->Read("t", out);
  };
  stop_ = true;
  const StopScope scope(&stop_);
  std::optional<Status> elsewhere;
  std::thread([&] { elsewhere = read(); }).join();
  VARVE_EXPECT_OK(*elsewhere);
  {
    const std::atomic<bool> never{false};
    const StopScope inner(&never);
    VARVE_EXPECT_OK(read());
  }
  EXPECT_THAT(read(), FailsWith(StatusCode::kAborted, kAsked));
}

}  // namespace
}  // namespace varve::internal::testing
