// SPDX-License-Identifier: Apache-2.0
//
// The parts of a store that its operations share. Each operation has its own file:
// save_session.cc, checkpoint_reader.cc, annotate.cc, branch.cc, history.cc, copy.cc, drop.cc,
// drop_forecast.cc, reclaim.cc, check.cc, stats.cc.
#pragma once

#include <atomic>
#include <climits>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fair_mutex.h"
#include "store/db/chunk_reader.h"
#include "store/db/commit_batch.h"
#include "store/db/database.h"
#include "store/db/dead_space.h"
#include "store/db/pins.h"
#include "store/db/reference_counts.h"
#include "store/format/format_file.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "varve/store.h"

namespace varve::internal {

class Cursor;
class DropForecaster;
class Sealer;
class ShardedReader;
struct ReclaimPlan;

// kUnavailable: no thread can be started. Call it before RocksDB opens a database, which starts
// threads.
Status RequireThread(const std::filesystem::path& store);

class StoreImpl : public Store {
 public:
  static Result<std::unique_ptr<StoreImpl>> OpenPath(const std::filesystem::path& path,
                                                     const StoreOptions& options, bool for_writing);
  // Makes the store and opens it for writing. varve/store.h lists the errors of Store::Create. The
  // store has none but these incompatible features.
  static Result<std::unique_ptr<StoreImpl>> CreatePath(const std::filesystem::path& path,
                                                       const CreateOptions& options,
                                                       uint64_t features = kIncompatibleFeatures);
  // Returns null for a store that is not sealed, and for a reader without the key.
  // kFailedPrecondition: a writer of a sealed store has no key, or a store that is not sealed was
  // given one.
  static Result<std::shared_ptr<const Sealer>> MakeSealer(const std::filesystem::path& path,
                                                          const StoreOptions& options,
                                                          const FormatFile& format,
                                                          bool for_writing);
  // Makes a store of a database that never changes (Database::OpenFrozen). `name` is for messages.
  static Result<std::unique_ptr<StoreImpl>> OpenFrozen(const std::string& name,
                                                       const FormatFile& format,
                                                       std::unique_ptr<Database> database,
                                                       const StoreOptions& options);
  ~StoreImpl() override;

  Result<std::unique_ptr<SaveSession>> BeginSession(uint64_t step,
                                                    const SaveOptions& options) override;
  Result<std::unique_ptr<ShardedReader>> OpenShards(std::string_view run,
                                                    uint64_t step) const override;
  Result<std::vector<RunInfo>> ListRuns() const override;
  Result<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view run) const override;
  Result<KnownCheckpoints> ListKnownCheckpoints() const override;
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
  // As OpenShards, for a step whose run may have lost its name. Messages and the info name the run
  // `run`. The info has no tags. Nothing may write to the store meanwhile.
  Result<std::unique_ptr<ShardedReader>> OpenShardsOf(StepKey key, std::string_view run) const;
  Database* database() const { return database_.get(); }
  const StoreOptions& options() const { return options_; }
  const FormatFile& format() const { return format_; }
  // Null: the store is not sealed, or it was opened without its key.
  const Sealer* sealer() const { return sealer_.get(); }
  uint64_t digest_seed() const { return format_.digest_seed; }
  const ChunkReader& chunk_reader() const { return *chunk_reader_; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path incoming() const { return path_ / "incoming"; }
  Pins* pins() { return &pins_; }
  int num_threads() const;

  // Takes `commit_mutex_`, in turn. Commits, drops and reclaims hold it from their first read of a
  // count to the end of their batch. An operation with several batches releases it between them.
  std::unique_lock<FairMutex> LockCommits() const { return std::unique_lock(commit_mutex_); }

  // Returns a save id that neither this nor any earlier process has used.
  Result<uint64_t> NewSaveId();

  // kNotFound: there is no such run.
  Result<RunRecord> FindRun(std::string_view run) const;
  // Returns an empty name when no run has this id any more.
  Result<std::string> RunName(RunId id) const;
  // The same for many runs. They are all read when the first is asked for.
  class RunNames {
   public:
    explicit RunNames(const StoreImpl* store) : store_(store) {}
    Result<std::string> Find(RunId id);

   private:
    const StoreImpl* const store_;
    std::optional<std::map<RunId, std::string>> names_;
  };
  // Returns nullopt when there is no such step.
  Result<std::optional<StepRecord>> FindStep(StepKey step) const;
  // Returns nullopt when the run has no steps.
  Result<std::optional<uint64_t>> NewestStep(RunId run) const;
  // Returns nullopt when the run has no step before `step`.
  Result<std::optional<uint64_t>> NewestStepBefore(StepKey step) const;
  // kNotFound names the step.
  Result<std::pair<StepKey, StepRecord>> RequireStep(const CheckpointId& id) const;
  // Returns the tags of a run with the step that each names.
  Result<std::vector<std::pair<std::string, uint64_t>>> ListTags(RunId run) const;
  // Returns the tags of one step. All tags of the last run that was asked for are remembered until
  // the store changes.
  Result<std::vector<std::string>> TagsOf(StepKey step) const;
  Result<CheckpointInfo> MakeInfo(std::string_view run, StepKey key, const StepRecord& record,
                                  RunNames* names) const;

  // Returns the chunks of a tensor's list `index`. kCorruption: the list is missing or malformed,
  // or its chunks do not fit the tensor's geometry.
  Result<std::vector<ChunkRef>> ReadList(const TensorRecord& record, size_t index) const;
  // Appends the chunks of a list to what is in `refs`. It must hold min(`chunks`, kChunksPerList)
  // chunks. After an error, some of them may have been appended. If `lists` is not null, it is used
  // to read the list.
  Status AppendList(ListAddress list, uint64_t chunks, Cursor* lists,
                    std::vector<ChunkRef>* refs) const;
  // Applies the requests that wait in the inbox, oldest first, and answers them. A request that
  // cannot be read stays and delays no other. Its error is returned.
  Status ApplyInbox();

  // Returns a run id that nobody has, and notes in `batch` that it is taken. Call it under the
  // commit mutex, once a batch.
  Result<RunId> NewRunId(CommitBatch* batch) const;
  // Puts a new run into `batch`. Call it under the commit mutex, once a batch.
  Result<RunId> NewRun(std::string_view name, std::optional<StepKey> forked_from,
                       CommitBatch* batch) const;
  // Returns the steps of a run from `first` on.
  Result<std::vector<uint64_t>> StepsFrom(RunId run, uint64_t first) const;
  // Puts into `batch` what is needed to move the steps of a run from `first` on to a new run RUN~k.
  // There must be at least one such step. The memory does not grow with what moves.
  Result<RunId> MoveSteps(std::string_view run, StepKey first, CommitBatch* batch) const;
  // Puts into `batch` and `counts` what is needed to remove a step.
  Status ReleaseStep(StepKey step, ReferenceCounts* counts, CommitBatch* batch) const;
  // Commits a batch. Call it under the commit mutex.
  Status Commit(const CommitBatch& batch, std::span<const std::filesystem::path> chunk_files = {});
  // Commits a batch with the counts that were written to it. Call it under the commit mutex.
  Status CommitCounted(const CommitBatch& batch, const ReferenceCounts& counts,
                       std::span<const std::filesystem::path> chunk_files);
  // Call it after a commit. It wakes the merging thread when there is enough to merge.
  void NoteCommit();

  // Bytes of dead frames on the disk. Writers.
  Result<uint64_t> DeadBytes();
  // For tests.
  Result<std::vector<ChunkFile>> chunk_files_for_test();
  // For tests: a rewind calls it after it has copied the records, without the commit mutex.
  void set_after_copy_for_test(std::function<void()> call) {
    after_copy_for_test_ = std::move(call);
  }
  // For tests: a drop or a reclaim calls it after it has written a batch, without the commit mutex.
  void set_before_commit_for_test(std::function<void()> call) {
    before_commit_for_test_ = std::move(call);
  }
  uint64_t num_commits_waiting_for_test() const { return commit_mutex_.num_waiting_for_test(); }
  uint64_t num_saves_visited_for_test() const {
    const auto lock = LockCommits();
    return dead_space_.num_saves_visited();
  }

  // Runs a read. Beside a writer, it catches up and tries again, up to three times, when something
  // was not found or could not be read. In a writer, it tries again when commits happened
  // meanwhile. If a reader cannot catch up and does not find something, it returns the error of the
  // catch-up.
  Status WithCatchUp(const std::function<Status()>& read) const;
  // The same for a short read of several families. It is done again when a commit has become
  // visible during the read. `saw_one_state` is false if that was so each time.
  Status TryOneState(const std::function<Status()>& read, bool* saw_one_state) const;
  // The same, and then a reader lets no catch-up come during the read. A writer returns the last
  // read.
  Status WithOneState(const std::function<Status()>& read) const;
  // For readers. Catch-ups of other threads wait for the read.
  Status WithoutCatchUps(const std::function<Status()>& read) const;
  // The same for a read that must see one state throughout, however long it takes. Meanwhile no
  // reader of this store catches up.
  Status WithFrozenView(const std::function<Status()>& read) const;
  // Beside a writer, catches up unless that was done in the last tenth of a second. After an error,
  // or while another thread opens the database anew for longer than that, reads return an older
  // state.
  Status Refresh() const;
  // Call it under catch_up_mutex_.
  Status CatchUpLocked() const;

 protected:
  StoreImpl() = default;  // callers get a GuardedStore

  // Ends its threads. They call virtual functions, so GuardedStore calls it while it is whole.
  void StopThreads();

 private:
  // What opening and making have in common.
  static Result<std::unique_ptr<StoreImpl>> Start(const std::filesystem::path& path,
                                                  const StoreOptions& options,
                                                  const FormatFile& format,
                                                  std::shared_ptr<const Sealer> sealer,
                                                  std::unique_ptr<Database> database);
  Status StartThreads();
  Status PrepareForWriting();
  Status SweepOrphans();
  Status RemoveNamed(std::vector<ChunkFile>* files) const;
  Status RequireWriter() const;
  Status CopyRecords(Family family, StepKey from, StepKey to, CommitBatch* batch,
                     const Database::Visit& visit) const;
  // What commits change in the records of steps while a rewind copies them.
  struct StepChanges {
    std::map<StepKey, bool> steps;  // true = more than the step's own record may have changed
    bool have_moved = false;        // a commit has moved steps, which are not in `steps`
  };
  Result<RewindReport> RewindWatched(std::string_view run, StepKey first);
  Status CopyMoved(StepKey first, RunId to, bool holds_commits, CommitBatch* batch) const;
  Result<bool> FollowChanges(const StepChanges& changes, StepKey first, RunId to,
                             CommitBatch* batch) const;
  Result<std::string> NameMoved(std::string_view run, StepKey first, RunId moved,
                                CommitBatch* batch) const;
  Status CheckNotFailed(bool holds_commits) const;
  Status MoveRecords(Family family, StepKey first, RunId to, bool holds_commits,
                     CommitBatch* batch) const;
  Status MoveStepRecords(StepKey first, RunId to, bool holds_commits, CommitBatch* batch) const;
  Status RenameOrigins(StepKey first, RunId to, CommitBatch* batch) const;
  Result<std::vector<StepKey>> FindSteps(std::span<const CheckpointId> ids) const;
  Result<std::vector<StepKey>> ClaimForDrop(std::span<const CheckpointId> ids,
                                            ClaimedSteps* claimed);
  // Runs a read that sees one state of the store throughout. The state is up to date.
  Status WithView(const std::function<Status(const StoreImpl& view)>& read) const;
  Status FollowDrop(std::span<const CheckpointId> ids, DropForecaster* forecaster) const;
  Status DropAll(std::span<const StepKey> steps, std::vector<std::string>* warnings);
  Status DropSome(uint64_t* group_bytes, std::span<const StepKey>* steps,
                  std::vector<std::string>* warnings);
  Status CommitFreeing(const CommitBatch& batch, const ReferenceCounts& counts);
  // Commits what `build` puts into a batch and its counts. `build` only reads the store, and may be
  // called again. Other commits wait no longer than it takes to make the batch visible.
  using Build = std::function<Status(ReferenceCounts* counts, CommitBatch* batch)>;
  Status CommitBuilt(const Build& build);
  Status RemoveEmptyForks(std::span<const StepKey> dropped);
  // Returns nullopt when another reclaim is under way.
  Result<std::optional<ReclaimReport>> ReclaimUnlessUnderWay();
  Result<ReclaimReport> ReclaimInTurn(const ReclaimOptions& options);
  Status LearnDeadSpace();
  Status ReclaimFiles(const ReclaimOptions& options, ReclaimReport* report);
  Status FreeFiles(const ReclaimPlan& plan, const Progress& progress,
                   std::vector<ChunkAddress>* gone, ReclaimReport* report);
  Status FreeFile(const ChunkFile& file, bool may_rewrite, std::vector<ChunkAddress>* gone,
                  ReclaimReport* report);
  Status FreeClaimed(const ChunkFile& file, const std::set<uint64_t>& saves, bool may_rewrite,
                     std::vector<ChunkAddress>* gone, ReclaimReport* report);
  Status MarkGone(std::vector<ChunkAddress>* gone);
  Status CheckOnce(const CheckOptions& options, CheckReport* report) const;
  // Writers: brings a reader of this very store to the state between two commits.
  Status CatchUpBetweenCommits(const StoreImpl& reader) const;
  // Writers: opens such a reader. It sees one state however long it takes, and no commit waits for
  // it.
  Result<std::unique_ptr<StoreImpl>> OpenBeside() const;
  // While it lives, this reader shows one state: it waits for a catch-up that is under way, and no
  // other starts.
  class Frozen {
   public:
    explicit Frozen(const StoreImpl* store) : store_(store) {
      const std::lock_guard lock(store_->catch_up_mutex_);
      ++store_->frozen_;
    }
    Frozen(const Frozen&) = delete;
    Frozen& operator=(const Frozen&) = delete;
    ~Frozen() { --store_->frozen_; }

   private:
    const StoreImpl* const store_;
  };
  // For readers.
  Result<CheckReport> CheckFrozen(const CheckOptions& options,
                                  const std::function<Status()>& catch_up) const;
  void MergeLoop(std::stop_token stop);
  void CatchUpLoop(std::stop_token stop);
  void InboxLoop(std::stop_token stop);
  Status MergeSmallFiles();
  Status MergeLocked();  // under the maintenance mutex

  // Constant after opening.
  std::filesystem::path path_;
  StoreOptions options_;
  FormatFile format_;
  std::shared_ptr<const Sealer> sealer_;  // null: not sealed, or opened without the key
  std::unique_ptr<Database> database_;
  std::unique_ptr<ChunkReader> chunk_reader_;

  // These synchronise themselves.
  Pins pins_;
  mutable std::atomic<int64_t> last_catch_up_ms_{0};
  mutable std::mutex catch_up_mutex_;   // readers: held while they catch up
  mutable std::atomic<int> frozen_{0};  // the number of Frozen. It rises under catch_up_mutex_
  struct TagsByStep {
    uint64_t events = 0;  // Database::num_ingest_events when they were read
    RunId run = 0;
    std::map<uint64_t, std::vector<std::string>> tags;
  };
  mutable std::mutex tags_mutex_;
  mutable std::optional<TagsByStep> tags_;  // guarded by tags_mutex_

  // Lock order: inbox, drop, maintenance, learn, commit, saves.
  std::mutex inbox_mutex_;                // held while requests are applied
  std::set<std::string> unapplied_;       // requests that have changed nothing. By inbox_mutex_
  std::mutex drop_mutex_;                 // held while steps are dropped or moved to another run
  mutable std::mutex maintenance_mutex_;  // held while chunk files are rewritten or deleted
  std::atomic<int> reclaims_{0};          // asked for and not yet done
  std::mutex learn_mutex_;                // held while dead_space_ is learned
  mutable FairMutex commit_mutex_;
  DeadSpace dead_space_;      // guarded by commit_mutex_, for writers
  uint64_t num_commits_ = 0;  // guarded by commit_mutex_. Begun, whatever came of them
  std::optional<StepChanges> step_changes_;  // guarded by commit_mutex_. Set while a rewind copies
  std::function<void()> after_copy_for_test_;
  std::function<void()> before_commit_for_test_;
  std::mutex save_id_mutex_;
  uint64_t next_save_id_ = 0;  // guarded by save_id_mutex_
  uint64_t reserved_save_ids_ =
      0;  // guarded by save_id_mutex_: numbers below are persisted as used

  std::mutex background_mutex_;
  std::condition_variable_any background_wake_;
  int commits_since_merge_ =
      INT_MAX / 2;  // guarded by background_mutex_. The store merges once after opening
  std::condition_variable_any inbox_wake_;  // its making takes memory, which a thread may not have
  // These come last, because they must join before anything above is destroyed.
  std::jthread background_;
  std::jthread inbox_loop_;  // writers
};

}  // namespace varve::internal
