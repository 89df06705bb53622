// SPDX-License-Identifier: Apache-2.0
//
// A disk that is full or fails for one call, at each call in turn. There must be no abort, nothing
// lost and no torn step. The same store, still open, can be written to once the fault is gone. With
// VARVE_FULL_SIZE=1 every call fails once. Otherwise only some calls do, but all calls on the
// manifest.
#include <cerrno>
#include <cstdlib>
#include <iostream>

#include "tests/store/internals.h"
#include "tests/support/failing_io.h"
#include "varve/backup.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

bool FullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

class FaultsTest : public InternalsTest {
 protected:
  using Operation = std::function<Status()>;

  void SetUp() override {}  // Start makes the store
  TestTensor Weights(uint64_t step) const { return RandomTensor("w", DType::kU8, {30000}, step); }
  TestTensor Same() const { return RandomTensor("same", DType::kU8, {30000}, 77); }

  // Makes a store with steps 1 to 3. Step 1 is tagged.
  void Start() {
    Reset({.digest_seed = 1, .store = closing_options_});
    for (const uint64_t step : {1, 2, 3}) {
      VARVE_ASSERT_OK(Save(step, {Weights(step), Same()}).status());
    }
    VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "first"));
    fs::remove_all(path().string() + ".copy");
  }

  // All steps of all runs are whole, `kept` among them, and a save works.
  void ExpectUsable(const std::vector<uint64_t>& kept, const std::string& where) {
    const auto runs = store_->ListRuns();
    ASSERT_TRUE(runs.ok()) << where << ": " << runs.status().ToString();
    std::set<uint64_t> found;
    for (const RunInfo& run : *runs) {
      const auto steps = store_->ListCheckpoints(run.name);
      ASSERT_TRUE(steps.ok()) << where << ": " << steps.status().ToString();
      for (const CheckpointInfo& info : *steps) {
        ExpectHolds(*store_, info.id.step, {Weights(info.id.step), Same()}, run.name);
        found.insert(info.id.step);
      }
    }
    for (const uint64_t step : kept) {
      EXPECT_TRUE(found.contains(step)) << where << ": step " << step << " is lost";
    }
    auto saved = Save(100, {Weights(100), Same()});
    // Work in the background may have met the fault and say so only now.
    if (!saved.ok()) saved = Save(100, {Weights(100), Same()});
    ASSERT_TRUE(saved.ok()) << where << ": " << saved.status().ToString();
    ExpectHolds(100, {Weights(100), Same()});
    ExpectClean(where);
  }

  void ExpectClean(const std::string& where) {
    const auto check = store_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << where << ": " << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty()) << where;
  }

  // A reclaim leaves nothing, whatever another that was cut short did.
  void ExpectGivesBack(const std::string& where) {
    const auto reclaimed = store_->Reclaim({.all = true});
    ASSERT_TRUE(reclaimed.ok()) << where << ": " << reclaimed.status().ToString();
    EXPECT_EQ(reclaimed->pending_bytes, 0u) << where;
    EXPECT_EQ(GetStats().pending_bytes, 0u) << where;
    ExpectClean("after a reclaim, " + where);
  }

  void ExpectCopyHolds(const fs::path& copy, const std::vector<uint64_t>& steps,
                       const std::string& where) {
    const auto store = Store::OpenForReading(copy);
    ASSERT_TRUE(store.ok()) << where << ": " << store.status().ToString();
    for (const uint64_t step : steps) ExpectHolds(**store, step, {Weights(step), Same()});
    const auto check = (*store)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << where << ": " << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty()) << where;
  }

  // Runs the operation on a new store for each of its calls that `plan` speaks of, lets that one
  // fail, and after it `plan.count` - 1 more. Returns how many there were.
  uint64_t Sweep(FailingIo::Plan plan, const std::vector<uint64_t>& kept, uint64_t stride,
                 const Operation& operation) {
    uint64_t rounds = 0;
    for (plan.first = 0;; plan.first += stride) {
      Start();
      if (HasFatalFailure()) return rounds;
      std::string failed;
      Status status;
      {
        FailingIo io(plan);
        status = operation();
        failed = io.failed();
      }
      if (failed.empty()) return rounds;  // there are no more
      ++rounds;
      const std::string where = failed + " (call " + std::to_string(plan.first) + ", errno " +
                                std::to_string(plan.error) + (plan.after ? ", after it" : "") +
                                "): " + status.ToString();
      ExpectUsable(kept, where);
      if (HasFatalFailure()) return rounds;
      Reopen(closing_options_);
      if (HasFatalFailure()) {
        ADD_FAILURE() << where;
        return rounds;
      }
      ExpectClean("opened again, " + where);
      ExpectGivesBack(where);
      if (HasFailure()) return rounds;
    }
  }

  // Runs one operation with every kind of fault. `stride` leaves out most of the many calls on
  // manifests.
  void SweepAll(const std::vector<uint64_t>& kept, const Operation& operation,
                uint64_t stride = 1) {
    constexpr uint64_t kForGood = 1000000;
    const auto every = [](uint64_t n) { return FullSize() ? 1 : n; };
    uint64_t rounds = 0;
    const auto sweep = [&](const FailingIo::Plan& plan, uint64_t n) {
      if (!HasFailure()) rounds += Sweep(plan, kept, n, operation);
    };
    for (const int error : {ENOSPC, EIO}) {
      sweep({.path = "MANIFEST", .error = error}, every(stride));
      sweep({.path = "MANIFEST", .count = kForGood, .error = error}, every(3 * stride));
      sweep({.path = "/store/", .error = error}, every(23 * stride));
      sweep({.path = "/store/", .count = kForGood, .error = error}, every(31 * stride));
    }
    // The record is written, and the error comes late.
    sweep({.path = "MANIFEST", .error = EIO, .after = true}, every(stride));
    sweep({.path = "CURRENT", .error = EIO, .after = true}, every(stride));
    for (const int error : {ENOSPC, EIO}) {
      if (closing_options_.key.empty()) break;
      sweep({.path = "/seal/", .error = error}, every(stride));
      sweep({.path = "/seal/", .error = error, .after = true}, every(stride));
    }
    std::cout << rounds << " faults\n";
    EXPECT_GE(rounds, 10u);
  }
};

TEST_F(FaultsTest, Save) {
  SweepAll({1, 2, 3}, [&] { return Save(4, {Weights(4), Same()}).status(); });
}

TEST_F(FaultsTest, SaveInASealedStore) {
  closing_options_.key = std::string(32, 'k');  // each check also verifies the seal
  SweepAll({1, 2, 3}, [&] { return Save(4, {Weights(4), Same()}).status(); });
}

TEST_F(FaultsTest, ReclaimInASealedStore) {
  closing_options_.key = std::string(32, 'k');  // each check also verifies the seal
  SweepAll(
      {1, 3},
      [&] {
        VARVE_RETURN_IF_ERROR(DropSteps({2}, {.reclaim = false}));
        return store_->Reclaim({.all = true}).status();
      },
      /*stride=*/5);
}

TEST_F(FaultsTest, Replace) {
  SweepAll({1, 2, 3}, [&] {
    return Save(3, {Weights(3), Same()}, {.on_existing = OnExisting::kReplace}).status();
  });
}

TEST_F(FaultsTest, Drop) {
  SweepAll(
      {1, 3}, [&] { return DropSteps({2}); }, /*stride=*/2);
}

TEST_F(FaultsTest, Reclaim) {
  SweepAll(
      {1, 3},
      [&] {
        VARVE_RETURN_IF_ERROR(DropSteps({2}, {.reclaim = false}));
        return store_->Reclaim({.all = true}).status();
      },
      /*stride=*/5);
}

// The first save lives in part: its file is written anew, and the counts say so after that.
TEST_F(FaultsTest, ReclaimOfAPart) {
  SweepAll(
      {2, 3},
      [&] {
        VARVE_RETURN_IF_ERROR(store_->RemoveTag("main", "first"));
        VARVE_RETURN_IF_ERROR(DropSteps({1}, {.reclaim = false}));
        return store_->Reclaim({.all = true}).status();
      },
      /*stride=*/5);
}

TEST_F(FaultsTest, Fork) {
  SweepAll({1, 2, 3}, [&] { return store_->Fork("main", "other", 2).status(); });
}

TEST_F(FaultsTest, Rewind) {
  SweepAll({1, 2, 3}, [&] { return store_->Rewind("main", 2).status(); });
}

// The root of a group, of one rank. Its records and catalogues are files of varve's own.
TEST_F(FaultsTest, Group) {
  expect_damage_ = true;  // no store: it is checked here
  const fs::path root = folder_.path() / "store";
  const auto content = [&](uint64_t step) { return std::vector{Weights(step), Same()}; };
  const auto save = [&](uint64_t step) -> Status {
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(step, {}));
    const std::vector<TestTensor> tensors = content(step);
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    return writer->Commit().status();
  };
  const auto join = [&] {
    store_.reset();
    const auto epoch = Group::StartEpoch(root, 1);
    ASSERT_TRUE(epoch.ok()) << epoch.status().ToString();
    auto joined =
        Group::Join(root, {.rank = 0, .epoch = *epoch, .timeout = std::chrono::seconds(60)});
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    store_ = *std::move(joined);
  };
  const auto drop = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(auto collector, Store::Open(root));
    const CheckpointId id{"main", 2};
    return collector->Drop({&id, 1}, {}).status();
  };
  for (const bool dropping : {false, true}) {
    for (const int error : {ENOSPC, EIO}) {
      for (uint64_t first = 0;; first += FullSize() ? 1 : 9) {
        store_.reset();
        fs::remove_all(root);
        join();
        ASSERT_NE(store_, nullptr);
        for (const uint64_t step : {1, 2, 3}) VARVE_ASSERT_OK(save(step));
        std::string failed;
        Status status;
        {
          FailingIo io({.path = "/store/", .first = first, .error = error});
          status = dropping ? drop() : save(4);
          failed = io.failed();
        }
        if (failed.empty()) break;
        const std::string where = failed + " (call " + std::to_string(first) + ", errno " +
                                  std::to_string(error) + "): " + status.ToString();
        const Status again = save(100);
        ASSERT_TRUE(again.ok()) << where << ": " << again.ToString();
        join();
        ASSERT_NE(store_, nullptr) << where;
        ExpectClean(where);
        for (const uint64_t step : {1, 3, 100}) ExpectHolds(*store_, step, content(step));
        if (!dropping) ExpectHolds(*store_, 2, content(2));
        if (!dropping && status.ok()) ExpectHolds(*store_, 4, content(4));
        ASSERT_FALSE(HasFailure()) << where;
      }
    }
  }
}

// The faults strike the copy. A later backup works, both over an earlier copy and without one. A
// writer also looks through a reader of its own. What that reader cannot catch up with is not an
// answer.
TEST_F(FaultsTest, LookingBesideTheWriter) {
  Start();
  uint64_t opening = 0;
  {
    const FailingIo count({.path = "/CURRENT", .call = "open"});
    VARVE_ASSERT_OK(Store::OpenForReading(path()).status());
    opening = count.num_calls();
  }
  ASSERT_GT(opening, 0u);
  const CheckpointId id{"main", 2};
  const std::function<Status()> questions[] = {[&] {
                                                 return store_->BytesFreedByDrop({&id, 1}).status();
                                               },
                                               [&] {
                                                 return store_->ForecastDrop({&id, 1}).status();
                                               },
                                               [&] { return store_->Check({}).status(); }};
  for (const auto& ask : questions) {
    {
      const FailingIo fault({.path = "/CURRENT",
                             .call = "open",
                             .first = opening,
                             .count = UINT64_MAX,
                             .error = EIO});
      EXPECT_THAT(ask(), FailsWith(StatusCode::kIOError, "CURRENT"));
      EXPECT_NE(fault.failed(), "");
    }
    VARVE_EXPECT_OK(ask());
  }
}

TEST_F(FaultsTest, Backup) {
  const fs::path copy = folder_.path() / "store.copy";
  for (const bool again : {false, true}) {
    // A fault that lasts leaves what a crash there leaves.
    for (const auto& [error, count] :
         {std::pair(ENOSPC, uint64_t{1}), {EIO, 1}, {EIO, UINT64_MAX}}) {
      for (uint64_t first = 0;; first += FullSize() ? 1 : 7) {
        Start();
        if (again) {
          VARVE_ASSERT_OK(BackUp(path(), copy).status());
          VARVE_ASSERT_OK(Save(4, {Weights(4), Same()}).status());
        }
        std::string failed;
        {
          FailingIo io({.path = "store.copy", .first = first, .count = count, .error = error});
          BackUp(path(), copy).status().IgnoreError();
          failed = io.failed();
        }
        if (failed.empty()) break;
        const std::string where = failed + " " + std::to_string(first);
        if (again) ExpectCopyHolds(copy, {1, 2, 3}, where);
        const Status status = BackUp(path(), copy).status();
        ASSERT_TRUE(status.ok()) << where << ": " << status.ToString();
        ExpectCopyHolds(copy, {1, 2, 3}, where);
        ASSERT_FALSE(HasFailure()) << where;
      }
    }
  }
}

}  // namespace
}  // namespace varve::internal::testing
