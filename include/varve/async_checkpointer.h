// SPDX-License-Identifier: Apache-2.0
//
// AsyncCheckpointer: saves a training in the background of its next steps.
//
//   VARVE_ASSIGN_OR_RETURN(auto ckpt, varve::AsyncCheckpointer::Open("ckpt"));
//   VARVE_RETURN_IF_ERROR(ckpt->BeginSave(step, state).status());  // returns at once
//   ForwardAndBackward();                        // staging goes on: the state is only read
//   VARVE_RETURN_IF_ERROR(ckpt->AwaitStaged());  // from here on the tensors may change
//   OptimizerStep();                             // encoding and commit go on meanwhile
//   ...
//   return ckpt->Close();                        // the last save is durable, or this is the error
//
// The contract: the tensors of `state` stay valid and unchanged from BeginSave until AwaitStaged
// has returned. They change in the optimizer step and nowhere else, so staging may overlap the next
// forward and backward. Of the state only what differs from the step before is copied: each chunk
// is digested where it lies, and staged when its digest is new. The digest of each staged chunk is
// computed once more before it is encoded, so a chunk that changed while it was staged fails the
// save, by its tensor's name. A save for which AwaitStaged is never called is not committed, and
// the next BeginSave is an error. An AwaitStaged that comes after the tensors have changed is found
// by CheckpointerOptions::check_staging.
//
// Thread rule: one thread at a time, the trainer's. AwaitStaged works on that thread, too.
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

// What BeginSave does while the save before is still under way. Commits never overtake one another.
enum class WhenBusy {
  kWait,  // for it to be durable
  kSkip,  // does not save this step
};

// Ranks that hold the same part of a tensor hold replicas of it, which are saved once. What to do
// when their bytes differ.
enum class ReplicaPolicy {
  kMustBeEqual,  // the save fails, and names the tensor and the ranks
  kTakeLowest,   // the lowest rank's is saved; the others are named in SaveStats::warnings
  // They are no replicas: each rank's is saved as a tensor of its own, "rank_00003/NAME", equal or
  // not. A Restore by as many ranks gives each its own back; LoadOptions::rank_states says what
  // other ranks get.
  kKeepPerRank,
  // As kMustBeEqual, but padding does not count: replicas that differ there alone are one, and the
  // padding of any of them is saved. Not for tensors on devices: those must be equal.
  kEqualButPadding,
};
struct ReplicaRule {
  std::string glob;  // of tensor names
  ReplicaPolicy policy = ReplicaPolicy::kMustBeEqual;
};

// What one save did and cost. Seconds are counted from BeginSave. With ranks, of what this rank
// saved.
struct SaveStats {
  uint64_t step = 0;
  Status status;  // of the save, or of the retention after it
  bool skipped = false;
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  uint64_t changed_bytes = 0;  // raw bytes of chunks that differ from the step before
  uint64_t staged_bytes = 0;   // of them, copied; the rest did not fit the staging budget
  // Of these, on devices: had no room in the staging there, so the trainer waited until they were
  // on their way to the host.
  uint64_t waited_bytes = 0;
  uint64_t new_bytes = 0;      // of them, raw bytes of chunks that the store did not have
  uint64_t stored_bytes = 0;   // encoded bytes of those
  uint64_t dropped_steps = 0;  // by the retention
  int attempts = 0;
  double stall_seconds = 0;         // that the trainer was held in BeginSave and AwaitStaged
  double busy_wait_seconds = 0;     // of the stall: waiting for the save before
  double staging_wait_seconds = 0;  // of the stall: waiting for the encoder, as staging was full
  double staged_seconds = 0;        // until the trainer might change its tensors
  double durable_seconds = 0;       // until the checkpoint was durable
  Compression compression = Compression::kAuto;  // that was used
  // Replicas that differ, see ReplicaPolicy::kTakeLowest; and those of SaveReport.
  std::vector<std::string> warnings{};
};
// One line: step, sizes, times, why it waited, warnings, and the error if there is one.
std::string ToString(const SaveStats& metrics);

struct CheckpointerOptions {
  std::string run = "main";
  // For what has changed and is not yet encoded. 0 = the smaller of the state and half of the free
  // RAM. When more than that changes at once, AwaitStaged waits until the encoder has read the rest
  // where it lies, and the metrics say for how long.
  uint64_t staging_budget_bytes = 0;
  // For chunks on their way and RocksDB's buffers. Thread count, codec and chains as for any store;
  // `num_threads` here: 0 = half of the cores, divided by local_ranks.
  StoreOptions store;
  int local_ranks = 1;  // processes that share this machine
  // Where the tensors with a device are; null = there are none. See varve/cuda.h.
  std::shared_ptr<DeviceTensorSource> devices;
  OnExisting on_existing = OnExisting::kError;
  WhenBusy when_busy = WhenBusy::kWait;
  // With ranks: how long this rank waits for another, in the calls of the RankGroup and in the
  // background. One whose connection is closed is not waited for. Unset: the RankGroup's own limit,
  // and 2 minutes in the background.
  std::optional<std::chrono::milliseconds> timeout{};
  // With ranks. The first rule that matches a name decides; without one, replicas must be equal.
  std::vector<ReplicaRule> replicas;
  // A commit that fails with an I/O error is tried again so many times, after 1, 2, 4 ... seconds,
  // if all that changed was staged. So is the begin of a save, and AwaitStaged then waits for it.
  // With ranks each tries again to store its own part, while the others wait; what fails after that
  // fails the save on all of them.
  int retries = 0;
  // For bringing a trainer up: the share of chunks, 0 to 1, that BeginSave digests before it
  // returns, and AwaitStaged once more; at least one of each tensor on the host. A tensor that has
  // changed in between fails the save by its name: AwaitStaged comes too late. It costs a digest
  // pass of that share in either call. Tensors on devices are not checked.
  double check_staging = 0;
  // True: the error of a failed save is returned by every later call. False: later saves go on, the
  // error is in the metrics, and Close returns it.
  bool failure_is_fatal = true;
  // What stays after each commit; unset = everything. The step just saved always stays.
  std::optional<RetentionPolicy> retention;
  // Called when a save has ended, well or not, and AwaitStaged has returned; or when one was
  // skipped. On a thread of the checkpointer, or the caller's when skipped, perhaps at the same
  // time. Must not call the checkpointer, nor throw.
  std::function<void(const SaveStats&)> on_save;
};

struct BeginOptions {
  // When the machine will be gone. As many threads work then as there are cores; and data is stored
  // without compression when the estimate says that it might not be durable in time otherwise.
  std::optional<std::chrono::steady_clock::time_point> deadline{};
  // AwaitStaged follows without any work of the trainer before it, as in Save: chunks on devices
  // are then copied within the device at once, as far as that has staging memory.
  bool waits_at_once = false;
};

class AsyncCheckpointer {
 public:
  // Opens the store, or makes it. Errors as Store::OpenOrCreate.
  static Result<std::unique_ptr<AsyncCheckpointer>> Open(const std::filesystem::path& path,
                                                         const CheckpointerOptions& options = {});
  virtual ~AsyncCheckpointer() = default;  // as Close; an error nobody has seen goes to stderr
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // Pays now what the first save would: takes the staging memory for a state of this size.
  // kInvalidArgument as BeginSave.
  virtual Status Prewarm(const TrainingState& state) = 0;

  // Starts to save. kFailedPrecondition: as RequireAwaited of the save before, and nothing is
  // begun. Copies everything of `state` but the tensors' data, which must stay as they are until
  // AwaitStaged has returned. False: skipped, see WhenBusy. kInvalidArgument names what is wrong
  // with `state`. kAlreadyExists, kFailedPrecondition: the step is not the newest of its run; these
  // come from AwaitStaged, once, and nothing is saved.
  //
  // The first save after a Restore of an earlier step moves the steps after it to a run of their
  // own, RUN~1, ..., so that saving them again just works (Store::Rewind).
  virtual Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                                 const BeginOptions& options = {}) = 0;
  // Returns when the trainer may change its tensors. No effect when nothing is being staged. Wait
  // and all that waits for a save call it. A save commits after it.
  virtual Status AwaitStaged() = 0;
  // For who knows that the tensors have changed, as after an optimizer step: kFailedPrecondition
  // when a save has begun and AwaitStaged has not been called for it, as what was copied may be of
  // two steps. That save fails, is not committed, and its memory is not read any more.
  virtual Status RequireAwaited() = 0;
  // Both, one after the other.
  Result<bool> Save(uint64_t step, const TrainingState& state, const BeginOptions& options = {});

  // Returns when the last save is durable, or has failed.
  virtual Status Wait() = 0;
  // Waits, then gives the staging memory back to the system; the next save takes it again.
  virtual Status ReleaseStaging() = 0;

  // Goes back to a step, and on from there: see BeginSave. To look at a step and stay, use
  // LoadState with a reader of store(). Waits, then loads: "latest", "best:loss",
  // "best:accuracy:max", a number or a tag, of this run. LoadState says how; errors as there, and
  // kNotFound.
  virtual Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                                     TrainingState* into) = 0;

  // For what is known only after the save, as the result of an evaluation. Waits when it is this
  // step that is being saved. kNotFound names the step.
  virtual Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) = 0;
  virtual Status SetTag(uint64_t step, std::string_view tag) = 0;

  // Waits for what is under way, and closes the store. Returns an error that no call has returned
  // yet, or that is fatal. Calls after it fail; a second Close does nothing.
  virtual Status Close() = 0;

  // Of the last save that ended or was skipped; nullopt before the first.
  virtual std::optional<SaveStats> last_stats() const = 0;
  // The error that every later call returns, see failure_is_fatal; Ok: none. With ranks it is this
  // rank's own, and asks no other.
  virtual Status failure() const = 0;
  // For queries beside the saves. Not after Close.
  virtual Store& store() = 0;

 protected:
  AsyncCheckpointer() = default;
};

}  // namespace varve
