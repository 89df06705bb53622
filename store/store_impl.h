// SPDX-License-Identifier: Apache-2.0
//
// The parts of a store that its operations share. Each operation is a file of its own:
// checkpoint_writer.cc, checkpoint_reader.cc, annotate.cc, branch.cc, history.cc, copy.cc, drop.cc,
// reclaim.cc, check.cc, stats.cc.
#pragma once

#include <atomic>
#include <climits>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/chunk_reader.h"
#include "store/commit_batch.h"
#include "store/database.h"
#include "store/format_file.h"
#include "store/keys.h"
#include "store/pins.h"
#include "store/record.h"
#include "store/reference_counts.h"
#include "store/sharded_reader.h"
#include "varve/store.h"

namespace varve {

class Cursor;

class StoreImpl : public Store {
 public:
  static Result<std::unique_ptr<StoreImpl>> OpenPath(const std::filesystem::path& path,
                                                     const StoreOptions& options, bool for_writing);
  ~StoreImpl() override;

  Result<std::unique_ptr<CheckpointWriter>> Begin(uint64_t step,
                                                  const SaveOptions& options) override;
  Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(std::string_view run,
                                                           uint64_t step) const override;
  Result<std::vector<RunInfo>> ListRuns() const override;
  Result<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view run) const override;
  Result<std::optional<uint64_t>> LatestStep(std::string_view run) const override;
  Result<uint64_t> FindTag(std::string_view run, std::string_view tag) const override;
  Status SetMetrics(const CheckpointId& id, const std::map<std::string, double>& metrics) override;
  Status SetTag(const CheckpointId& id, std::string_view tag) override;
  Status RemoveTag(std::string_view run, std::string_view tag) override;
  Result<uint64_t> Fork(std::string_view run, std::string_view new_run,
                        std::optional<uint64_t> at) override;
  Result<RewindReport> Rewind(std::string_view run, uint64_t to) override;
  Result<std::vector<TensorChange>> Log(std::string_view run,
                                        std::string_view tensor) const override;
  Result<CheckpointDiff> Diff(const CheckpointId& before, const CheckpointId& after,
                              const DiffOptions& options) const override;
  Result<std::vector<SaveReport>> CopyTo(Store* destination, std::span<const CheckpointId> ids,
                                         const CopyOptions& options) const override;
  Result<uint64_t> BytesFreedByDrop(std::span<const CheckpointId> ids) const override;
  Result<DropForecast> ForecastDrop(std::span<const CheckpointId> ids) const override;
  Result<DropReport> Drop(std::span<const CheckpointId> ids, const DropOptions& options) override;
  Result<ReclaimReport> Reclaim(const ReclaimOptions& options) override;
  Result<CheckReport> Check(const CheckOptions& options) const override;
  Result<StoreStats> Stats() const override;
  Status CatchUp() const override;

  // --- for the operations ---
  Result<std::unique_ptr<ShardedReader>> OpenShards(std::string_view run, uint64_t step) const;
  Database* database() const { return database_.get(); }
  const StoreOptions& options() const { return options_; }
  uint64_t digest_seed() const { return format_.digest_seed; }
  const ChunkReader& chunk_reader() const { return *chunk_reader_; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path incoming() const { return path_ / "incoming"; }
  Pins* pins() { return &pins_; }
  int num_threads() const;

  // Takes `commit_mutex_`; commits, drops and reclaims hold it from their first read of a count to
  // the end of their batch.
  std::unique_lock<std::mutex> LockCommits() { return std::unique_lock(commit_mutex_); }

  // A birth number that was never given out before, by this or any earlier process.
  Result<uint64_t> NewBirth();

  // kNotFound: no such run.
  Result<RunRecord> FindRun(std::string_view run) const;
  // Empty: no run has this id any more.
  Result<std::string> RunName(RunId id) const;
  // nullopt: no such step.
  Result<std::optional<StepRecord>> FindStep(StepKey step) const;
  // nullopt: the run has no steps.
  Result<std::optional<uint64_t>> NewestStep(RunId run) const;
  // kNotFound names the step.
  Result<std::pair<StepKey, StepRecord>> RequireStep(const CheckpointId& id) const;
  // Tags of a run with the step each names.
  Result<std::vector<std::pair<std::string, uint64_t>>> ListTags(RunId run) const;
  Result<CheckpointInfo> MakeInfo(std::string_view run, StepKey key, const StepRecord& record,
                                  const std::vector<std::pair<std::string, uint64_t>>& tags) const;

  // The chunks of a tensor's list `index`. kCorruption: missing, malformed, or of another length than
  // the tensor's geometry says.
  Result<std::vector<ChunkRef>> ReadList(const TensorRecord& record, size_t index) const {
    return ReadList(record.lists[index], record.NumChunks() - index * kChunksPerList);
  }
  // The same of a list that holds the first of so many `chunks`. `lists`: reads by this.
  Result<std::vector<ChunkRef>> ReadList(ListAddress list, uint64_t chunks,
                                         Cursor* lists = nullptr) const;
  // Applies the requests that wait in the inbox, oldest first, and answers them. One that cannot be read
  // stays, holds up no other, and its error is returned.
  Status ApplyInbox();

  // Puts a new run into `batch`. Under the commit mutex, once a batch.
  Result<RunId> NewRun(std::string_view name, std::optional<StepKey> forked_from,
                       CommitBatch* batch) const;
  // Puts into `batch` all that moving the steps of a run from `first` on to a new run RUN~k takes.
  struct Moved {
    std::string run;  // empty: there was no such step
    RunId id = 0;
    std::vector<uint64_t> steps;
  };
  Result<Moved> MoveSteps(std::string_view run, RunId id, uint64_t first, CommitBatch* batch) const;
  // Puts into `batch` and `counts` all that removing a step takes.
  Status ReleaseStep(StepKey step, ReferenceCounts* counts, CommitBatch* batch) const;
  // After a commit: remembers births with dead chunks, wakes the merging thread.
  void NoteCommit(const std::set<uint64_t>& births_with_dead);

  // Runs a read; beside a writer, catches up and tries again when something was not found or could
  // not be read, up to three times. The writer tries again when commits went on meanwhile.
  Status WithCatchUp(const std::function<Status()>& read) const;
  // The same for a read that must see one state throughout, however long it takes.
  Status WithFrozenView(const std::function<Status()>& read) const;
  // Beside a writer: catches up unless that was done within the last tenth of a second.
  Status Refresh() const;

 private:
  StoreImpl() = default;
  Status StartThreads();
  Status PrepareForWriting();
  Status SweepOrphans();
  Status EnsureReserve() const;
  void ReleaseReserve() const;
  Status RequireWriter() const;
  Status RenameParents(RunId id, uint64_t first, const Moved& moved, CommitBatch* batch) const;
  Result<std::vector<StepKey>> FindSteps(std::span<const CheckpointId> ids) const;
  Result<std::vector<StepKey>> ClaimForDrop(std::span<const CheckpointId> ids);
  Status DropAll(std::span<const StepKey> steps, std::vector<std::string>* warnings);
  Status RemoveEmptyForks(std::span<const StepKey> dropped) const;
  Status ReclaimLocked(bool all, ReclaimReport* report);
  Result<uint64_t> PendingBytes() const;
  Status CheckOnce(const CheckOptions& options, CheckReport* report) const;
  void MergeLoop(std::stop_token stop);
  void CatchUpLoop(std::stop_token stop);
  void InboxLoop(std::stop_token stop);
  Status MergeSmallFiles();
  Status MergeLocked();  // under the maintenance mutex
  Result<std::set<uint64_t>> FindBirthsWithDead() const;

  // Constant after opening.
  std::filesystem::path path_;
  StoreOptions options_;
  FormatFile format_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<ChunkReader> chunk_reader_;

  // Synchronise themselves.
  Pins pins_;
  mutable std::atomic<int64_t> last_catch_up_ms_{0};
  mutable std::atomic<int> frozen_{0};  // readers: a check wants to see one state throughout

  // Lock order: inbox, maintenance, commit, births.
  std::mutex inbox_mutex_;  // held by whoever applies requests
  mutable std::mutex maintenance_mutex_;  // held by whoever rewrites or deletes chunk files
  mutable std::mutex commit_mutex_;
  std::set<uint64_t> births_with_dead_;  // guarded by commit_mutex_
  std::mutex birth_mutex_;
  uint64_t next_birth_ = 0;       // guarded by birth_mutex_
  uint64_t reserved_births_ = 0;  // guarded by birth_mutex_: numbers below are persisted as used

  std::mutex background_mutex_;
  std::condition_variable_any background_wake_;
  int commits_since_merge_ = INT_MAX / 2;  // merge once after opening; guarded by background_mutex_
  // Last: they join before anything above is destroyed.
  std::jthread background_;
  std::jthread inbox_loop_;  // writers
};

}  // namespace varve
