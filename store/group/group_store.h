// SPDX-License-Identifier: Apache-2.0
//
// The root of a group as a Store: with a rank, whose saves go to its own member, or without one,
// for commands and readers. The log decides what there is; members hold the bytes. Each operation
// is a file of its own: group_writer.cc, group_reader.cc, group_check.cc.
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

namespace varve {

class GroupStore : public Store {
 public:
  // Without a rank.
  static Result<std::unique_ptr<GroupStore>> OpenPath(const std::filesystem::path& root,
                                                      const StoreOptions& options,
                                                      bool for_writing);
  static Result<std::unique_ptr<GroupStore>> Join(const std::filesystem::path& root,
                                                  const JoinOptions& options);

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

  // Asked by each save of this rank from then on when its part is stored, before it says so to the
  // other ranks: an error ends the save on all of them. Not beside a save.
  void SetCondition(std::function<Status()> condition) { condition_ = std::move(condition); }

  // Asked while a save of this rank waits for others: those of which nothing more comes. Any
  // thread. Not beside a save.
  void SetGone(std::function<std::vector<uint32_t>()> gone) { patience_.gone = std::move(gone); }
  // After so long a wait says on standard error for whom. Not beside a save.
  void SetSaysSoAfter(std::chrono::milliseconds time) { patience_.says_so_after = time; }

  // For one who saves one step at a time and tries again by itself: what fails on this rank before
  // the others have heard of its part leaves the attempt open. The next Begin of the step takes it
  // up once more, and EndSave ends it. No rank begins another attempt for a reason of its own, so
  // none waits for one that the others do not know of. Not beside a save.
  void SetTriesAgain() { tries_again_ = true; }
  bool tries_again() const { return tries_again_; }
  // Whether the save that has failed may be begun again.
  bool MayTryAgain() const { return save_ == nullptr || !save_->is_over(); }
  // The step is saved, or nobody tries it again: then the others hear why, also when this rank has
  // not come to begin it.
  void EndSave(uint64_t step, const SaveOptions& options, const Status& status);

  // --- for the operations ---
  // `pin`: keeps it from being dropped while the reader lives.
  Result<std::unique_ptr<ShardedReader>> OpenShards(const CheckpointId& id, bool pin) const;
  const GroupPlace& place() const { return place_; }
  GroupLog* log() const { return place_.log; }
  PinKeeper* pins() const { return pins_.get(); }
  const Author& author() const { return own_.author; }
  StoreImpl* own_member() const { return own_.store.get(); }
  // Asked by rank 0 with the shards of all ranks before it commits; an error fails the save.
  CoverageProof* coverage() { return &coverage_; }
  const StoreOptions& options() const { return options_; }

  // Proposes a change in the name of this handle. kAborted when its rank's epoch is over.
  Status Propose(const GroupChange& change) const;

  // A member to read from; the rank's own, or one opened beside its writer, which is kept.
  Result<std::shared_ptr<const StoreImpl>> MemberForReading(MemberId member) const;

  // The newest committed attempt that the own member holds a part of; and the shards of that part.
  Result<std::optional<AttemptId>> FindNewestOwn() const;
  Result<std::vector<TensorInfo>> ListOwnShards() const;

  Status AskCondition() const { return condition_ == nullptr ? Status::Ok() : condition_(); }
  // After a save: what others have closed meanwhile leaves the own member, on a thread of its own.
  void SweepLater();
  // Until it has.
  void AwaitSweep() { sweeper_.Await(); }
  bool HasTakenPart(AttemptId attempt) const { return taken_.Has(attempt); }

 private:
  // Attempts by their members in the order of ranks, as the members' steps.
  using ClosedByCrew = std::map<std::vector<MemberId>, std::vector<CheckpointId>>;
  Result<ClosedByCrew> FindClosedBy(std::span<const CheckpointId> ids) const;
  // Calls `visit` with each member and what it would drop.
  Status ForEachMember(
      const ClosedByCrew& closed,
      const std::function<Status(const StoreImpl&, std::span<const CheckpointId>)>& visit) const;
  GroupStore(std::filesystem::path root, const GroupFile& file, const StoreOptions& options,
             bool for_writing);
  static Result<std::unique_ptr<GroupStore>> Load(const std::filesystem::path& root,
                                                  const StoreOptions& options, bool for_writing);
  // A bounded part of the sweep of the own member; whether there is more.
  Result<bool> SweepSomeOfOwn();
  Status RequireWriter() const;
  Result<std::vector<NamedAttempt>> ResolveForDrop(const GroupState& state,
                                                   std::span<const CheckpointId> ids) const;
  // Sweeps each of these members whose lock is free, and the own one if it is among them, and
  // removes those that nothing needs.
  Status SweepMembers(const std::set<MemberId>& members, const ReclaimOptions* reclaim,
                      ReclaimReport* report);
  // By now. What is read of a member while another process removes it may be anything.
  Result<bool> WasRemoved(MemberId member) const;
  Status SweepOther(MemberId member, const ReclaimOptions* reclaim, ReclaimReport* report);
  Status SweepUnlocked(MemberId member, const ReclaimOptions* reclaim, ReclaimReport* report);

  // Constant after opening.
  const StoreOptions options_;
  const bool for_writing_;
  RankPatience patience_;
  const std::unique_ptr<GroupLog> log_;
  const std::unique_ptr<PinKeeper> pins_;  // of readers
  GroupPlace place_;
  OwnMember own_;  // without a rank: no store
  std::function<Status()> condition_;
  bool tries_again_ = false;
  std::shared_ptr<RankSave> save_;  // of whoever tries again

  // Synchronise themselves.
  CoverageProof coverage_;
  std::atomic<uint64_t> closed_when_swept_{0};
  uint64_t dropped_since_reclaim_ = 0;  // by the sweeper's thread alone
  AttemptsTaken taken_;
  mutable std::mutex readers_mutex_;
  mutable std::map<MemberId, std::shared_ptr<const StoreImpl>> readers_;
  Sweeper sweeper_{[this] { return SweepSomeOfOwn(); }};  // ends before all it works on
};

// What the log says of a step. Precondition: it is there.
CheckpointInfo MakeGroupInfo(const GroupState& state, const CheckpointId& id);

}  // namespace varve
