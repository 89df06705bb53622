// SPDX-License-Identifier: Apache-2.0
//
// Store: a folder of checkpoints that share what did not change.
//
//   VARVE_ASSIGN_OR_RETURN(auto store, varve::Store::OpenOrCreate("ckpt"));
//   VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
//   ...                                                   // writer->Put each tensor
//   VARVE_RETURN_IF_ERROR(writer->Commit().status());
//   const varve::CheckpointId old[] = {{"main", 10}, {"main", 20}};
//   VARVE_RETURN_IF_ERROR(store->Drop(old).status());
//
// This header includes what a program needs to read and write a store, and nothing of the hooks
// (varve/hooks.h). Not included are varve/group.h (stores of many ranks), varve/request.h (changes
// from another process), varve/remote.h (object stores), varve/repair.h and varve/seal.h (sealed
// stores).
//
// Thread rule: any thread may use a Store. Several CheckpointWriters may be open on one Store. A
// mutex orders their commits. If two of them save the same step, SaveOptions::on_existing says what
// the later commit does. With kError it returns kAlreadyExists. One process at a time opens a store
// for writing, and any number of others may read it meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/backup.h"
#include "varve/checkpoint.h"
#include "varve/digest.h"
#include "varve/history.h"
#include "varve/options.h"
#include "varve/result.h"
#include "varve/retention.h"
#include "varve/shard_layout.h"
#include "varve/status.h"
#include "varve/step.h"
#include "varve/stop.h"
#include "varve/tensor.h"
#include "varve/trainer_progress.h"
#include "varve/version.h"

namespace varve {

namespace internal {
class SaveSession;
class ShardedReader;
}  // namespace internal

// Describes a run, which is a named sequence of checkpoints.
struct RunInfo {
  std::string name;
  // The checkpoint that the run was forked from. nullopt: the run is no fork.
  std::optional<CheckpointId> forked_from;
  uint64_t num_steps = 0;
};

// Says what a reclaim did. A chunk is live if a checkpoint uses it, else dead.
struct ReclaimReport {
  uint64_t freed_bytes = 0;  // encoded bytes of dead chunks that were removed from the disk
  // Bytes of live chunks that were copied, because their files held dead chunks.
  uint64_t rewritten_bytes = 0;
  uint64_t pending_bytes = 0;  // encoded bytes of dead chunks that are still on disk
  // Bytes that the file system had allocated to the store, without folders that cannot be read.
  uint64_t disk_bytes_before = 0;
  uint64_t disk_bytes_after = 0;  // the same after the reclaim
  // Messages about damaged records, as in DropReport::warnings. Only a group has any. A reclaim of
  // a group finishes drops that another process began, and these messages are about the steps of
  // those drops.
  std::vector<std::string> warnings{};
};

// Says what a drop did.
struct DropReport {
  std::vector<CheckpointId> dropped;  // each once, in the order of the call
  // What the reclaim after the drop did. `reclaim.warnings` stays empty. Without a reclaim, or
  // while another reclaim is under way, freed_bytes and rewritten_bytes are 0.
  ReclaimReport reclaim;
  // Messages about damaged records (docs/format.md) of the dropped steps. The chunks that these
  // records name are not released, so their space stays in use.
  std::vector<std::string> warnings{};
};

// Says what dropping checkpoints would give back, in encoded bytes of chunks.
struct DropForecast {
  // Bytes that the reclaim after the drop would free. They include dead chunks of earlier drops.
  uint64_t freed_now = 0;
  // Bytes of dead chunks that this reclaim would leave on disk, because their files hold too few
  // dead chunks (ReclaimOptions). A reclaim after later drops frees them, or Reclaim with `all`.
  uint64_t freed_later = 0;
  // Messages about damaged records. The chunks that these records name stay, as in a drop. Damage
  // may hide which chunks of a file are dead. Such a file stays, and its bytes are in neither
  // number.
  std::vector<std::string> warnings{};
};

// Says what a rewind did.
struct RewindReport {
  std::string fork;  // the run that holds the later steps now. Empty: there was no later step
  std::vector<uint64_t> moved;  // the later steps, in ascending order
};

// Says what a check found.
struct CheckReport {
  bool ok() const { return errors.empty(); }
  std::vector<std::string> errors;  // each says what is wrong, where, what was found and expected
  // Messages about files that are missing, damaged or out of date: SYNCED, and the copies in spare/
  // (varve/repair.h). These files help to find and to repair damage. No reader or writer needs
  // these files while the rest of the store is sound. The next open for writing makes these files
  // anew. A copy (BackUp, Pull) that no writer has opened has the file BACKUP in place of these
  // files. If BACKUP is damaged, a message says so. If BACKUP is lost, messages say that SYNCED and
  // the copies in spare/ are missing. In both cases, make a new copy in another folder.
  std::vector<std::string> warnings{};
  // The steps that are known not to be readable whole, ordered by run and step. A chunk whose bytes
  // are damaged is found only if the check reads all data (CheckOptions). Without that, a step is
  // listed only if something of it is missing or a record is damaged. If the name of a run is lost,
  // its steps have #ID in place of the name. Steps whose records are all lost are not here.
  std::vector<CheckpointId> damaged_steps{};
  uint64_t num_steps = 0;
  uint64_t num_tensors = 0;
  uint64_t num_chunks = 0;  // distinct chunks that some checkpoint uses
  uint64_t bytes_read = 0;  // encoded bytes read and verified (read_data only)
  // True: the store, or a member of the group, is sealed (varve/seal.h).
  bool is_sealed = false;
  // Table files that were compared with their tags. If `is_sealed` is true and this is 0, the store
  // was opened without its key, so nobody knows whether it was changed.
  uint64_t num_sealed_files = 0;
};

// What can be read of the checkpoints of a store, which may be damaged.
struct KnownCheckpoints {
  // The checkpoints of all runs, ordered by the age of the run and by step. If the name of a run is
  // lost, its steps have #ID in place of the name. A lost file may have held a drop, or newer
  // metrics and tags. Then the list still has the dropped steps, or the older metrics and tags.
  std::vector<CheckpointInfo> checkpoints;
  // Says what is missing from the list, or may be missing, and why. Empty: the list is whole.
  std::vector<std::string> errors;
};

// Describes the contents of a store, and the space that they take.
struct StoreStats {
  uint32_t format_version = 0;
  uint64_t num_runs = 0;
  uint64_t num_steps = 0;
  uint64_t num_chunks = 0;         // distinct chunks that some checkpoint uses
  uint64_t logical_bytes = 0;      // raw bytes of all steps, as if they shared nothing
  uint64_t unique_bytes = 0;       // raw bytes of the num_chunks chunks
  uint64_t stored_bytes = 0;       // encoded bytes of these chunks
  uint64_t pending_bytes = 0;      // encoded bytes of dead chunks that are still on disk
  uint64_t disk_bytes = 0;         // bytes that the file system has allocated to the store
  uint64_t num_files = 0;          // files of the store
  std::vector<CodecUse> by_codec;  // the live chunks, a row for each codec
  std::vector<CoderUse> by_coder;  // the live chunks, a row for each coder
  // Messages about damaged records and about folders that cannot be read. The numbers leave out
  // what these hold.
  std::vector<std::string> warnings{};
};

class Store {
 public:
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;  // waits for background work. What was committed is safe

  // Makes an empty store in `path`. The folder may be missing or empty, or may hold the remains of
  // a Create that was interrupted. kAlreadyExists: there is a store, or the root of a group.
  // kFailedPrecondition: the folder holds something else, or lies inside a store. kLocked: another
  // process is making a store there.
  static Result<std::unique_ptr<Store>> Create(const std::filesystem::path& path,
                                               const CreateOptions& options = {});
  // Opens for reading and writing. `path` may also be the root of a group (varve/group.h).
  // kNotFound: no store there. kLocked: another writer has it. The message names its process when
  // known. kCorruption: the store is damaged (varve/repair.h). kFailedPrecondition: a newer varve
  // made the store, the store is a member of a group (open the root instead), the store is sealed
  // and `options` has no key, or `options` has a key and the store is not sealed.
  static Result<std::unique_ptr<Store>> Open(const std::filesystem::path& path,
                                             const StoreOptions& options = {});
  // Opens the store in `path`, or makes it when there is none. Errors as Open and Create, without
  // kNotFound. kAlreadyExists: another process made the store during the call. Then call again. The
  // second call opens the store, or returns kLocked while the other process has it open.
  static Result<std::unique_ptr<Store>> OpenOrCreate(const std::filesystem::path& path,
                                                     const CreateOptions& options = {});
  // Opens for reading while a writer may be at work. `path` may also be the root of a group. The
  // call takes no lock, writes nothing, and works on a read-only mount. A call that does not find
  // what it looks for catches up with new commits and looks again. In any case new commits become
  // visible within about 10 s. Calls that change the store return kFailedPrecondition. A sealed
  // store needs no key. kNotFound: no store there. kCorruption: the store is damaged
  // (varve/repair.h). kFailedPrecondition: a newer varve made the store, or `options` has a key and
  // the store is not sealed.
  static Result<std::unique_ptr<Store>> OpenForReading(const std::filesystem::path& path,
                                                       const StoreOptions& options = {});

  // Starts a checkpoint. The store must outlive the writer. kAlreadyExists: the run has this step,
  // and options.on_existing is kError. kNotFound: options.parent names no step. kInvalidArgument:
  // the name of the run is not allowed (ValidateRun). kFailedPrecondition: the store is open for
  // reading.
  Result<std::unique_ptr<CheckpointWriter>> Begin(uint64_t step, const SaveOptions& options = {});
  // Opens a checkpoint. The store must outlive the reader. kNotFound names run and step.
  Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(std::string_view run,
                                                           uint64_t step) const;

  // All runs of the store.
  virtual Result<std::vector<RunInfo>> ListRuns() const = 0;
  // The checkpoints of a run, in ascending order of step. kNotFound when there is no such run.
  virtual Result<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view run) const = 0;
  // Lists what is known of the checkpoints of a damaged store, in which ListCheckpoints fails. Do
  // not drop or overwrite anything because of this list. Newer steps may be missing from it.
  // kUnavailable: memory or descriptors do not suffice. For a group, the call returns the whole
  // list, or an error of ListCheckpoints.
  virtual Result<KnownCheckpoints> ListKnownCheckpoints() const = 0;
  // The newest step of a run by number. nullopt: the run has none. kNotFound: no such run.
  virtual Result<std::optional<uint64_t>> LatestStep(std::string_view run) const = 0;
  // The step that a tag names. kNotFound names run and tag.
  virtual Result<uint64_t> FindTag(std::string_view run, std::string_view tag) const = 0;
  // The checkpoint that a step expression names: "100", "latest", "best:loss", a tag, or one of
  // these after "RUN@" (varve/step.h). kNotFound names what is missing. A plain number is not
  // looked up, so the step may not exist. kInvalidArgument: `step` is not a step expression.
  Result<CheckpointId> Resolve(std::string_view step) const;

  // Adds metrics to a committed checkpoint. If the checkpoint has a metric of the same name, the
  // new value replaces the old one. The change is durable on return, and so are the changes that
  // the calls below make. kNotFound names the step.
  virtual Status SetMetrics(const CheckpointId& id,
                            const std::map<std::string, double>& metrics) = 0;
  // Makes `tag` name this checkpoint. If another step of the run has the tag, the tag moves.
  // kNotFound names the step. kInvalidArgument: see ValidateTag.
  virtual Status SetTag(const CheckpointId& id, std::string_view tag) = 0;
  // Removes a tag. The checkpoint stays. kNotFound names run and tag.
  virtual Status RemoveTag(std::string_view run, std::string_view tag) = 0;

  // Starts a new run from step `at` of `run`, or from its newest step if `at` is unset. `new_run`
  // gets this step with the same tensors, state and metrics, and without its tags. No chunk is
  // copied. Returns the step. kAlreadyExists: there is a run `new_run`. kNotFound: no such run or
  // step. kInvalidArgument: see ValidateRun.
  virtual Result<uint64_t> Fork(std::string_view run, std::string_view new_run,
                                std::optional<uint64_t> at = {}) = 0;
  // Makes `to` the newest step of a run. The later steps, with their tags, move together and
  // atomically to a new run RUN~1 (or ~2 ...). A reader that has one of the later steps open
  // may then return kNotFound. Some readers keep their step and go on (CheckpointReader).
  // kNotFound: no such step. kFailedPrecondition: one of the later steps is the base of a save in
  // progress.
  virtual Result<RewindReport> Rewind(std::string_view run, uint64_t to) = 0;

  // The steps of a run at which a tensor changed, in ascending order. kNotFound: no step has such a
  // tensor.
  virtual Result<std::vector<TensorChange>> Log(std::string_view run,
                                                std::string_view tensor) const = 0;
  // What differs between two checkpoints, of one run or of two. kNotFound names the one that is
  // missing.
  virtual Result<CheckpointDiff> Diff(const CheckpointId& before, const CheckpointId& after,
                                      const DiffOptions& options = {}) const = 0;

  // Saves checkpoints of this store in another store, step by step. A chunk that `destination`
  // already has is shared, not copied. Each chunk is read at most once. The pipeline budget of
  // `destination` bounds the memory for the chunks that are being copied. The first error ends the
  // copy, and the steps copied before it stay. Returns one report for each step, in the order of
  // `ids`.
  virtual Result<std::vector<SaveReport>> CopyTo(Store* destination,
                                                 std::span<const CheckpointId> ids,
                                                 const CopyOptions& options = {}) const = 0;

  // Returns the encoded bytes of the chunks that only these checkpoints use. A drop of all of them
  // frees this many bytes, at once or by a later reclaim. Changes nothing. kNotFound: as Drop.
  virtual Result<uint64_t> BytesFreedByDrop(std::span<const CheckpointId> ids) const = 0;
  // Says how many bytes the reclaim after a drop would free at once, and how many later. Changes
  // nothing. Saves and drops that come before the drop may change the answer.
  virtual Result<DropForecast> ForecastDrop(std::span<const CheckpointId> ids) const = 0;
  // Drops checkpoints. Chunks that other checkpoints use stay. Each step is dropped atomically. A
  // forked run that has no step left is removed. A drop works on a full disk. All ids are checked
  // before a step is dropped. If this check fails, nothing is dropped, and Drop returns one of two
  // errors. kNotFound names every id that is missing. kFailedPrecondition: a save in progress is
  // based on one of the steps.
  virtual Result<DropReport> Drop(std::span<const CheckpointId> ids,
                                  const DropOptions& options = {}) = 0;
  // Gives the space of dead chunks back to the file system.
  virtual Result<ReclaimReport> Reclaim(const ReclaimOptions& options = {}) = 0;

  // Verifies the store and changes nothing. A damaged store gives a report with errors. The call
  // itself fails only when it cannot go on checking.
  virtual Result<CheckReport> Check(const CheckOptions& options = {}) const = 0;
  virtual Result<StoreStats> Stats() const = 0;

  // Makes everything that was committed up to now visible in a store that is opened for reading. A
  // store that is opened for writing sees all of it without this call.
  virtual Status CatchUp() const = 0;

 protected:
  Store() = default;

 private:
  // What Begin and OpenCheckpoint do, for varve itself.
  friend class internal::SaveSession;
  friend class internal::ShardedReader;
  virtual Result<std::unique_ptr<internal::SaveSession>> BeginSession(
      uint64_t step, const SaveOptions& options) = 0;
  virtual Result<std::unique_ptr<internal::ShardedReader>> OpenShards(std::string_view run,
                                                                      uint64_t step) const = 0;
};

}  // namespace varve
