// SPDX-License-Identifier: Apache-2.0
//
// The root of a group as a Store. With a rank, its saves go to the rank's own member. Commands and
// readers open it without a rank. The log decides which checkpoints exist. Members hold the bytes.
// Each operation has its own file: group_writer.cc, group_reader.cc, group_check.cc.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "store/group/coverage_proof.h"
#include "store/group/group_log.h"
#include "store/group/member.h"
#include "store/group/pin_keeper.h"
#include "store/group/rank_save.h"
#include "store/group/sweeper.h"
#include "varve/group.h"

namespace varve::internal {

class GroupStore : public Store {
 public:
  // Opens the root without a rank.
  static Result<std::unique_ptr<GroupStore>> OpenPath(const std::filesystem::path& root,
                                                      const StoreOptions& options,
                                                      bool for_writing);
  static Result<std::unique_ptr<GroupStore>> Join(const std::filesystem::path& root,
                                                  const JoinOptions& options);

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

  // Each later save of this rank calls `condition` when its part is stored, before it tells the
  // other ranks. An error ends the save on all ranks. Do not call this during a save.
  void SetCondition(std::function<Status()> condition) { condition_ = std::move(condition); }

  // Sets a function that says from which ranks nothing more comes. It is called while a save of
  // this rank waits for others, on any thread. Do not call this during a save.
  void SetGone(std::function<std::vector<uint32_t>()> gone) { patience_.gone = std::move(gone); }
  // After waiting this long, standard error says for whom. Do not call this during a save.
  void SetSaysSoAfter(std::chrono::milliseconds time) { patience_.says_so_after = time; }

  // For a caller that saves one step at a time and retries by itself. When this rank fails before
  // the others have heard of its part, the attempt stays open. The next Begin of the step takes it
  // up again, and EndSave ends it. No rank starts another attempt on its own, so none waits for an
  // attempt that the others do not know. Do not call this during a save.
  void SetTriesAgain() { tries_again_ = true; }
  bool tries_again() const { return tries_again_; }
  // True when the failed save may be started again.
  bool MayTryAgain() const { return save_ == nullptr || !save_->is_over(); }
  // Call it when the step is saved, or when nobody tries again. In that case it tells the others
  // why, even if this rank has not started the save.
  void EndSave(uint64_t step, const SaveOptions& options, const Status& status);

  // --- for the operations ---
  //
  // `pin` keeps the checkpoint from being dropped while the reader lives.
  Result<std::unique_ptr<ShardedReader>> OpenShards(const CheckpointId& id, bool pin) const;
  const GroupPlace& place() const { return place_; }
  GroupLog* log() const { return place_.log; }
  PinKeeper* pins() const { return pins_.get(); }
  const Author& author() const { return own_.author; }
  StoreImpl* own_member() const { return own_.store.get(); }
  // Rank 0 asks it about the shards of all ranks before it commits. An error fails the save.
  CoverageProof* coverage() { return &coverage_; }
  const StoreOptions& options() const { return options_; }

  // Proposes a change in the name of this handle. kAborted: the epoch of its rank is over.
  Status Propose(const GroupChange& change) const;

  // Returns a member to read from. It is the rank's own, or one that is opened beside its writer
  // and kept.
  Result<std::shared_ptr<const StoreImpl>> MemberForReading(MemberId member) const;

  // Returns the newest committed attempt of which the own member holds a part. The next returns the
  // shards of that part.
  Result<std::optional<AttemptId>> FindNewestOwn() const;
  Result<std::vector<TensorInfo>> ListOwnShards() const;

  Status AskCondition() const { return condition_ == nullptr ? Status::Ok() : condition_(); }
  // Call it after a save. It removes from the own member what others have closed meanwhile, on a
  // thread of its own.
  void SweepLater();
  // Waits until that is done.
  void AwaitSweep() { sweeper_.Await(); }
  // Returns the warnings of such sweeps, each once. The report of the next save names them.
  std::vector<std::string> TakeWarnings();
  bool HasTakenPart(AttemptId attempt) const { return taken_.Has(attempt); }

 protected:
  // Callers get a GuardedStore.
  GroupStore(std::filesystem::path root, const GroupFile& file, const StoreOptions& options,
             bool for_writing);

 private:
  // Attempts that the same members hold. The key is the members in the order of ranks, the value
  // the attempts as steps of the members.
  using ClosedByCrew = std::map<std::vector<MemberId>, std::vector<CheckpointId>>;
  Result<ClosedByCrew> FindClosedBy(std::span<const CheckpointId> ids) const;
  // Calls `visit` with each member and the attempts that it would drop.
  Status ForEachMember(
      const ClosedByCrew& closed,
      const std::function<Status(const StoreImpl&, std::span<const CheckpointId>)>& visit) const;
  static Result<std::unique_ptr<GroupStore>> Load(const std::filesystem::path& root,
                                                  const StoreOptions& options, bool for_writing);
  // Does a bounded part of the sweep of the own member. Returns whether there is more to do.
  Result<bool> SweepSomeOfOwn();
  Status RequireWriter() const;
  Result<std::vector<NamedAttempt>> ResolveForDrop(const GroupState& state,
                                                   std::span<const CheckpointId> ids) const;
  // Sweeps each of these members whose lock is free, and the own one if it is among them. It
  // removes members that nothing needs.
  Status SweepMembers(const std::set<MemberId>& members, const ReclaimOptions* reclaim,
                      ReclaimReport* report);
  // True when `member` has been removed by now. What is read from a member while another process
  // removes it may be anything.
  Result<bool> WasRemoved(MemberId member) const;
  Status SweepOther(MemberId member, const ReclaimOptions* reclaim, ReclaimReport* report);
  Status SweepUnlocked(MemberId member, const ReclaimOptions* reclaim, ReclaimReport* report);
  // Keeps warnings of drops whose own report has no place for them.
  void NoteWarnings(const std::vector<std::string>& warnings);

  // Constant after opening.
  const StoreOptions options_;
  const bool for_writing_;
  RankPatience patience_;
  const std::unique_ptr<GroupLog> log_;
  const std::unique_ptr<PinKeeper> pins_;  // for readers
  GroupPlace place_;
  OwnMember own_;  // has no store without a rank
  std::function<Status()> condition_;
  bool tries_again_ = false;
  std::shared_ptr<RankSave> save_;  // the save of a caller that retries

  // These synchronise themselves.
  CoverageProof coverage_;
  std::atomic<uint64_t> closed_when_swept_{0};
  uint64_t dropped_since_reclaim_ = 0;  // used by the sweeper's thread only
  AttemptsTaken taken_;
  std::mutex warnings_mutex_;
  std::vector<std::string> warnings_;  // guarded by warnings_mutex_
  mutable std::mutex readers_mutex_;
  mutable std::map<MemberId, std::shared_ptr<const StoreImpl>> readers_;
  Sweeper sweeper_{
      [this] { return SweepSomeOfOwn(); }};  // must end before everything that it works on
};

// Returns what the log says about a step. Precondition: the step exists.
CheckpointInfo MakeGroupInfo(const GroupState& state, const CheckpointId& id);

}  // namespace varve::internal
