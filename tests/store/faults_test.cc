// SPDX-License-Identifier: Apache-2.0
//
// A disk that is full or fails for one call, at each call in turn: no abort, nothing lost, no torn
// step, and the same store, still open, can be written to once the fault has gone.
// VARVE_FULL_SIZE=1 takes every call; else only some, but all on the manifest.
#include <cerrno>
#include <cstdlib>
#include <iostream>

#include "tests/store/internals.h"
#include "tests/support/failing_io.h"
#include "varve/backup.h"

namespace varve::testing {
namespace {

namespace fs = std::filesystem;

bool FullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

class FaultsTest : public InternalsTest {
 protected:
  using Operation = std::function<Status()>;

  void SetUp() override {}  // Start makes the store

  TestTensor Weights(uint64_t step) const { return RandomTensor("w", DType::kU8, {30000}, step); }
  TestTensor Same() const { return RandomTensor("same", DType::kU8, {30000}, 77); }

  // A store with steps 1 to 3, of which 1 is tagged.
  void Start() {
    Reset({.digest_seed = 1});
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
    const auto saved = Save(100, {Weights(100), Same()});
    ASSERT_TRUE(saved.ok()) << where << ": " << saved.status().ToString();
    ExpectHolds(100, {Weights(100), Same()});
    ExpectClean(where);
  }

  void ExpectClean(const std::string& where) {
    const auto check = store_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << where << ": " << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty()) << where;
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
      Reopen();
      if (HasFatalFailure()) {
        ADD_FAILURE() << where;
        return rounds;
      }
      ExpectClean("opened again, " + where);
      if (HasFailure()) return rounds;
    }
  }

  // One operation with every kind of fault.
  void SweepAll(const std::vector<uint64_t>& kept, const Operation& operation) {
    constexpr uint64_t kForGood = 1000000;
    const auto every = [](uint64_t stride) { return FullSize() ? 1 : stride; };
    uint64_t rounds = 0;
    const auto sweep = [&](const FailingIo::Plan& plan, uint64_t stride) {
      if (!HasFailure()) rounds += Sweep(plan, kept, stride, operation);
    };
    for (const int error : {ENOSPC, EIO}) {
      sweep({.path = "MANIFEST", .error = error}, every(1));
      sweep({.path = "MANIFEST", .count = kForGood, .error = error}, every(3));
      sweep({.path = "/store/", .error = error}, every(23));
      sweep({.path = "/store/", .count = kForGood, .error = error}, every(31));
    }
    // The record is written, and the error comes late.
    sweep({.path = "MANIFEST", .error = EIO, .after = true}, every(1));
    sweep({.path = "CURRENT", .error = EIO, .after = true}, every(1));
    std::cout << rounds << " faults\n";
    EXPECT_GE(rounds, 15u);
  }
};

TEST_F(FaultsTest, Save) {
  SweepAll({1, 2, 3}, [&] { return Save(4, {Weights(4), Same()}).status(); });
}

TEST_F(FaultsTest, Replace) {
  SweepAll({1, 2, 3}, [&] {
    return Save(3, {Weights(3), Same()}, {.on_existing = OnExisting::kReplace}).status();
  });
}

TEST_F(FaultsTest, Drop) {
  SweepAll({1, 3}, [&] { return DropSteps({2}); });
}

TEST_F(FaultsTest, Reclaim) {
  SweepAll({1, 3}, [&] {
    VARVE_RETURN_IF_ERROR(DropSteps({2}, {.reclaim = false}));
    return store_->Reclaim({.all = true}).status();
  });
}

TEST_F(FaultsTest, Fork) {
  SweepAll({1, 2, 3}, [&] { return store_->Fork("main", "other", 2).status(); });
}

TEST_F(FaultsTest, Rewind) {
  SweepAll({1, 2, 3}, [&] { return store_->Rewind("main", 2).status(); });
}

// The faults strike the copy; a backup that comes after them works, where a copy was before and
// where there was none.
TEST_F(FaultsTest, Backup) {
  const fs::path copy = folder_.path() / "store.copy";
  for (const bool again : {false, true}) {
    for (const int error : {ENOSPC, EIO}) {
      for (uint64_t first = 0;; first += FullSize() ? 1 : 7) {
        Start();
        if (again) {
          VARVE_ASSERT_OK(BackUp(path(), copy).status());
          VARVE_ASSERT_OK(Save(4, {Weights(4), Same()}).status());
        }
        std::string failed;
        {
          FailingIo io({.path = "store.copy", .first = first, .error = error});
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
}  // namespace varve::testing
