// SPDX-License-Identifier: Apache-2.0
//
// What is lost comes back from a snapshot in an object store. If the object store does not answer,
// nothing counts as lost.
#include <atomic>

#include "tests/store/remote/flaky_objects.h"
#include "tests/store/repair_fixture.h"
#include "varve/remote.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class RemoteRepairTest : public RepairTest {
 protected:
  void SetUp() override {
    RepairTest::SetUp();
    AddEngine("flaky", FlakyObjects::Open);
    FlakyObjects::decide() = nullptr;
  }
  void TearDown() override {
    FlakyObjects::decide() = nullptr;
    RepairTest::TearDown();
  }

  std::string url(const std::string& name = "remote") const {
    return "flaky://x" + (folder_.path() / name).string();
  }
  // A copy of the store without the table of the chunks of its newest step, main@4.
  fs::path NewDamaged() {
    const fs::path store = NewCopy();
    fs::remove(store / "db" / NewestChunks());
    return store;
  }
  void DropLargeStep() {
    Reopen();
    VARVE_ASSERT_OK(DropSteps({5}));
    VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
    store_.reset();
  }
  // Saves step 5, whose chunks are so many that they are no part of a pack, pushes the store, and
  // returns a copy of it without these chunks.
  fs::path PushWithLargeStep() {
    Reopen();
    VARVE_EXPECT_OK(
        Save(5, {RandomTensor("large", DType::kU8, {int64_t{3} << 20}, ++seed_)}).status());
    store_.reset();
    VARVE_EXPECT_OK(Push(path(), url()).status());
    return NewDamaged();
  }
  void ExpectAllIsThere(const fs::path& store, const RepairReport& report) {
    EXPECT_THAT(report.lost, IsEmpty());
    EXPECT_EQ(report.kept.size(), whole_.size());
    const Steps steps = ReadAll(store);
    EXPECT_EQ(steps.size(), whole_.size());
    for (const auto& [id, text] : steps) {
      EXPECT_TRUE(text == whole_.at(id)) << StepName(id.first, id.second);
    }
    ExpectRepaired(store, report);
  }

  uint64_t seed_ = 100;
};

TEST_F(RemoteRepairTest, ASnapshotBringsBackWhatIsLost) {
  VARVE_ASSERT_OK(Push(path(), url()).status());
  int from_backup = 0;
  for (const std::string& file : {NewestChunks(), LargestTable()}) {
    SCOPED_TRACE(file);
    const fs::path store = NewCopy();
    fs::remove(store / "db" / file);
    const auto dry = RepairStore(store, {.dry_run = true, .from = url()});
    ASSERT_TRUE(dry.ok()) << dry.status().ToString();
    EXPECT_THAT(dry->lost, IsEmpty());
    const auto report = RepairStore(store, {.from = url()});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (const auto& step : report->kept) from_backup += step.is_from_backup ? 1 : 0;
    ExpectAllIsThere(store, *report);
  }
  EXPECT_GE(from_backup, 2);
}

TEST_F(RemoteRepairTest, ASnapshotOfChosenStepsBringsThemBack) {
  VARVE_ASSERT_OK(Push(path(), url(), {.steps = {"main@4"}}).status());
  const fs::path store = NewDamaged();
  const auto report = RepairStore(store, {.from = url()});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectAllIsThere(store, *report);
}

TEST_F(RemoteRepairTest, ASnapshotOfAnotherStoreIsRefused) {
  const fs::path other = folder_.path() / "other";
  ASSERT_TRUE(Store::Create(other).ok());
  VARVE_ASSERT_OK(Push(other, url()).status());
  const fs::path store = NewDamaged();
  const auto before = Contents(store);
  EXPECT_THAT(RepairStore(store, {.from = url()}),
              FailsWith(StatusCode::kFailedPrecondition, "is no backup of"));
  EXPECT_THAT(RepairStore(store, {.from = url("nothing")}),
              FailsWith(StatusCode::kNotFound, "nothing"));
  EXPECT_THAT(RepairStore(store, {.from = "unknown://x/y"}),
              FailsWith(StatusCode::kInvalidArgument, "unknown"));
  EXPECT_TRUE(Contents(store) == before);
  EXPECT_FALSE(fs::exists(store.string() + "~repair"));
}

// Each request in turn is the last that is answered.
TEST_F(RemoteRepairTest, AnObjectStoreThatDoesNotAnswerLosesNoStep) {
  const fs::path store = PushWithLargeStep();
  const auto before = Contents(store);
  for (const Fault fault : {Fault::kLost, Fault::kFailed}) {
    const StatusCode code = fault == Fault::kLost ? StatusCode::kUnavailable : StatusCode::kIOError;
    int answered = 0;
    for (bool is_done = false; !is_done; ++answered) {
      SCOPED_TRACE("answered: " + std::to_string(answered));
      ASSERT_LT(answered, 1000);
      std::atomic<int> calls{0};
      FlakyObjects::decide() = [&](std::string_view, const std::string&) {
        return ++calls > answered ? fault : Fault::kNone;
      };
      const auto report = RepairStore(store, {.dry_run = true, .from = url()});
      is_done = calls <= answered;
      EXPECT_EQ(report.ok(), is_done) << report.status().ToString();
      if (report.ok()) {
        EXPECT_THAT(report->lost, IsEmpty());
      } else {
        EXPECT_EQ(report.status().code(), code) << report.status().ToString();
      }
    }
    EXPECT_GT(answered, 7);  // so chunks were read on their own
    FlakyObjects::decide() = [&, calls = 0](std::string_view, const std::string&) mutable {
      return ++calls > 6 ? fault : Fault::kNone;
    };
    EXPECT_THAT(RepairStore(store, {.keep_partial = true, .from = url(), .progress = {}}),
                FailsWith(code, fault == Fault::kLost ? "outcome unknown" : "refused"));
    EXPECT_TRUE(Contents(store) == before);
    EXPECT_FALSE(fs::exists(store.string() + "~repair"));
  }
}

// Another push and a collection remove the snapshot, when it is opened or later.
TEST_F(RemoteRepairTest, ASnapshotThatIsRemovedMeanwhileLosesNoStep) {
  const std::string below = "file:///" + (folder_.path() / "remote").string().substr(1);
  for (const int last_get : {1, 5}) {
    SCOPED_TRACE(last_get);
    const fs::path store = PushWithLargeStep();
    const auto before = Contents(store);
    DropLargeStep();
    std::atomic<int> gets{0};
    FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
      if (call == "get" && gets++ == last_get) {
        VARVE_EXPECT_OK(Push(path(), below).status());
        VARVE_EXPECT_OK(ReclaimRemote(below, {.keep_last = 1}).status());
      }
      return Fault::kNone;
    };
    EXPECT_THAT(RepairStore(store, {.from = url()}),
                FailsWith(StatusCode::kFailedPrecondition, "removed"));
    FlakyObjects::decide() = nullptr;
    EXPECT_GT(gets, last_get);
    EXPECT_TRUE(Contents(store) == before);
  }
}

// Nothing answers for a moment, when the repair asks why a blob is missing. So nobody knows.
TEST_F(RemoteRepairTest, ASnapshotThatIsRemovedWhileNothingAnswersLosesNoStep) {
  const std::string below = "file:///" + (folder_.path() / "remote").string().substr(1);
  const fs::path store = PushWithLargeStep();
  const auto before = Contents(store);
  DropLargeStep();
  constexpr int kLastGet = 5;
  std::atomic<int> gets{0}, unanswered{0};
  std::atomic<bool> is_after_get{false};
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    if (call == "get" && gets++ == kLastGet) {
      VARVE_EXPECT_OK(Push(path(), below).status());
      VARVE_EXPECT_OK(ReclaimRemote(below, {.keep_last = 1}).status());
    }
    const bool asks_why = is_after_get.exchange(call == "get") && call != "get";
    if (!asks_why || gets <= kLastGet) return Fault::kNone;
    ++unanswered;
    return Fault::kLost;
  };
  EXPECT_THAT(RepairStore(store, {.from = url()}),
              FailsWith(StatusCode::kUnavailable, "outcome unknown"));
  FlakyObjects::decide() = nullptr;
  EXPECT_GT(unanswered, 0);
  EXPECT_TRUE(Contents(store) == before);
}

// A blob of the snapshot is damaged: that is damage, and the rest is taken.
TEST_F(RemoteRepairTest, ADamagedSnapshotGivesWhatItHas) {
  VARVE_ASSERT_OK(Push(path(), url()).status());
  const fs::path store = NewCopy();
  fs::remove(store / "db" / LargestTable());
  const std::string some = Slurp(path() / "db" / LargestTable()).substr(1000, 100);
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path() / "remote")) {
    if (!entry.is_regular_file()) continue;
    const size_t at = Slurp(entry.path()).find(some);
    if (at != std::string::npos) FlipBit(entry.path(), at);
  }
  const auto report = RepairStore(store, {.from = url()});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_FALSE(report->lost.empty());
  EXPECT_EQ(report->kept.size() + report->lost.size(), whole_.size());
}

}  // namespace
}  // namespace varve::internal::testing
