// SPDX-License-Identifier: Apache-2.0
#include "varve/async_checkpointer.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <latch>
#include <thread>

#include "tests/store/internals.h"
#include "tests/support/sizes.h"
#include "tests/trainer_hooks/test_state.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The store of the fixture is closed while a checkpointer has it.
class AsyncCheckpointerTest : public StoreTest {
 protected:
  void Open(const CheckpointerOptions& options = {}) {
    store_.reset();
    ckpt_.reset();
    auto opened = AsyncCheckpointer::Open(path(), options);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    ckpt_ = *std::move(opened);
  }
  void TearDown() override {
    if (ckpt_ != nullptr) VARVE_EXPECT_OK(ckpt_->Close());
    ckpt_.reset();
    StoreTest::TearDown();
  }
  void ExpectSaved(uint64_t step, const std::vector<TestTensor>& tensors) {
    VARVE_ASSERT_OK(ckpt_->Wait());
    ExpectHolds(ckpt_->store(), step, tensors);
  }
  std::vector<uint64_t> Steps(const std::string& run = "main") {
    std::vector<uint64_t> steps;
    for (const CheckpointInfo& info : ckpt_->store().ListCheckpoints(run).value()) {
      steps.push_back(info.id.step);
    }
    return steps;
  }
  static Status SaveOk(const Result<bool>& saved) {
    if (!saved.ok()) return saved.status();
    return *saved ? Status::Ok() : Status::Aborted("skipped");
  }

  std::unique_ptr<AsyncCheckpointer> ckpt_;
};

TEST_F(AsyncCheckpointerTest, TheTrainerMayGoOnOnceItIsStaged) {
  Open();
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1'250'000}, 1));
  std::vector<std::vector<TestTensor>> snapshots;
  for (uint64_t step = 1; step <= 4; ++step) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(step, state.state())));
    snapshots.push_back(state.Snapshot());
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    for (size_t i = 0; i < t->bytes.size(); i += 4096) t->bytes[i] ^= std::byte{1};
  }
  VARVE_ASSERT_OK(ckpt_->Wait());
  for (uint64_t step = 1; step <= 4; ++step) ExpectSaved(step, snapshots[step - 1]);
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3, 4));
}

TEST_F(AsyncCheckpointerTest, AStateThatChangesAllTheTimeIsNeverSavedTorn) {
  if (kUnderTsan) GTEST_SKIP() << "a race on purpose";
  Open({.failure_is_fatal = false});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("busy", {1'000'000}, 1));
  std::atomic<bool> stop = false;
  std::jthread trainer([&] {
    for (size_t i = 0; !stop; i = (i + 4097) % t->bytes.size()) {
      std::atomic_ref<std::byte>(t->bytes[i]).store(std::byte{1});
      std::atomic_ref<std::byte>(t->bytes[i]).store(std::byte{2});
    }
  });
  for (uint64_t step = 1; step <= 5; ++step) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->Wait());
    const SaveStats metrics = ckpt_->last_stats().value();
    if (metrics.status.ok()) continue;
    EXPECT_THAT(metrics.status.ToString(), HasSubstr("tensor busy"));
  }
  stop = true;
  trainer.join();
  ckpt_->Close().IgnoreError();
  ckpt_.reset();
}

TEST_F(AsyncCheckpointerTest, AnOnSaveThatThrowsIsAnErrorOfTheSaverNotTheEnd) {
  Open({.failure_is_fatal = false, .on_save = [](const SaveStats& m) {
          if (m.step == 1) throw std::runtime_error("no disk for the log");
          if (m.step == 2) throw 5;
        }});
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  for (const uint64_t step : {1u, 2u, 3u}) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->Wait());
  }
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kUnavailable, "step 1: no disk for the log"));
  ckpt_.reset();
}

// The trainer forgets to call AwaitStaged, so it may change its tensors at any time.
TEST_F(AsyncCheckpointerTest, ASaveThatWasNotAwaitedIsNeverCommitted) {
  Open({.failure_is_fatal = false});
  TestState state;
  state.Add(NormalTensor("t", {1'000'000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(2, state.state())));
  EXPECT_THAT(
      ckpt_->BeginSave(3, state.state()),
      FailsWith(StatusCode::kFailedPrecondition,
                "step 2 is not saved: AwaitStaged has not been called since its BeginSave"));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(4, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_THAT(Steps(), ElementsAre(1, 4));
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(5, state.state())));
  EXPECT_THAT(ckpt_->RequireAwaited(), FailsWith(StatusCode::kFailedPrecondition, "step 5"));
  VARVE_ASSERT_OK(ckpt_->RequireAwaited());
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kFailedPrecondition, "step 2"));
  ckpt_.reset();
  Reopen();
  EXPECT_EQ(store_->ListCheckpoints("main").value().size(), 2u);
}

TEST_F(AsyncCheckpointerTest, ASaveThatWasNotAwaitedIsAFailureOfAllLaterCalls) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(1, state.state())));
  EXPECT_THAT(ckpt_->BeginSave(2, state.state()),
              FailsWith(StatusCode::kFailedPrecondition, "step 1 is not saved"));
  EXPECT_THAT(ckpt_->Wait(), FailsWith(StatusCode::kFailedPrecondition, "step 1"));
  EXPECT_THAT(ckpt_->BeginSave(3, state.state()),
              FailsWith(StatusCode::kFailedPrecondition, "step 1"));
  EXPECT_TRUE(ckpt_->store().ListRuns().value().empty());
  EXPECT_FALSE(ckpt_->Close().ok());
  ckpt_.reset();
}

TEST_F(AsyncCheckpointerTest, ASaveCommitsWhenItHasBeenAwaited) {
  std::atomic<bool> is_awaited = false;
  std::atomic<int> num_saved = 0;
  Open({.on_save = [&](const SaveStats&) {
    EXPECT_TRUE(is_awaited);
    ++num_saved;
  }});
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(1, state.state())));
  // However long the trainer's step takes.
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(ckpt_->store().OpenCheckpoint("main", 1), FailsWith(StatusCode::kNotFound, "main"));
  }
  is_awaited = true;
  VARVE_ASSERT_OK(ckpt_->AwaitStaged());
  ExpectSaved(1, state.Snapshot());
  EXPECT_EQ(num_saved, 1);
}

// The trainer calls AwaitStaged after its optimizer step.
TEST_F(AsyncCheckpointerTest, AnAwaitStagedThatComesTooLateIsFoundByTheCheck) {
  if (kUnderTsan) GTEST_SKIP() << "a race on purpose";
  for (const double share : {1.0, 1e-9}) {
    Open({.check_staging = share, .failure_is_fatal = false});
    TestState state;
    TestTensor* const frozen = state.Add(NormalTensor("frozen", {1'000'000}, 1));
    TestTensor* const moved = state.Add(NormalTensor("moved", {1'000'000}, 2));
    state.Add(NormalTensor("still", {10}, 3));
    for (uint64_t step = 1; step <= 4; ++step) {
      const auto before = state.Snapshot();
      const bool is_late = step % 2 == 0;
      VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(step, state.state())));
      if (!is_late) {
        VARVE_ASSERT_OK(ckpt_->AwaitStaged());
        for (size_t i = 0; i < moved->bytes.size(); i += 4096) moved->bytes[i] ^= std::byte{1};
        ExpectSaved(step, before);
        continue;
      }
      for (size_t i = 0; i < moved->bytes.size(); i += 4096) {
        moved->bytes[i] ^= std::byte{1};
        if (step == 4) frozen->bytes[i] ^= std::byte{1};
      }
      const std::string named =
          step == 4 ? "tensor frozen and 1 more" : "tensor moved changed between";
      EXPECT_THAT(ckpt_->AwaitStaged(), FailsWith(StatusCode::kFailedPrecondition, named));
      VARVE_ASSERT_OK(ckpt_->Wait());
      EXPECT_THAT(ckpt_->last_stats().value().status,
                  FailsWith(StatusCode::kFailedPrecondition, "tensor "));
    }
    EXPECT_THAT(Steps(), ElementsAre(1, 3));
    EXPECT_FALSE(ckpt_->Close().ok());
    ckpt_.reset();
    Reset({});
  }
}

TEST_F(AsyncCheckpointerTest, TheCheckLooksAtTensorsOfAnyKind) {
  Open({.check_staging = 0.5});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("strided", {600, 1000}, 1));
  StateTensor& view = state.state().tensors[0];  // its transpose
  view.shape = {1000, 600};
  view.strides = {1, 1000};
  state.Add({"empty", DType::kF32, {0, 3}, {}, {}});
  state.Add({"scalar", DType::kF64, {}, std::vector<std::byte>(8), {}});
  state.Add({"nibbles", DType::kF4, {3, 2}, std::vector<std::byte>(3), {}});
  for (uint64_t step = 1; step <= 3; ++step) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    t->bytes[step] ^= std::byte{1};
  }
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  VARVE_ASSERT_OK(ckpt_->Close());
  EXPECT_THAT(AsyncCheckpointer::Open(path(), {.check_staging = 2}),
              FailsWith(StatusCode::kInvalidArgument, "check_staging is 2"));
  ckpt_.reset();
}

TEST_F(AsyncCheckpointerTest, TheMetricsSayWhatASaveCost) {
  std::vector<SaveStats> all;
  Open({.on_save = [&](const SaveStats& m) { all.push_back(m); }});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {600'000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(10, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  t->bytes[0] ^= std::byte{1};
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(20, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  ASSERT_EQ(all.size(), 2u);
  const SaveStats& m = all[1];
  EXPECT_EQ(m.step, 20u);
  EXPECT_EQ(m.logical_bytes, 2'400'000u);
  EXPECT_EQ(m.changed_bytes, kMiB);
  EXPECT_EQ(m.staged_bytes, kMiB);
  EXPECT_EQ(m.new_bytes, kMiB);
  EXPECT_GT(m.stored_bytes, 0u);
  EXPECT_EQ(m.attempts, 1);
  EXPECT_GT(m.durable_seconds, 0);
  EXPECT_GE(m.durable_seconds, m.staged_seconds);
  const std::string text = ToString(m);
  EXPECT_THAT(text, HasSubstr("step 20 saved"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << "one line a save";
}

TEST_F(AsyncCheckpointerTest, SmallStagingMakesTheCallWaitAndSaysSo) {
  Open({.staging_budget_bytes = kMiB});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {5'000'000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  const auto snapshot = state.Snapshot();
  std::fill(t->bytes.begin(), t->bytes.end(), std::byte{7});
  ExpectSaved(1, snapshot);
  const SaveStats m = ckpt_->last_stats().value();
  EXPECT_GT(m.staged_bytes, 0u);
  EXPECT_LE(m.staged_bytes, kMiB);
  EXPECT_EQ(m.changed_bytes, 20'000'000u);
  EXPECT_GT(m.staging_wait_seconds, 0);
  EXPECT_THAT(ToString(m), HasSubstr("bytes fit the staging budget"));
}

TEST_F(AsyncCheckpointerTest, ASaveInFlightIsWaitedForOrSkipped) {
  for (const WhenBusy policy : {WhenBusy::kWait, WhenBusy::kSkip}) {
    Reset({});
    std::latch in_flight(1), go_on(1);
    Open({.when_busy = policy, .on_save = [&](const SaveStats& m) {
            if (m.step != 1) return;
            in_flight.count_down();
            go_on.wait();
          }});
    TestState state;
    state.Add(NormalTensor("t", {1000}, 1));
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
    in_flight.wait();
    if (policy == WhenBusy::kSkip) {
      EXPECT_FALSE(ckpt_->Save(2, state.state()).value());
      EXPECT_TRUE(ckpt_->last_stats().value().skipped);
      go_on.count_down();
      VARVE_ASSERT_OK(ckpt_->Wait());
      EXPECT_THAT(Steps(), ElementsAre(1));
    } else {
      std::jthread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        go_on.count_down();
      });
      EXPECT_TRUE(ckpt_->Save(2, state.state()).value());
      VARVE_ASSERT_OK(ckpt_->Wait());
      EXPECT_GT(ckpt_->last_stats().value().busy_wait_seconds, 0);
      EXPECT_THAT(Steps(), ElementsAre(1, 2));
    }
    VARVE_ASSERT_OK(ckpt_->Close());
    ckpt_.reset();
    Reopen();
  }
}

// The folder for new files is gone: what comes of a store that somebody deleted.
TEST_F(AsyncCheckpointerTest, AFailedSaveReachesTheTrainerAtItsNextCall) {
  Open();
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1'000'000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  const auto first = state.Snapshot();
  std::filesystem::rename(path() / "incoming", path() / "gone");
  t->bytes[0] ^= std::byte{1};
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(2, state.state())));
  ckpt_->AwaitStaged().IgnoreError();  // it may have failed already
  EXPECT_THAT(ckpt_->Wait(), FailsWith(StatusCode::kIOError, "step 2"));
  EXPECT_THAT(ckpt_->Save(3, state.state()), FailsWith(StatusCode::kIOError, "step 2"));
  EXPECT_THAT(ckpt_->AwaitStaged(), FailsWith(StatusCode::kIOError, "step 2"));
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kIOError, "step 2"));
  EXPECT_THAT(ckpt_->Save(4, state.state()), FailsWith(StatusCode::kFailedPrecondition, "closed"));
  ckpt_.reset();
  std::filesystem::rename(path() / "gone", path() / "incoming");
  Reopen();
  ExpectHolds(1, first);
}

// No file of this process can grow while it lives.
class FullDisk {
 public:
  FullDisk() {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~FullDisk() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

TEST_F(AsyncCheckpointerTest, ASaveThatCannotBeginFailsAwaitStaged) {
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  for (uint64_t step = 1; step <= 20; ++step) {  // a race would be won now and then
    Open();
    {
      const FullDisk full;
      VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(step, state.state())));
      EXPECT_THAT(ckpt_->AwaitStaged(), FailsWith(StatusCode::kIOError, "saving step"));
    }
    EXPECT_FALSE(ckpt_->Close().ok());
    ckpt_.reset();
  }
}

TEST_F(AsyncCheckpointerTest, AFailureMayBeTolerated) {
  Open({.failure_is_fatal = false});
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  std::filesystem::rename(path() / "incoming", path() / "gone");
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_FALSE(ckpt_->last_stats().value().status.ok());
  std::filesystem::rename(path() / "gone", path() / "incoming");
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(2, state.state())));
  ExpectSaved(2, state.Snapshot());
  EXPECT_THAT(ckpt_->Close(), FailsWith(StatusCode::kIOError, "step 1"));
  ckpt_.reset();
}

TEST_F(AsyncCheckpointerTest, AnIOErrorIsTriedAgain) {
  Open({.retries = 5});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1'000'000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  // Repeats until the pause was long enough for the first attempt to fail, whatever the load of the
  // machine.
  uint64_t step = 2;
  for (auto pause = std::chrono::milliseconds(500);; pause *= 3, ++step) {
    t->bytes[step] ^= std::byte{1};
    const auto snapshot = state.Snapshot();
    std::filesystem::rename(path() / "incoming", path() / "gone");
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    std::fill(t->bytes.begin(), t->bytes.end(), std::byte{7});
    std::this_thread::sleep_for(pause);
    std::filesystem::rename(path() / "gone", path() / "incoming");
    ExpectSaved(step, snapshot);
    if (ckpt_->last_stats().value().attempts > 1) break;
    ASSERT_LT(pause, std::chrono::seconds(10)) << "no attempt has failed";
  }
}

// The first save after a Restore moves later steps away, and that may fail, too.
TEST_F(AsyncCheckpointerTest, AnIOErrorBeforeTheSaveIsTriedAgain) {
  Open({.retries = 5});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1000}, 1));
  for (const uint64_t step : {1, 2}) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
  }
  // Repeats until the pause was long enough for the first attempt to fail, as above. The second
  // attempt comes a second later.
  for (auto pause = std::chrono::milliseconds(500);; pause *= 3) {
    VARVE_ASSERT_OK(ckpt_->Restore("1", {}, &state.state()).status());
    t->bytes[7] ^= std::byte{1};
    const auto snapshot = state.Snapshot();
    std::filesystem::rename(path() / "incoming", path() / "gone");
    std::thread back([&] {
      std::this_thread::sleep_for(pause);
      std::filesystem::rename(path() / "gone", path() / "incoming");
    });
    const auto start = std::chrono::steady_clock::now();
    const Status saved = SaveOk(ckpt_->Save(2, state.state()));
    const auto taken = std::chrono::steady_clock::now() - start;
    back.join();
    VARVE_ASSERT_OK(saved);
    ExpectSaved(2, snapshot);
    if (taken >= std::chrono::seconds(1)) break;
    ASSERT_LT(pause, std::chrono::seconds(10)) << "no attempt has failed";
  }
}

TEST_F(AsyncCheckpointerTest, RetentionRunsAfterTheCommitByNumber) {
  CheckpointerOptions options;  // GCC 12 takes the strings of an initialiser for uninitialised
  options.retention = {.keep_last = 1, .keep_best = {{.metric = "loss"}}, .keep_tags = {"*"}};
  Open(options);
  TestState state;
  TestTensor* const t = state.Add(RandomTensor("t", DType::kU8, {1 << 20}, 1));
  for (const uint64_t step : {999997u, 999998u, 999999u, 1000000u, 1000001u}) {
    t->bytes = RandomTensor("t", DType::kU8, {1 << 20}, step).bytes;
    state.state().tensors[0].data = t->bytes.data();
    state.state().metrics["loss"] = step == 999998 ? 1.0 : 2.0;
    state.state().tags.clear();
    if (step == 999999) state.state().tags = {"release"};
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->Wait());
  }
  EXPECT_THAT(Steps(), ElementsAre(999998, 999999, 1000001));
  const StoreStats stats = ckpt_->store().Stats().value();
  EXPECT_EQ(stats.num_chunks, 3u);
  EXPECT_EQ(stats.pending_bytes, 0u) << "the chunks of dropped steps are reclaimed";
}

// A record of reference counts is damaged, so what it counts is not released.
TEST_F(AsyncCheckpointerTest, WarningsOfTheRetentionAreInTheStats) {
  expect_damage_ = true;
  VARVE_ASSERT_OK(Save(1, {NormalTensor("t", {1000}, 1)}).status());
  VARVE_ASSERT_OK(Save(2, {NormalTensor("t", {1000}, 2)}).status());
  auto* const store = static_cast<StoreImpl*>(store_.get());
  CommitBatch batch;
  batch.Put(Family::kBirths, keys::Save(1), "nonsense");
  VARVE_ASSERT_OK(batch.Commit(store->database(), store->incoming(), {}));
  Open({.retention = RetentionPolicy{.keep_last = 2}});
  TestState state;
  state.Add(NormalTensor("t", {1000}, 3));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(3, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  const auto stats = ckpt_->last_stats();
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->dropped_steps, 1u);
  EXPECT_THAT(stats->warnings, ElementsAre(HasSubstr("save 1: save record")));
  EXPECT_THAT(ToString(*stats), HasSubstr("; warning: save 1: save record"));
}

TEST_F(AsyncCheckpointerTest, TheStepJustSavedStays) {
  Open({.retention = RetentionPolicy{.keep_every = 10}});
  TestState state;
  state.Add(NormalTensor("t", {100}, 1));
  for (const uint64_t step : {5u, 10u, 15u, 20u, 25u}) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->Wait());
    EXPECT_THAT(Steps(), ::testing::Contains(step));
  }
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 25));
}

TEST_F(AsyncCheckpointerTest, GoingBackMovesTheLaterStepsToAFork) {
  Open();
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1000}, 1));
  for (const uint64_t step : {80u, 90u, 100u, 200u}) {
    t->bytes[0] = static_cast<std::byte>(step);
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
  }
  EXPECT_EQ(ckpt_->Restore("90", {}, &state.state()).value().id.step, 90u);
  EXPECT_EQ(t->bytes[0], std::byte{90});
  EXPECT_THAT(Steps(), ElementsAre(80, 90, 100, 200)) << "a restore alone moves nothing";
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(95, state.state())));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(100, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_THAT(Steps(), ElementsAre(80, 90, 95, 100));
  EXPECT_THAT(Steps("main~1"), ElementsAre(100, 200));
  EXPECT_EQ(ckpt_->Restore("latest", {}, &state.state()).value().id.step, 100u);
  EXPECT_EQ(ckpt_->Restore(CheckpointId{"main", 80}, {}, &state.state()).value().id.step, 80u);
  EXPECT_THAT(ckpt_->Restore(CheckpointId{"main~1", 200}, {}, &state.state()),
              FailsWith(StatusCode::kInvalidArgument, "step 200 of run main~1 is not of run main"));
}

TEST_F(AsyncCheckpointerTest, AStepThatWouldNotBeTheNewestIsRefused) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(200, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  VARVE_ASSERT_OK(ckpt_->Close());
  Open({.failure_is_fatal = true});
  EXPECT_THAT(ckpt_->Save(100, state.state()),
              FailsWith(StatusCode::kFailedPrecondition, "has steps up to 200"));
  EXPECT_THAT(ckpt_->Save(200, state.state()), FailsWith(StatusCode::kAlreadyExists, "step 200"));
  // The caller's mistakes, not failures: what the message advises works.
  VARVE_ASSERT_OK(ckpt_->Restore("200", {}, &state.state()).status());
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(201, state.state())));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_THAT(Steps(), ElementsAre(200, 201));
}

TEST_F(AsyncCheckpointerTest, MetricsAndTagsComeLater) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  for (const uint64_t step : {1u, 2u}) {
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->SetMetrics(step, {{"accuracy", step == 1 ? 0.9 : 0.8}}));
  }
  VARVE_ASSERT_OK(ckpt_->SetTag(2, "candidate"));
  EXPECT_EQ(ckpt_->Restore("best:accuracy:max", {}, &state.state()).value().id.step, 1u);
  EXPECT_EQ(ckpt_->Restore("candidate", {}, &state.state()).value().id.step, 2u);
  EXPECT_THAT(ckpt_->SetMetrics(7, {{"a", 1}}), FailsWith(StatusCode::kNotFound, "step 7"));
  EXPECT_THAT(ckpt_->Restore("best:loss", {}, &state.state()),
              FailsWith(StatusCode::kNotFound, "loss"));
}

// They are not those of the checkpoint that the save would have replaced.
TEST_F(AsyncCheckpointerTest, MetricsAndTagsOfASaveThatFailedAreRefused) {
  Open({.on_existing = OnExisting::kReplace, .failure_is_fatal = false});
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_ASSERT_OK(ckpt_->SetMetrics(1, {{"loss", 0.5}}));
  VARVE_ASSERT_OK(SaveOk(ckpt_->BeginSave(1, state.state())));
  ckpt_->RequireAwaited().IgnoreError();  // so it fails
  const auto fails = FailsWith(StatusCode::kFailedPrecondition, "step 1");
  EXPECT_THAT(ckpt_->SetMetrics(1, {{"loss", 0.25}}), fails);
  EXPECT_THAT(ckpt_->SetTag(1, "candidate"), fails);
  EXPECT_EQ(ckpt_->store().ListCheckpoints("main").value()[0].metrics.at("loss"), 0.5);
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  VARVE_EXPECT_OK(ckpt_->SetTag(1, "candidate"));
  EXPECT_THAT(ckpt_->Close(), fails);
  ckpt_.reset();
}

TEST_F(AsyncCheckpointerTest, MetricsAndTagsOfASaveThatWasRefusedAreRefused) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state())));
  const auto fails = FailsWith(StatusCode::kAlreadyExists, "step 1");
  EXPECT_THAT(ckpt_->Save(1, state.state()), fails);
  EXPECT_THAT(ckpt_->SetMetrics(1, {{"loss", 0.25}}), fails);
  EXPECT_THAT(ckpt_->SetTag(1, "candidate"), fails);
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(2, state.state())));
  VARVE_EXPECT_OK(ckpt_->SetTag(1, "candidate"));  // the first one, as its caller now knows
}

TEST_F(AsyncCheckpointerTest, TheWholeTrainerStateComesBack) {
  Open();
  TestState saved;
  saved.Add(NormalTensor("t", {10}, 1));
  TrainingState& in = saved.state();
  in.items = {{"loader", std::nullopt, {std::byte{1}, std::byte{2}}},
              {"loader", 3, {std::byte{3}}}};
  in.trainer.global_step = 5;
  in.trainer.epoch = 2;
  in.trainer.consumed_samples = 1234567890123;
  in.trainer.last_loss = 0.1 + 0.2;
  in.trainer.lr_scheduler = {{"type", "cosine"},
                             {"max_lr", 1e-3},
                             {"warmup", int64_t{10}},
                             {"history", std::vector<double>{0.1, 5e-324}}};
  in.trainer.loss_scaler = {{"scale", 65536.0}};
  in.trainer.rng = {{.rank = 0, .generator = "cpu", .state = {1, 2, 3}},
                    {.rank = 1, .generator = "cuda:0", .state = {4}}};
  in.trainer.extra = {{"note", "x"}};
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(5, in)));
  TestState loaded;
  loaded.Add(NormalTensor("t", {10}, 2));
  VARVE_ASSERT_OK(ckpt_->Restore("latest", {}, &loaded.state()).status());
  const TrainingState& out = loaded.state();
  EXPECT_EQ(out.trainer.global_step, 5);
  EXPECT_EQ(out.trainer.epoch, 2);
  EXPECT_EQ(out.trainer.consumed_samples, 1234567890123);
  EXPECT_EQ(out.trainer.best_metric, std::numeric_limits<double>::infinity());
  EXPECT_EQ(out.trainer.last_loss, 0.1 + 0.2);
  EXPECT_EQ(out.trainer.lr_scheduler, in.trainer.lr_scheduler);
  EXPECT_EQ(out.trainer.loss_scaler, in.trainer.loss_scaler);
  EXPECT_EQ(out.trainer.extra, in.trainer.extra);
  ASSERT_EQ(out.trainer.rng.size(), 2u);
  EXPECT_EQ(out.trainer.rng[1].generator, "cuda:0");
  EXPECT_EQ(out.trainer.rng[1].state, in.trainer.rng[1].state);
  ASSERT_EQ(out.items.size(), 2u);
  for (const StateItem& item : out.items) {
    EXPECT_EQ(item.name, "loader");
    EXPECT_EQ(item.value.size(), item.rank.has_value() ? 1u : 2u);
  }
}

// This follows the llama3 example of InfiniTrain (seeds.md, section 6): tables of which a step
// touches few rows, a body of which it touches all, Adam, and four checkpoints.
TEST_F(AsyncCheckpointerTest, UnchangedChunksAreSharedAcrossSteps) {
  Open();
  constexpr int64_t kRows = 8'000, kWidth = 128, kBody = 200'000;
  TestState state;
  std::vector<TestTensor*> tables, bodies;
  for (const std::string kind : {"model.", "exp_avg.", "exp_avg_sq."}) {
    for (const std::string name : {"wte", "lm_head"}) {
      tables.push_back(state.Add(NormalTensor(kind + name, {kRows, kWidth}, tables.size())));
    }
    bodies.push_back(state.Add(NormalTensor(kind + "body", {kBody}, 10 + bodies.size())));
  }
  std::mt19937 random(1);
  uint64_t logical = 0, changed = 0;
  for (uint64_t step = 5; step <= 20; step += 5) {
    const auto touch = [&](TestTensor* t, size_t from, size_t count) {
      for (size_t i = from; i < from + count; ++i)
        t->bytes[4 * i] ^= static_cast<std::byte>(random());
    };
    for (TestTensor* t : tables) touch(t, 0, 500 * kWidth);  // the tokens of the text
    for (TestTensor* t : bodies) touch(t, 0, kBody);
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    VARVE_ASSERT_OK(ckpt_->Wait());
    logical += ckpt_->last_stats()->logical_bytes;
    changed += ckpt_->last_stats()->changed_bytes;
  }
  ExpectSaved(20, state.Snapshot());
  const StoreStats stats = ckpt_->store().Stats().value();
  EXPECT_EQ(stats.logical_bytes, logical);
  EXPECT_LE(changed, logical * 55 / 100);
  EXPECT_LE(stats.unique_bytes, logical * 55 / 100);
}

TEST_F(AsyncCheckpointerTest, BadStatesAreRefusedAtOnce) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {10}, 1));
  const auto refused = [&](const char* text) {
    EXPECT_THAT(ckpt_->BeginSave(1, state.state()), FailsWith(StatusCode::kInvalidArgument, text));
  };
  state.state().tensors.push_back(state.state().tensors[0]);
  refused("tensor t is in the state twice");
  state.state().tensors[1] = {{.name = "null", .shape = {4}}};
  refused("null");
  state.state().tensors.push_back({{.name = "void", .shape = {5}}});
  refused(
      "the state has 2 faults:\n"
      "tensor null: data is null, expected 16 bytes\n"
      "tensor void: data is null, expected 20 bytes");
  state.state().tensors.pop_back();
  state.state().tensors.pop_back();
  state.state().tags = {"12"};
  refused("looks like a number");
  state.state().tags.clear();
  state.state().items = {{"rank_00001/x", std::nullopt, {}}};
  refused("rank_00001/x");
  state.state().items = {{"x", 1, {}}, {"x", 1, {}}};
  refused("is in the state twice");
  state.state().items = {{"large", std::nullopt, std::vector<std::byte>((64 << 20) + 1)}};
  refused("at most 64 MiB");
  state.state().items.clear();
  state.state().metrics = {{"", 1.0}};
  refused("metric name");
}

TEST_F(AsyncCheckpointerTest, PrewarmedAndReleasedMemoryStillWorks) {
  Open();
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {1'000'000}, 1));
  VARVE_ASSERT_OK(ckpt_->Prewarm(state.state()));
  for (uint64_t step = 1; step <= 3; ++step) {
    t->bytes[step] ^= std::byte{1};
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
    if (step == 2) VARVE_ASSERT_OK(ckpt_->ReleaseStaging());
  }
  ExpectSaved(3, state.Snapshot());
  EXPECT_EQ(ckpt_->last_stats().value().staging_wait_seconds, 0);
}

TEST_F(AsyncCheckpointerTest, BeforeADeadlineTheCodecIsTheFastest) {
  Open();
  TestState state;
  state.Add(NormalTensor("t", {1'000'000}, 1));
  const auto now = std::chrono::steady_clock::now();
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(1, state.state(), {.deadline = now + std::chrono::hours(1)})));
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_EQ(ckpt_->last_stats().value().compression, Compression::kAuto);
  TestState other;
  other.Add(NormalTensor("t", {1'000'000}, 2));
  VARVE_ASSERT_OK(SaveOk(ckpt_->Save(2, other.state(), {.deadline = now})));
  ExpectSaved(2, other.Snapshot());
  EXPECT_EQ(ckpt_->last_stats().value().compression, Compression::kNone);
}

TEST_F(AsyncCheckpointerTest, ManyThreadsOfLowPrioritySaveTheSame) {
  if (kUnderTsan) GTEST_SKIP() << "TBB's hand-overs would be taken for races";
  Open({.store = {.num_threads = 4}});
  TestState state;
  TestTensor* const t = state.Add(NormalTensor("t", {5'000'000}, 1));
  for (uint64_t step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < t->bytes.size(); i += 1000) t->bytes[i] ^= std::byte{1};
    VARVE_ASSERT_OK(SaveOk(ckpt_->Save(step, state.state())));
  }
  ExpectSaved(3, state.Snapshot());
}

}  // namespace
}  // namespace varve::internal::testing
