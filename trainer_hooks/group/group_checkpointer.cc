// SPDX-License-Identifier: Apache-2.0
//
// All ranks decide alike: each call does its local part and then agrees on the outcome. What runs
// in the background communicates only through the log of the group.
#include "varve/group_checkpointer.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "base/guarded.h"
#include "base/seconds_since.h"
#include "base/util.h"
#include "store/format/group_file.h"
#include "store/group/group_store.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/load_together.h"
#include "trainer_hooks/group/replicas.h"
#include "trainer_hooks/group/verdict.h"
#include "trainer_hooks/save/make_checkpointer.h"
#include "trainer_hooks/state/item_variables.h"
#include "trainer_hooks/state/validate_state.h"
#include "varve/group.h"
#include "varve/step.h"

namespace varve {
using namespace internal;

namespace {

// How long one that goes without Close waits for the parts of other ranks.
constexpr auto kPatienceAtTheEnd = std::chrono::seconds(30);

using Clock = std::chrono::steady_clock;

class GroupCheckpointer : public AsyncCheckpointer {
 public:
  // `own` asks `verdict` before it says that its part of a save is there.
  // `store` is that of `own`.
  GroupCheckpointer(std::unique_ptr<OwnCheckpointer> own, GroupStore* store,
                    const CheckpointerOptions& options, RankGroup* ranks,
                    std::shared_ptr<Verdict> verdict)
      : own_(std::move(own)),
        run_(options.run),
        on_existing_(options.on_existing),
        when_busy_(options.when_busy),
        failure_is_fatal_(options.failure_is_fatal),
        devices_(options.devices),
        ranks_(ranks),
        replicas_(ranks, options.replicas, options.devices.get(), SaveThreads(options),
                  [this] { return store_->ListOwnShards(); }),
        verdict_(std::move(verdict)),
        store_(store) {}
  ~GroupCheckpointer() override {
    // Without Close, as after an error of another rank: what it left undone is not waited for long.
    if (!is_closed_) store_->log()->Hurry(kPatienceAtTheEnd);
    verdict_->Give(Status::Aborted("the checkpointer has gone before AwaitStaged was called"));
  }

  Status Prewarm(const TrainingState& state) override {
    VARVE_RETURN_IF_ERROR(Wait());  // fails after Close, when there is no store to plan with
    VARVE_RETURN_IF_ERROR(Agree(ranks_, ValidateState(state, devices_.get())));
    return PlanAndPrewarm(state, /*reads_variables=*/false).status();
  }
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override {
    notes_ = {};
    const Clock::time_point start = Clock::now();
    VARVE_RETURN_IF_ERROR(Agree(ranks_, RequireAwaited()));
    VARVE_RETURN_IF_ERROR(AgreeOnNumber(ranks_, "the step to save", step));
    if (when_busy_ == WhenBusy::kSkip) {
      VARVE_ASSIGN_OR_RETURN(const bool is_busy, IsTrueOnAny(ranks_, own_->IsBusy()));
      if (is_busy) {
        own_->Skip(step);
        return false;
      }
    }
    // What can fail on one rank alone fails before any rank begins: else the others would wait for
    // it.
    const Clock::time_point wait = Clock::now();
    Status ready = own_->Wait();
    notes_.busy_wait_seconds = SecondsSince(wait);
    if (ready.ok()) ready = ValidateState(state, devices_.get());
    // The mark is for replicas, too, which another rank may save.
    if (ready.ok() && devices_ != nullptr) ready = devices_->MarkBegin();
    VARVE_RETURN_IF_ERROR(Agree(ranks_, ready));
    VARVE_ASSIGN_OR_RETURN(auto part, PlanAndPrewarm(state, /*reads_variables=*/true));
    verdict_->Expect();
    notes_.stall_seconds = SecondsSince(start);
    const Status own = own_->BeginSaveOf(step, std::move(part), options);
    const Clock::time_point agree = Clock::now();
    const Status begun = Agree(ranks_, own);
    if (!begun.ok()) {
      verdict_->Give(begun);
      // It fails with that verdict, but may be copying the trainer's memory. Where none has begun,
      // the others wait for this rank.
      if (own.ok()) {
        own_->AwaitStaged().IgnoreError();
      } else {
        store_->EndSave(step, {.run = run_, .on_existing = on_existing_}, own);
      }
      return begun;
    }
    replicas_.Begin();
    is_staging_ = true;
    notes_.stall_seconds += SecondsSince(agree);
    return true;
  }
  // Between saves no rank asks the others: what has failed since is said by the next call that
  // saves, waits or closes, and TrainerHooks asks at each step.
  Status AwaitStaged() override { return is_closed_ ? own_->AwaitStaged() : Settle(); }
  // Not collective.
  Status RequireAwaited() override {
    if (!is_staging_) return is_closed_ ? own_->RequireAwaited() : Status::Ok();
    is_staging_ = false;
    const Status forgotten = own_->RequireAwaited();
    replicas_.End();
    verdict_->Give(forgotten);
    return forgotten;
  }
  Status Wait() override {
    const Status settled = Settle();
    const Status waited = Agree(ranks_, own_->Wait());
    return settled.ok() ? waited : settled;
  }
  Status ReleaseStaging() override {
    const Status settled = Settle();
    const Status released = Agree(ranks_, own_->ReleaseStaging());
    return settled.ok() ? released : settled;
  }

  Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                             TrainingState* into) override {
    return RestoreFound([&] { return ResolveStepOfRun(own_->store(), run_, step); }, options, into);
  }
  Result<LoadReport> Restore(const CheckpointId& id, const LoadOptions& options,
                             TrainingState* into) override {
    const auto check = [&]() -> Result<CheckpointId> {
      VARVE_RETURN_IF_ERROR(RequireRun(id, run_));
      return id;
    };
    return RestoreFound(check, options, into);
  }

  Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) override {
    VARVE_RETURN_IF_ERROR(Settle());
    return Agree(ranks_, IsFirst() ? own_->SetMetrics(step, metrics) : Status::Ok());
  }
  Status SetTag(uint64_t step, std::string_view tag) override {
    VARVE_RETURN_IF_ERROR(Settle());
    return Agree(ranks_, IsFirst() ? own_->SetTag(step, tag) : Status::Ok());
  }
  // Every rank closes, also after an error of another.
  Status Close() override {
    if (is_closed_) return Status::Ok();
    Settle().IgnoreError();  // it fails the save, and so Close of `own_`
    const Status closed = own_->Close();
    is_closed_ = true;
    return Agree(ranks_, closed);
  }

  std::optional<SaveStats> last_stats() const override { return own_->last_stats(); }
  Status failure() const override { return own_->failure(); }
  Store& store() override { return own_->store(); }

 private:
  bool IsFirst() const { return ranks_->rank() == 0; }

  // What this rank saves of a state, copied. All memory that a save of it needs is there.
  Result<std::shared_ptr<const SaveState>> PlanAndPrewarm(const TrainingState& state,
                                                          bool reads_variables) {
    VARVE_ASSIGN_OR_RETURN(std::vector<StateTensor> tensors, replicas_.Plan(state));
    TrainingState part = WithoutTensors(state);
    part.tensors = std::move(tensors);
    Status ready = own_->Wait();
    if (ready.ok() && reads_variables) ready = ReadVariables(&part.items);
    if (ready.ok()) ready = ValidateState(part, devices_.get());
    std::shared_ptr<const SaveState> copy;
    if (ready.ok()) {
      ready = Guarded("preparing saves", [&] {
        copy = MakeSaveState(std::move(part), tensors_);
        return own_->PrewarmFor(copy->tensors);
      });
    }
    if (ready.ok()) ready = replicas_.Prepare(state);
    VARVE_RETURN_IF_ERROR(Agree(ranks_, ready));
    tensors_ = copy->tensors;
    return copy;
  }

  // Loads the step that rank 0 finds, once no save is in progress.
  Result<LoadReport> RestoreFound(const std::function<Result<CheckpointId>()>& find,
                                  const LoadOptions& options, TrainingState* into) {
    VARVE_RETURN_IF_ERROR(Wait());
    VARVE_ASSIGN_OR_RETURN(const CheckpointId id, StepFromRankZero(ranks_, find));
    return LoadTogether(ranks_, options, *into, [&](const LoadOptions& with, RegionReader* read) {
      return own_->RestoreThrough(id, with, read, into);
    });
  }

  // The trainer's part of a save that has begun: all is staged, and replicas are equal. Until then
  // the save does not commit, so every call that waits for it comes here first.
  Status Settle() {
    if (!is_staging_) return Status::Ok();
    is_staging_ = false;
    const Status own = own_->AwaitStaged();
    const Clock::time_point start = Clock::now();
    const Status staged = Agree(ranks_, own);
    const Status equal = staged.ok() ? replicas_.Compare(&notes_.warnings) : staged;
    replicas_.End();
    notes_.stall_seconds += SecondsSince(start);
    verdict_->Give(equal, std::move(notes_));
    return failure_is_fatal_ ? equal : staged;
  }

  const std::unique_ptr<OwnCheckpointer> own_;
  const std::string run_;
  const OnExisting on_existing_;
  const WhenBusy when_busy_;
  const bool failure_is_fatal_;
  const std::shared_ptr<DeviceTensorSource> devices_;
  RankGroup* const ranks_;
  ReplicaKeeper replicas_;
  const std::shared_ptr<Verdict> verdict_;
  GroupStore* const store_;  // of own_, until it is closed
  bool is_staging_ = false;
  GroupNotes notes_;                             // of the save that is staged
  std::shared_ptr<const StateTensors> tensors_;  // of the last save that all were ready for
  bool is_closed_ = false;
};

// Rank 0 starts the job anew. All ranks get the same epoch, and check that the group is the same.
Result<uint64_t> StartTogether(const std::filesystem::path& root, RankGroup* ranks) {
  struct Started {
    uint64_t epoch = 0;
    Digest group_id;
  };
  Started started;
  const auto start = [&]() -> Result<std::string> {
    VARVE_ASSIGN_OR_RETURN(started.epoch,
                           Group::StartEpoch(root, static_cast<uint32_t>(ranks->size())));
    VARVE_ASSIGN_OR_RETURN(const GroupFile file, ReadGroupFile(root));
    started.group_id = file.group_id;
    return std::string(AsString(std::as_bytes(std::span(&started, 1))));
  };
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, FromRankZero(ranks, start));
  const Result<GroupFile> mine = ReadGroupFile(root);
  Status same = mine.status();
  if (bytes.size() != sizeof(started)) {
    same = Status::Unavailable("rank 0 sent no epoch");
  } else {
    std::memcpy(&started, bytes.data(), sizeof(started));
  }
  if (same.ok() && mine->group_id != started.group_id) {
    same = Status::FailedPrecondition(root.string() + " is group " + ToHex(mine->group_id) +
                                      " here, but " + ToHex(started.group_id) +
                                      " on rank 0: all ranks must have one folder");
  }
  VARVE_RETURN_IF_ERROR(Agree(ranks, same));
  return started.epoch;
}

}  // namespace

Result<std::unique_ptr<AsyncCheckpointer>> OpenGroupCheckpointer(
    const std::filesystem::path& root, RankGroup* ranks, const CheckpointerOptions& options) {
  Status valid = ValidateOptions(options);
  if (valid.ok() && options.remote.has_value()) {
    valid = Status::InvalidArgument(
        root.string() +
        " is the root of a group, which cannot be pushed yet: copy steps of it to "
        "a store (varve copy) and push that");
  }
  VARVE_RETURN_IF_ERROR(Agree(ranks, valid));
  if (options.timeout.has_value()) ranks->set_timeout(*options.timeout);
  VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, StartTogether(root, ranks));
  Result<std::unique_ptr<GroupStore>> store =
      GroupStore::Join(root, {.rank = static_cast<uint32_t>(ranks->rank()),
                              .epoch = epoch,
                              .timeout = options.timeout.value_or(JoinOptions().timeout),
                              .store = StoreOptionsOf(options)});
  VARVE_RETURN_IF_ERROR(Agree(ranks, store.status()));
  const auto verdict = std::make_shared<Verdict>();
  GroupStore* const group = store->get();
  group->SetCondition([verdict] { return verdict->Await(); });
  group->SetTriesAgain();
  group->SetGone([ranks] {
    const std::vector<int> gone = ranks->gone();
    return std::vector<uint32_t>(gone.begin(), gone.end());
  });
  CheckpointerOptions own = options;
  own.when_busy = WhenBusy::kWait;  // whether to skip is decided by all
  if (ranks->rank() != 0) own.retention.reset();
  auto checkpointer = MakeCheckpointer(
      *std::move(store), root, own,
      {.annotate = [verdict](SaveStats* stats) { verdict->AddNotesTo(stats); },
       .may_try_again = [group] { return group->MayTryAgain(); },
       .keep_every = options.retention.has_value() ? options.retention->keep_every : 0,
       .ended = [group](uint64_t step, const SaveOptions& with,
                        const Status& status) { group->EndSave(step, with, status); }});
  VARVE_RETURN_IF_ERROR(Agree(ranks, checkpointer.status()));
  return std::unique_ptr<AsyncCheckpointer>(std::make_unique<GroupCheckpointer>(
      *std::move(checkpointer), group, options, ranks, verdict));
}

}  // namespace varve
