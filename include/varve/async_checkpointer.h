// SPDX-License-Identifier: Apache-2.0
//
// AsyncCheckpointer saves the state of a training in the background, during the next steps.
//
//   VARVE_ASSIGN_OR_RETURN(auto ckpt, varve::AsyncCheckpointer::Open("ckpt"));
//   VARVE_RETURN_IF_ERROR(ckpt->BeginSave(step, state).status());  // does not wait for this save
//   ForwardAndBackward();                        // staging goes on: the state is only read
//   VARVE_RETURN_IF_ERROR(ckpt->AwaitStaged());  // from here on the tensors may change
//   OptimizerStep();                             // encoding and commit go on meanwhile
//   ...
//   return ckpt->Close();                        // ok: all is durable. Otherwise: the first error
//
// The contract: the trainer keeps the tensors of `state` valid and unchanged from BeginSave until
// AwaitStaged has returned. A trainer changes its tensors in the optimizer step and nowhere else,
// so a save may read them during the next forward and backward pass. Each chunk of a tensor is
// digested where it lies. A chunk whose digest differs from the one in the last saved step is
// staged, which means copied to memory of the checkpointer. The digest of each staged chunk is
// computed once more before the chunk is encoded. A chunk that changed while it was staged
// therefore fails the save, and the error names its tensor. A save for which AwaitStaged is never
// called is not committed, and the next BeginSave returns an error.
// CheckpointerOptions::check_staging finds an AwaitStaged that is called after the tensors have
// changed.
//
// Thread rule: one thread at a time, the trainer's. AwaitStaged uses that thread to digest and copy
// chunks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/load.h"
#include "varve/options.h"
#include "varve/retention.h"
#include "varve/store.h"
#include "varve/training_state.h"

namespace varve {

// Says what BeginSave does while the save before is still in progress. Commits never overtake one
// another.
enum class WhenBusy {
  kWait,  // waits until that save has ended
  kSkip,  // does not save this step
};

// Ranks that hold the same part of a tensor hold replicas of it, which are saved once. The policy
// says what a save does when the bytes of replicas differ.
enum class ReplicaPolicy {
  kMustBeEqual,  // the save fails, and names the tensor and the ranks
  // The replica of the lowest rank is saved. SaveStats::warnings names the ranks that differ.
  kTakeLowest,
  // The save does not compare replicas. It saves the tensor of each rank under a name of its own,
  // "rank_00003/NAME". A Restore by the same number of ranks gives each rank its own tensor back.
  // If the number of ranks has changed, LoadOptions::rank_states says what happens.
  kKeepPerRank,
  // As kMustBeEqual, but padding is not compared. Replicas that differ in padding alone are saved
  // once, with the padding of one of them. Tensors on devices must be equal, padding included.
  kEqualButPadding,
};
struct ReplicaRule {
  std::string glob;  // matches tensor names
  ReplicaPolicy policy = ReplicaPolicy::kMustBeEqual;
};

// Says what one save did and what it cost. With many ranks, all numbers are those of this rank.
// Times are in seconds. A save starts in BeginSave, after the wait for the save before it.
struct SaveStats {
  uint64_t step = 0;
  Status status;  // of the save, or of the retention after it
  bool skipped = false;
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;  // raw bytes of all tensors
  uint64_t changed_bytes = 0;  // raw bytes of chunks that differ from the last saved step
  uint64_t staged_bytes = 0;   // the part of changed_bytes that fit in the staging budget
  // The part of staged_bytes that went from a device straight to the host while the trainer waited,
  // because the staging memory of the device was full.
  uint64_t waited_bytes = 0;
  uint64_t new_bytes = 0;        // raw bytes of chunks that the store did not have
  uint64_t stored_bytes = 0;     // encoded bytes of these chunks
  uint64_t dropped_steps = 0;    // steps that the retention after this save dropped
  int attempts = 0;              // tries to commit
  double stall_seconds = 0;      // spent by the trainer in BeginSave and AwaitStaged
  double busy_wait_seconds = 0;  // the part of the stall that waited for the save before
  // The part of the stall that waited for the encoder, because staging was full.
  double staging_wait_seconds = 0;
  double staged_seconds = 0;   // from the start of the save to the end of AwaitStaged
  double durable_seconds = 0;  // from the start of the save to its commit. 0: not committed
  Compression compression = Compression::kAuto;  // the one that this save used
  // Warnings of SaveReport, and replicas that differ (ReplicaPolicy::kTakeLowest).
  std::vector<std::string> warnings{};
};
// Returns one line with step, sizes, times, reasons for waiting, warnings, and the error if any.
std::string ToString(const SaveStats& stats);

// Says what one push in the background did (RemoteOptions).
struct PushStats {
  // The highest step that was due (RemoteOptions) and not sent when this push began.
  uint64_t step = 0;
  Status status;
  int failures = 0;  // pushes that have failed since the last one that succeeded
  // The snapshot that the push made, or that it found up to date. 0: the push failed.
  uint64_t snapshot = 0;
  uint64_t sent_bytes = 0;  // 0: the push failed, or had nothing to send
  double seconds = 0;       // how long the push took. 0: it failed
  // How late the push was, in seconds: from the moment at which its first step became due until the
  // push ended. A step becomes due at its commit, at Open, or at Close.
  double delay_seconds = 0;
  std::string warning{};  // old snapshots could not be removed
};
// Returns one line.
std::string ToString(const PushStats& stats);

// Sends committed steps to an object store, in the background (docs/remote.md). A program that uses
// an s3:// URL calls varve::UseS3 first (varve/s3.h). For a rados:// URL it calls varve::UseRados
// (varve/rados.h).
//
// Saves do not wait for pushes. A push sends the store as it is when the push starts. The next push
// sends the steps that were saved meanwhile. A push takes up to 256 MiB of memory. Its threads run
// only on processors that have nothing else to do. A push that fails is repeated after 1, 2, 4 ...
// 64 seconds, until one succeeds or Close gives up.
//
// A saved step is *due* when it must get to the object store. Each `interval`-th save is due, and
// so is the last one. Steps that the run has at Open are due, too.
//
// If the folder holds no store, Open first pulls the newest snapshot into it (varve/remote.h). If a
// step is not in the store, Restore copies it from the newest snapshot that has it. Chunks that the
// store has already are not fetched.
struct RemoteOptions {
  std::string url{};
  uint64_t interval = 1;  // a number of saves, at least 1
  // How many of the newest snapshots stay in the object store. What only older snapshots need is
  // removed after each push. 0 = all stay.
  uint64_t keep = 0;
  // True: until a push has sent a step that is due, retention does not drop this step.
  bool retention_waits = true;
  // True: when a push has failed, each call that saves, restores or waits returns the error of that
  // push. False: only on_push and last_push report a push that failed. Saves go on. Close returns
  // an error only if a step that is due is still not in the object store.
  bool failure_is_fatal = false;
  // How long Close waits for the last push. The deadline of a save (BeginOptions) or the flag of a
  // StopScope may end the wait earlier. Close then returns an error, and the next job pushes what
  // is missing.
  std::chrono::milliseconds close_timeout{300'000};
  // Called when a push has ended, even if the push has failed. The thread that pushes calls it. It
  // is not called for a push that Close ends. It must not call the checkpointer, and must not
  // throw.
  std::function<void(const PushStats&)> on_push{};
};

struct CheckpointerOptions {
  std::string run = "main";
  // Bytes of host memory for chunks that changed and are not encoded yet. 0 = the size of the state
  // or half of the free memory, whichever is smaller. When more bytes change in one step,
  // AwaitStaged waits until the encoder has read the rest from the trainer's memory. SaveStats says
  // how long.
  uint64_t staging_budget_bytes = 0;
  // Settings of the store. Here `num_threads` is the number of threads of a save. 0 = half of the
  // cores, divided by local_ranks, and at least 1. A Restore uses all cores.
  StoreOptions store;
  int local_ranks = 1;  // processes of this training on this machine, at least 1
  // Reads and writes tensors on devices (varve/cuda.h). Null = all tensors are on the host.
  std::shared_ptr<DeviceTensorSource> devices;
  // Says what a save does if the newest step of the run has the same number. A save of a step
  // before the newest one is refused. There is an exception: a Restore went back to a step before
  // the one that is saved now (BeginSave).
  OnExisting on_existing = OnExisting::kError;
  WhenBusy when_busy = WhenBusy::kWait;
  // With many ranks: how long this rank waits for another rank, in the calls of the RankGroup and
  // in the background. It does not wait for a rank whose connection is closed. Unset: the limit of
  // the RankGroup, and 2 minutes in the background.
  std::optional<std::chrono::milliseconds> timeout{};
  // With many ranks: the first rule that matches a tensor's name decides. Replicas that no rule
  // matches must be equal.
  std::vector<ReplicaRule> replicas;
  // How many times a commit that failed with an I/O error is tried again, after 1, 2, 4 ... 64
  // seconds. 0 = never. A negative number is not allowed. A commit is tried again only if all
  // chunks that changed were staged. If the store cannot start the save because of an I/O error,
  // the start is tried again in the same way, and AwaitStaged waits for these tries. With many
  // ranks, a rank that could not store its part tries again while the others wait. If its last try
  // fails, the save fails on all ranks.
  int retries = 0;
  // A check for new trainers: the share of chunks, 0 to 1, that BeginSave digests before it
  // returns. 0 = no check. AwaitStaged digests the same chunks again. If the share is more than 0,
  // at least one chunk of each tensor on the host is checked. If a tensor has changed in between,
  // AwaitStaged was called too late. The save then fails, and the error names the tensor. Each of
  // the two calls takes as long as a digest pass over that share. Tensors on devices are not
  // checked.
  double check_staging = 0;
  // True: after a save, or the retention after it, has failed, each call that saves, restores or
  // waits returns that error, and so does Close. False: later saves go on. The error is in
  // SaveStats, and Close returns it.
  bool failure_is_fatal = true;
  // Says which steps stay after each commit. The step just saved always stays. Unset = all steps
  // stay.
  std::optional<RetentionPolicy> retention;
  // Called once for each save, when it has ended (durable or failed) and AwaitStaged has returned.
  // A thread of the checkpointer calls it. It is also called for each step that was skipped, on the
  // thread that called BeginSave. Both threads may call it at the same time. It must not call the
  // checkpointer, and must not throw.
  std::function<void(const SaveStats&)> on_save;
  // Unset = nothing is pushed. The root of a group cannot be pushed: OpenGroupCheckpointer returns
  // kInvalidArgument if this is set.
  std::optional<RemoteOptions> remote{};
};

struct BeginOptions {
  // The time at which the machine is taken away. With a deadline, a save uses as many threads as
  // there are cores. It stores data uncompressed when encoding is estimated to take more than half
  // of the time left. Unset: no deadline.
  std::optional<std::chrono::steady_clock::time_point> deadline{};
  // True: the caller calls AwaitStaged at once, as Save does. Chunks on a device are then first
  // copied to the staging memory of that device, as far as there is room.
  bool waits_at_once = false;
};

class AsyncCheckpointer {
 public:
  // Opens the store in `path`, or makes it. Errors are those of Store::OpenOrCreate, and the
  // following. kInvalidArgument: an option is out of range. kFailedPrecondition has three cases.
  // `path` is the root of a group: use OpenGroupCheckpointer. The URL of options.remote holds
  // snapshots of another store: use another URL. The newest snapshot has a step of the run that is
  // later than all steps of the store in `path`: move the folder away, so that Open pulls the
  // newest snapshot, or keep the store and send it with varve::Push. kUnavailable: the system gives
  // no more threads, or there is no store yet and the object store does not answer.
  static Result<std::unique_ptr<AsyncCheckpointer>> Open(const std::filesystem::path& path,
                                                         const CheckpointerOptions& options = {});
  // The destructor closes the checkpointer. In a group it does not communicate with the other
  // ranks, unlike Close (varve/group_checkpointer.h). An error that no call has returned is printed
  // to standard error.
  virtual ~AsyncCheckpointer() = default;
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // Takes the staging memory for a state of this size now, so that the first save does not wait for
  // it. Waits for a save in progress. kInvalidArgument: as BeginSave. kUnavailable: not enough
  // memory.
  virtual Status Prewarm(const TrainingState& state) = 0;

  // Starts a save. Threads of the checkpointer read the tensors after the call has returned. The
  // caller may change or destroy `state` then, but the memory of the tensors must stay valid and
  // unchanged until AwaitStaged has returned. The variables of items are read before the call
  // returns. Returns false when the step is skipped (WhenBusy).
  //
  // kInvalidArgument names what is wrong with `state`. kUnavailable: not enough memory.
  // kFailedPrecondition: AwaitStaged has not been called for the save before (RequireAwaited), or
  // the checkpointer is closed. BeginSave also returns an error of ItemVariable::Read. After an
  // error no save is started.
  //
  // AwaitStaged refuses this save in two cases. kFailedPrecondition: the run has a later step.
  // kAlreadyExists: the run has this step, and on_existing is kError. AwaitStaged then returns that
  // error once, and nothing is saved. A refused save is not a failed one (failure_is_fatal), so
  // later calls go on.
  //
  // The first save after a Restore of an earlier step moves the steps after the restored one to a
  // new run RUN~1, or ~2 ... (Store::Rewind). So the run can get steps of these numbers again.
  virtual Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                                 const BeginOptions& options = {}) = 0;
  // Returns when the trainer may change its tensors. When no save is being staged, AwaitStaged does
  // not wait. With one rank it may still return the error of an earlier save. If AwaitStaged was
  // not called for the save before, BeginSave returns the error of RequireAwaited.
  // Prewarm, Wait, ReleaseStaging, Restore and Close call AwaitStaged themselves. SetMetrics and
  // SetTag call AwaitStaged if their step is being saved. With many ranks they always call it. A
  // save commits only after AwaitStaged. AwaitStaged returns an error if this save was refused, if
  // check_staging has found a changed tensor, or if DeviceTensorSource::MarkRelease fails. With
  // many ranks it also returns an error if a rank is gone, or does not come in time, before all
  // ranks have staged. If failure_is_fatal is true, it also returns all other errors of saves. If
  // RemoteOptions::failure_is_fatal is true, it also returns errors of pushes.
  virtual Status AwaitStaged() = 0;
  // Returns Ok if no save waits for AwaitStaged. BeginSave and TrainerHooks::AfterStep call
  // RequireAwaited. To find a forgotten AwaitStaged, call RequireAwaited yourself after the tensors
  // have changed, as after an optimizer step. kFailedPrecondition: a save has started, and
  // AwaitStaged has not been called for it. The chunks that were copied may then be of two steps.
  // That save fails and is not committed, and its tensors are not read any more. If that save was
  // refused (BeginSave), RequireAwaited returns the refusal instead.
  virtual Status RequireAwaited() = 0;
  // Calls BeginSave, then AwaitStaged. Results and errors as theirs.
  Result<bool> Save(uint64_t step, const TrainingState& state, const BeginOptions& options = {});

  // Returns when the last save is durable, or has failed. Errors as AwaitStaged.
  virtual Status Wait() = 0;
  // Waits, then gives the staging memory back to the system. The next save takes it again.
  virtual Status ReleaseStaging() = 0;

  // Waits for a save in progress, then loads a step of this run into `into`, to go on training from
  // there (see BeginSave). `step` is a step expression (varve/step.h), such as "latest",
  // "best:loss", a number or a tag. Errors as LoadState. kNotFound: no such step. To read a step
  // without going back to it, use LoadState with a reader of store().
  virtual Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                                     TrainingState* into) = 0;
  // The same for a checkpoint that is given by its id. Store::Resolve returns such ids.
  // kInvalidArgument: the step is of another run than CheckpointerOptions::run.
  virtual Result<LoadReport> Restore(const CheckpointId& id, const LoadOptions& options,
                                     TrainingState* into) = 0;

  // SetMetrics adds metrics to a saved step. SetTag gives it a tag. Both work as in Store. They are
  // for what is known only after the save, such as the result of an evaluation. If this step is
  // being saved, they wait. If the last save was of this step and failed or was refused, they
  // return its error. With many ranks they always call AwaitStaged. kNotFound names the step.
  virtual Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) = 0;
  virtual Status SetTag(uint64_t step, std::string_view tag) = 0;

  // Waits for the save in progress, then for the last push, and closes the store. Returns the first
  // error of a save or of the retention after it, even if failure_is_fatal is false. If there was
  // none, Close returns an error when a step that is due is still not in the object store. A later
  // Close does nothing and returns Ok. After Close, every other call that saves, loads, waits for a
  // save or changes the store returns kFailedPrecondition, and store() must not be called.
  virtual Status Close() = 0;

  // Statistics of the last save that ended or was skipped. nullopt: there was none.
  virtual std::optional<SaveStats> last_stats() const = 0;
  // Statistics of the last push that ended. nullopt: there was none.
  virtual std::optional<PushStats> last_push() const { return std::nullopt; }
  // The error that later calls return (failure_is_fatal), or Ok. With many ranks, it is the error
  // of this rank. The call does not communicate.
  virtual Status failure() const = 0;
  // The store, which the checkpointer owns. Any thread may use it for queries, even during a save.
  // Do not use it after Close.
  virtual Store& store() = 0;

 protected:
  AsyncCheckpointer() = default;
};

}  // namespace varve
