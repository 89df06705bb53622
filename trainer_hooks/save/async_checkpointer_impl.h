// SPDX-License-Identifier: Apache-2.0
//
// A checkpointer over a store that is open: its threads (async_checkpointer.cc), and what the save
// of one step does to the store (save_step.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/save/save_session.h"
#include "trainer_hooks/save/background_pusher.h"
#include "trainer_hooks/save/make_checkpointer.h"
#include "trainer_hooks/save/save_memory.h"
#include "trainer_hooks/save/stage.h"
#include "trainer_hooks/save/staging_check.h"
#include "trainer_hooks/state/save_state.h"

namespace varve::internal {

// What the next save needs to know of a step that is saved: which chunks it has, and where they are
// stored. It does not change, so any thread may use it.
struct SavedStep {
  std::shared_ptr<const StageLayout> layout;
  std::vector<Digest> digests;  // of the layout's chunks, by number
  std::shared_ptr<const SavedLists> lists;
};

// A save in progress. The trainer's thread makes it, and shares it with the threads that save,
// until all are done with it.
struct SaveJob {
  SaveJob(SaveMemory* memory, uint64_t job_number, uint64_t step_number,
          std::shared_ptr<const SaveState> from, const BeginOptions& options);

  const uint64_t number;  // 1, 2, ...
  const uint64_t step;
  const std::shared_ptr<const SaveState> state;
  const std::optional<std::chrono::steady_clock::time_point> deadline;
  const bool waits_at_once;
  std::optional<uint64_t> step_before;  // of the state from which the optimizer went on
  bool knows_steps = false;             // this state or one before it says what the optimizer did
  const std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  Stage stage;
  std::atomic<bool> is_awaited = false;  // the trainer waits in AwaitStaged, or has left it
  // Waits until the trainer has been in AwaitStaged, because nobody knows before whether it keeps
  // to the contract. Returns an error if the trainer has broken it.
  std::function<Status()> may_commit;
  std::unique_ptr<SaveSession> session;  // from Begin to Commit
  // The step before, if this checkpointer saved it and the tensors are the same. Nothing about that
  // step is then looked up in the store.
  std::shared_ptr<const SavedStep> parent;
  // The trainer writes how long it has waited. The preparer, and then the saver, write the rest.
  SaveStats stats;
  std::optional<StagingCheck> check;  // the trainer's
  // How the trainer broke the contract. Guarded by the checkpointer's mutex.
  Status broken;
  Status status;  // of what has been done so far
  bool is_committed = false;
  Status refused;  // why there is nothing to save: the caller's error, and no failure of a save
};

// Knows how fast saves have been, and how small their data becomes. Decisions before the next save
// need this.
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

enum class Phase { kIdle, kPreparing, kStaging, kWriting };

class AsyncCheckpointerImpl : public OwnCheckpointer {
 public:
  AsyncCheckpointerImpl(std::unique_ptr<Store> store, std::filesystem::path path,
                        const CheckpointerOptions& options, int num_threads, GroupSide group,
                        std::unique_ptr<BackgroundPusher> pusher)
      : store_(std::move(store)),
        options_(options),
        group_(std::move(group)),
        pusher_(std::move(pusher)),
        path_(std::move(path)),
        num_threads_(num_threads),
        memory_(options_.staging_budget_bytes, options_.devices),
        estimate_(num_threads) {}
  // Call it once, before all else. kUnavailable: the system has no more threads.
  Status StartThreads();
  ~AsyncCheckpointerImpl() override;

  Status Prewarm(const TrainingState& state) override;
  Status PrewarmFor(const std::shared_ptr<const StateTensors>& tensors) override;
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override;
  Status BeginSaveOf(uint64_t step, std::shared_ptr<const SaveState> state,
                     const BeginOptions& options) override;
  Status AwaitStaged() override;
  Status RequireAwaited() override;
  Status Wait() override;
  Status ReleaseStaging() override;
  Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                             TrainingState* into) override;
  Result<LoadReport> Restore(const CheckpointId& id, const LoadOptions& options,
                             TrainingState* into) override;
  Result<LoadReport> RestoreThrough(const CheckpointId& id, const LoadOptions& options,
                                    RegionReader* read, TrainingState* into) override;
  Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) override;
  Status SetTag(uint64_t step, std::string_view tag) override;
  Status Close() override;
  std::optional<SaveStats> last_stats() const override;
  std::optional<PushStats> last_push() const override;
  Status failure() const override;
  Store& store() override { return *store_; }
  bool IsBusy() const override;
  void Skip(uint64_t step) override;

 private:
  // The trainer's thread calls the next functions.
  Result<CheckpointId> FindStep(std::string_view step);
  Status RequireOpen() const;
  Status AwaitStep(uint64_t step);
  Status SeenError();
  bool WaitForTurn(double* waited);
  std::shared_ptr<const StateTensors> KnownTensors(const TrainingState& state) const;
  void AwaitIdle();
  std::shared_ptr<SaveJob> MakeJob(uint64_t step, std::shared_ptr<const SaveState> state,
                                   const BeginOptions& options);

  std::shared_ptr<SaveJob> AwaitPhase(std::stop_token stop, Phase phase, uint64_t after);
  void EnterPhase(Phase phase);
  void Release(SaveJob* job);
  void NoteError(const SaveJob& job, const Status& status);

  // The loops of the preparer, of a stager, and of the saver, each on a thread of its own.
  void RunPreparer(std::stop_token stop);
  Status PrepareAndStage(SaveJob* job);
  void RunStager(std::stop_token stop);
  void RunSaver(std::stop_token stop);
  Status AwaitTrainer(const SaveJob& job);
  Status Report(SaveJob* job);
  void Finish(SaveJob* job);

  // What the save of one step does to the store (save_step.cc), in the order of these calls. The
  // preparer calls BeginStep, and the saver calls the rest.
  //
  // BeginStep does everything before the first tensor of the host is looked at.
  Status BeginStep(SaveJob* job);
  // CommitStep stores what is staged. KeepSaved keeps what the next save needs to know.
  // ApplyRetention drops the steps that retention does not keep.
  Status CommitStep(SaveJob* job);
  void KeepSaved(SaveJob* job);  // it throws std::bad_alloc
  Status ApplyRetention(SaveJob* job);
  SaveOptions OptionsOf(const SaveJob& job) const;
  bool Stays(uint64_t step) const;
  Status BeginDigests(SaveJob* job);
  Status LearnParents(SaveJob* job);
  Status PutTensors(SaveJob* job);
  Status PrepareLineage(uint64_t step);
  bool ShouldRetry(const Status& status, int attempt) const;
  Result<std::unique_ptr<SaveSession>> BeginOnce(const SaveJob& job);
  Result<std::unique_ptr<SaveSession>> BeginSession(const SaveJob& job);
  Compression ChooseCompression(const SaveJob& job) const;
  Status CheckSpace(const SaveJob& job) const;
  Result<SaveReport> CommitStaged(SaveJob* job, Compression compression, double* seconds);

  std::unique_ptr<Store> store_;
  const CheckpointerOptions options_;
  const GroupSide group_;
  const std::unique_ptr<BackgroundPusher> pusher_;  // null: nothing is pushed
  const std::filesystem::path path_;  // where the file system is asked how much is free
  const int num_threads_;             // of a save
  SaveMemory memory_;                 // of the trainer's thread, while no save is under way
  uint64_t num_jobs_ = 0;             // the same
  // The step that the trainer has begun to save last, or skipped, or restored. The same.
  std::optional<uint64_t> step_before_;
  bool knows_steps_ = false;                     // SaveJob::knows_steps of the last save. The same
  std::shared_ptr<const StateTensors> tensors_;  // of the last save or Prewarm. The same

  // The trainer's thread, the preparer and the saver use these one after the other.
  SaveEstimate estimate_;
  std::optional<uint64_t> restored_;        // the trainer goes on from here
  std::optional<uint64_t> digest_seed_;     // the store's, once it is known
  std::shared_ptr<const SavedStep> saved_;  // the last save, if it was stored

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  Phase phase_ = Phase::kIdle;    // guarded, as all below
  std::shared_ptr<SaveJob> job_;  // the save under way, or the last
  std::optional<SaveStats> last_stats_;
  Status error_;  // the first that has not been returned yet, or is fatal
  bool is_error_seen_ = false;
  bool is_awaited_ = true;  // AwaitStaged has returned for job_
  bool is_closed_ = false;

  std::vector<std::jthread> threads_;  // last: they join before anything above goes
};

}  // namespace varve::internal
