// SPDX-License-Identifier: Apache-2.0
//
// A checkpointer that pushes in the background, to a folder that fails when a test says so.
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/store/remote/flaky_objects.h"
#include "tests/trainer_hooks/test_state.h"
#include "varve/async_checkpointer.h"
#include "varve/remote.h"
#include "varve/stop.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BackgroundPusherTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    store_.reset();
    AddEngine("flaky", FlakyObjects::Open);
    FlakyObjects::decide() = [this](std::string_view, const std::string&) { return fault_.load(); };
  }
  void TearDown() override {
    ckpt_.reset();
    FlakyObjects::decide() = nullptr;
    fs::remove_all(place());
    StoreTest::TearDown();
  }

  fs::path place() const { return folder_.path() / "remote"; }
  std::string url() const { return "flaky://x" + place().string(); }
  fs::path host(int number) const { return folder_.path() / ("host" + std::to_string(number)); }

  CheckpointerOptions Options(RemoteOptions remote = {}) {
    remote.url = url();
    remote.on_push = [this](const PushStats& stats) {
      const std::lock_guard lock(mutex_);
      pushes_.push_back(stats);
    };
    return {.remote = std::move(remote)};
  }
  Status OpenAt(int number, const CheckpointerOptions& options) {
    ckpt_.reset();
    VARVE_ASSIGN_OR_RETURN(ckpt_, AsyncCheckpointer::Open(host(number), options));
    return Status::Ok();
  }
  // Saves a step with content of its own.
  Status SaveStep(uint64_t step) {
    TestState state;
    Fill(step, &state);
    VARVE_ASSIGN_OR_RETURN(const bool saved, ckpt_->Save(step, state.state()));
    if (!saved) return Status::Aborted("skipped");
    return ckpt_->Wait();
  }
  static void Fill(uint64_t step, TestState* state) {
    state->Add(NormalTensor("w", {300'000}, step));
    state->Add(NormalTensor("frozen", {300'000}, 1000));
  }
  void ExpectRestores(const std::string& step, uint64_t content) {
    TestState state;
    Fill(1'000'000, &state);
    const auto report = ckpt_->Restore(step, {}, &state.state());
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->id.step, content);
    TestState expected;
    Fill(content, &expected);
    const auto is = state.Snapshot(), should = expected.Snapshot();
    for (size_t i = 0; i < should.size(); ++i) EXPECT_EQ(is[i].bytes, should[i].bytes) << i;
  }
  std::vector<uint64_t> Steps(const std::string& run = "main") {
    return StepsOf(ckpt_->store(), run);
  }
  static std::vector<uint64_t> StepsOf(const Store& store, const std::string& run) {
    std::vector<uint64_t> steps;
    for (const CheckpointInfo& info : store.ListCheckpoints(run).value()) {
      steps.push_back(info.id.step);
    }
    return steps;
  }
  std::vector<uint64_t> RemoteSteps() { return StepsOf(**OpenRemote(url()), "main"); }
  void AwaitPushOf(uint64_t step) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        for (const PushStats& each : pushes_) {
          if (each.status.ok() && each.step >= step) return;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  size_t NumFailed() {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(pushes_.begin(), pushes_.end(),
                                             [](const auto& each) { return !each.status.ok(); }));
  }
  void AwaitFailure() {
    while (NumFailed() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  std::atomic<Fault> fault_{Fault::kNone};
  std::mutex mutex_;
  std::vector<PushStats> pushes_;  // guarded by mutex_
  std::unique_ptr<AsyncCheckpointer> ckpt_;
};

TEST_F(BackgroundPusherTest, ATrainingGoesOnWhereTheDiskIsNew) {
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  for (uint64_t step = 1; step <= 3; ++step) VARVE_ASSERT_OK(SaveStep(step));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(RemoteSteps(), ElementsAre(1, 2, 3));
  fs::remove_all(host(1));
  VARVE_ASSERT_OK(OpenAt(2, Options()));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  ExpectRestores("latest", 3);
  VARVE_ASSERT_OK(SaveStep(4));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(RemoteSteps(), ElementsAre(1, 2, 3, 4));
  const auto stats = ckpt_->last_push();
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->step, 4);
  EXPECT_GT(stats->sent_bytes, 100'000);
  // What did not change has not been sent again.
  EXPECT_LT(stats->sent_bytes, 2'000'000);
  EXPECT_THAT(ToString(*stats), HasSubstr("pushed step 4 as snapshot"));
}

// The process was killed just before the pull had put FORMAT in its place.
// A training that started afresh would push its steps in place of those that are there.
TEST_F(BackgroundPusherTest, ATrainingDoesNotStartAfreshWhereRecordsWereLost) {
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  VARVE_ASSERT_OK(SaveStep(1));
  VARVE_ASSERT_OK(ckpt_->Close());
  for (const bool loses_all : {false, true}) {
    std::string newest;
    for (const auto& entry : fs::directory_iterator(place() / "records")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("state-")) newest = std::max(newest, name);
    }
    fs::remove_all(place() / "records" / (loses_all ? "" : newest));
    const std::string missing = loses_all ? "all records state-" : newest;
    for (const int number : {1, 2}) {
      EXPECT_THAT(OpenAt(number, Options()), FailsWith(StatusCode::kCorruption, missing));
    }
    EXPECT_FALSE(fs::exists(host(2)));
  }
}

TEST_F(BackgroundPusherTest, APullThatWasCutShortIsDoneAgain) {
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  VARVE_ASSERT_OK(SaveStep(1));
  VARVE_ASSERT_OK(ckpt_->Close());
  VARVE_ASSERT_OK(Pull(url(), host(2)).status());
  fs::remove(host(2) / "FORMAT");
  fs::create_directories(host(2) / "staging" / "db");
  VARVE_ASSERT_OK(OpenAt(2, Options()));
  ExpectRestores("latest", 1);
}

TEST_F(BackgroundPusherTest, TheIntervalAndTheNumberOfSnapshotsAreKept) {
  VARVE_ASSERT_OK(OpenAt(1, Options({.interval = 3, .keep = 2})));
  for (uint64_t step = 1; step <= 10; ++step) {
    VARVE_ASSERT_OK(SaveStep(step));
    if (step % 3 == 0) AwaitPushOf(step);
  }
  VARVE_ASSERT_OK(ckpt_->Close());
  std::vector<uint64_t> pushed;
  for (const PushStats& each : pushes_) pushed.push_back(each.step);
  EXPECT_THAT(pushed, ElementsAre(3, 6, 9, 10));
  const auto snapshots = ListSnapshots(url());
  ASSERT_TRUE(snapshots.ok());
  ASSERT_THAT(*snapshots, SizeIs(2));
  EXPECT_EQ(snapshots->back().number, 4);
  const auto left = ReclaimRemote(url());
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left->removed_blobs, 0);
}

// A remote that is down delays pushes. Training goes on, the retention waits, and nothing is lost.
// A trainer that keeps all processors busy hardly notices a push.
TEST_F(BackgroundPusherTest, APushUsesIdleProcessorsOnly) {
  CheckpointerOptions options = Options();
  std::atomic<int> policy{-1};
  options.remote->on_push = [&policy](const PushStats&) { policy = ::sched_getscheduler(0); };
  VARVE_ASSERT_OK(OpenAt(1, options));
  VARVE_ASSERT_OK(SaveStep(1));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_EQ(policy, SCHED_IDLE);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

TEST_F(BackgroundPusherTest, ARemoteThatIsDownOnlyDelays) {
  CheckpointerOptions options = Options();
  options.retention = RetentionPolicy{.keep_last = 1};
  VARVE_ASSERT_OK(OpenAt(1, options));
  fault_ = Fault::kLost;
  for (uint64_t step = 1; step <= 3; ++step) VARVE_ASSERT_OK(SaveStep(step));
  AwaitFailure();
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  VARVE_EXPECT_OK(ckpt_->failure());
  const PushStats last = *ckpt_->last_push();
  EXPECT_THAT(last.status.ToString(), HasSubstr("outcome unknown"));
  EXPECT_GE(last.failures, 1);
  EXPECT_THAT(ToString(last), HasSubstr("failed (" + std::to_string(last.failures) + " in a row)"));
  fault_ = Fault::kNone;
  AwaitPushOf(3);
  EXPECT_THAT(RemoteSteps(), ElementsAre(1, 2, 3));
  VARVE_ASSERT_OK(SaveStep(4));
  EXPECT_THAT(Steps(), ElementsAre(4));
  VARVE_ASSERT_OK(ckpt_->Close());
  // The push may have begun before the retention dropped the others.
  EXPECT_THAT(RemoteSteps(), Contains(4));
}

TEST_F(BackgroundPusherTest, WhoDoesNotWantToWaitDropsAtOnce) {
  CheckpointerOptions options = Options({.retention_waits = false});
  options.retention = RetentionPolicy{.keep_last = 1};
  VARVE_ASSERT_OK(OpenAt(1, options));
  fault_ = Fault::kLost;
  for (uint64_t step = 1; step <= 3; ++step) VARVE_ASSERT_OK(SaveStep(step));
  EXPECT_THAT(Steps(), ElementsAre(3));
  fault_ = Fault::kNone;
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(RemoteSteps(), ElementsAre(3));
}

// What could not be pushed at last is an error of Close, and the next job pushes it.
TEST_F(BackgroundPusherTest, NothingIsLostWithoutAnError) {
  VARVE_ASSERT_OK(OpenAt(1, Options({.close_timeout = std::chrono::milliseconds(300)})));
  VARVE_ASSERT_OK(SaveStep(1));
  AwaitPushOf(1);
  fault_ = Fault::kFailed;
  VARVE_ASSERT_OK(SaveStep(2));
  AwaitFailure();
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kIOError, "step 2 is not in flaky://x"));
  VARVE_EXPECT_OK(Store::OpenForReading(host(1)).status());
  fault_ = Fault::kNone;
  EXPECT_THAT(RemoteSteps(), ElementsAre(1));
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  AwaitPushOf(2);
  EXPECT_THAT(RemoteSteps(), ElementsAre(1, 2));
  VARVE_ASSERT_OK(ckpt_->Close());
}

TEST_F(BackgroundPusherTest, WhoWantsToStopNeedNotWaitForTheLastPush) {
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  fault_ = Fault::kFailed;
  VARVE_ASSERT_OK(SaveStep(1));
  AwaitFailure();
  std::atomic<bool> stop{false};
  std::jthread stopper([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop = true;
  });
  const StopScope scope(&stop);
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kAborted, "step 1 is not in flaky://x"));
  fault_ = Fault::kNone;
}

TEST_F(BackgroundPusherTest, AFailureIsFatalIfAsked) {
  VARVE_ASSERT_OK(OpenAt(
      1, Options({.failure_is_fatal = true, .close_timeout = std::chrono::milliseconds(10)})));
  fault_ = Fault::kFailed;
  VARVE_ASSERT_OK(SaveStep(1));
  AwaitFailure();
  TestState state;
  Fill(2, &state);
  EXPECT_THAT(ckpt_->BeginSave(2, state.state()), FailsWith(StatusCode::kIOError, "refused"));
  EXPECT_THAT(ckpt_->failure(), FailsWith(StatusCode::kIOError, "refused"));
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kIOError, "step 1 is not in"));
}

// The folder has the last step only. Others come from the snapshots that have them, and the run
// goes on from there.
TEST_F(BackgroundPusherTest, AStepThatIsNotHereIsFetched) {
  CheckpointerOptions options = Options();
  options.retention = RetentionPolicy{.keep_last = 1};
  VARVE_ASSERT_OK(OpenAt(1, options));
  for (uint64_t step = 1; step <= 4; ++step) {
    VARVE_ASSERT_OK(SaveStep(step));
    AwaitPushOf(step);
  }
  VARVE_ASSERT_OK(SaveStep(5));
  EXPECT_THAT(Steps(), ElementsAre(5));
  ExpectRestores("2", 2);
  EXPECT_THAT(Steps(), ElementsAre(2, 5));
  VARVE_ASSERT_OK(SaveStep(3));
  EXPECT_THAT(Steps("main~1"), ElementsAre(5));
  TestState state;
  Fill(1, &state);
  EXPECT_THAT(ckpt_->Restore("7", {}, &state.state()),
              FailsWith(StatusCode::kNotFound, "no snapshot of"));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_EQ(RemoteSteps().back(), 3);
}

// A host whose disk is of an earlier job must not go on from there.
TEST_F(BackgroundPusherTest, AnOlderStoreIsRefused) {
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  VARVE_ASSERT_OK(SaveStep(1));
  VARVE_ASSERT_OK(ckpt_->Close());
  VARVE_ASSERT_OK(OpenAt(2, Options()));
  VARVE_ASSERT_OK(SaveStep(2));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(OpenAt(1, Options()),
              FailsWith(StatusCode::kFailedPrecondition, "has step 2 in flaky://x"));
  VARVE_ASSERT_OK(Store::Create(host(3)).status());
  EXPECT_THAT(OpenAt(3, Options()),
              FailsWith(StatusCode::kFailedPrecondition, "snapshots of another store"));
  // Without the object store nobody can know it, and a new folder cannot be filled.
  fault_ = Fault::kLost;
  VARVE_EXPECT_OK(OpenAt(2, Options({.close_timeout = std::chrono::milliseconds(1)})));
  ckpt_->Close().IgnoreError();
  EXPECT_THAT(OpenAt(4, Options()), FailsWith(StatusCode::kUnavailable, "outcome unknown"));
  EXPECT_THAT(OpenAt(2, Options({.interval = 0})),
              FailsWith(StatusCode::kInvalidArgument, "at least 1"));
  fault_ = Fault::kNone;
}

// Saves are not slower because a push hangs, and Close ends it.
TEST_F(BackgroundPusherTest, SavesDoNotWaitForAPushThatHangs) {
  std::atomic<bool> hangs{true};
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    while (hangs && call == "put") std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Fault::kNone;
  };
  VARVE_ASSERT_OK(OpenAt(1, Options()));
  for (uint64_t step = 1; step <= 5; ++step) VARVE_ASSERT_OK(SaveStep(step));
  EXPECT_THAT(pushes_, IsEmpty());
  hangs = false;
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(RemoteSteps(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_LE(pushes_.size(), 3);  // steps that were saved meanwhile went together
}

}  // namespace
}  // namespace varve::internal::testing
