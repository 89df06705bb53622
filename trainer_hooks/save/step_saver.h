// SPDX-License-Identifier: Apache-2.0
//
// What the save of one step does to a store, in the order of these calls; threads are the
// checkpointer's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "store/save/chunk_source.h"
#include "trainer_hooks/save/save_memory.h"
#include "trainer_hooks/save/stage.h"
#include "trainer_hooks/save/staging_check.h"
#include "varve/async_checkpointer.h"

namespace varve {

// A save on its way. Made by the trainer's thread, shared with those that save until all are done
// with it.
struct SaveJob {
  SaveJob(SaveMemory* memory, uint64_t job_number, uint64_t step_number, const TrainingState& from,
          const BeginOptions& options);

  const uint64_t number;  // 1, 2, ...
  const uint64_t step;
  const TrainingState state;
  const std::optional<std::chrono::steady_clock::time_point> deadline;
  const bool waits_at_once;
  const std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  Stage stage;
  std::atomic<bool> is_awaited = false;  // the trainer waits in AwaitStaged, or has left it
  // Waits until the trainer has been in AwaitStaged: before that nobody knows whether it keeps to
  // the contract. An error: it has not.
  std::function<Status()> may_commit;
  std::unique_ptr<SourceWriter> writer;  // from Begin to Commit
  // The trainer writes what it has waited for; the preparer and then the saver all else.
  SaveStats metrics;
  std::optional<StagingCheck> check;  // the trainer's
  Status broken;   // the trainer's: how it broke the contract; guarded by the checkpointer's mutex
  Status status;   // of what has been done of it
  Status refused;  // why there is nothing to save: the caller's error, and no failure of a save
};

// How fast saves have been, and how small their data becomes: what decisions before the next one
// need.
class SaveEstimate {
 public:
  explicit SaveEstimate(int num_threads) : bytes_per_second_(2e8 * num_threads) {}

  void Learn(uint64_t changed_bytes, uint64_t stored_bytes, double seconds);
  double SecondsToEncode(uint64_t changed_bytes) const {
    return static_cast<double>(changed_bytes) / bytes_per_second_;
  }
  uint64_t BytesToStore(uint64_t changed_bytes) const {
    return static_cast<uint64_t>(static_cast<double>(changed_bytes) * ratio_);
  }

 private:
  double bytes_per_second_;  // before the first save, a slow machine's
  double ratio_ = 0.5;       // before the first save, optimistic: a wrong refusal would be worse
};

// Thread rule: one save at a time, each call of it by one thread; SetRestored between saves.
class StepSaver {
 public:
  // `path`: where the file system is asked how much is free. `may_try_again`: GroupSide's, or
  // empty. `store` must outlive it.
  StepSaver(Store* store, std::filesystem::path path, const CheckpointerOptions& options,
            int num_threads, std::function<bool()> may_try_again)
      : store_(store),
        path_(std::move(path)),
        options_(options),
        num_threads_(num_threads),
        may_try_again_(std::move(may_try_again)),
        estimate_(num_threads) {}

  // The trainer goes on from this step: what came after it makes room for the next.
  void SetRestored(uint64_t step) { restored_ = step; }

  SaveOptions OptionsOf(const SaveJob& job) const;
  // Everything before the first tensor of the host is looked at.
  Status Begin(SaveJob* job);
  // Stores what is staged.
  Status Commit(SaveJob* job);
  // Drops what retention does not keep beside the step just saved.
  Status ApplyRetention(SaveJob* job);

 private:
  Status BeginDigests(SaveJob* job);
  Status PrepareLineage(uint64_t step);
  bool ShouldRetry(const Status& status, int attempt) const;
  Result<std::unique_ptr<SourceWriter>> BeginOnce(const SaveJob& job, const SaveOptions& options);
  Result<std::unique_ptr<SourceWriter>> BeginWriter(const SaveJob& job, const SaveOptions& options);
  void ChooseCodec(const SaveJob& job, SaveOptions* options) const;
  Status CheckSpace(const SaveJob& job) const;
  Result<SaveReport> CommitStaged(SaveJob* job, const SaveOptions& options);

  Store* const store_;
  const std::filesystem::path path_;
  const CheckpointerOptions options_;
  const int num_threads_;
  const std::function<bool()> may_try_again_;
  SaveEstimate estimate_;
  std::optional<uint64_t> restored_;
  double attempt_seconds_ = 0;           // what the last commit took
  std::optional<uint64_t> digest_seed_;  // the store's
};

}  // namespace varve
