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
// This header brings all that a user of a store needs, and nothing of the hooks (varve/hooks.h).
// Two things are apart: varve/group.h, for stores of many ranks, and varve/request.h, for changes
// from another process.
//
// Thread rule: a Store may be used from any thread. Several writers may be open on one handle. One
// mutex orders their commits, and of two that save the same step the later gets kAlreadyExists. One
// process at a time opens a store for writing, while any number of others read.
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
#include "varve/tensor.h"
#include "varve/trainer_progress.h"
#include "varve/version.h"

namespace varve {

class SaveSession;  // of varve itself

struct RunInfo {
  std::string name;
  std::optional<CheckpointId> forked_from;
  uint64_t num_steps = 0;
};

struct ReclaimReport {
  uint64_t freed_bytes = 0;      // encoded bytes of dead chunks whose files are gone
  uint64_t rewritten_bytes = 0;  // bytes of live chunks written again on the way
  uint64_t pending_bytes = 0;    // encoded bytes of dead chunks still on disk
  uint64_t disk_bytes_before = 0;
  uint64_t disk_bytes_after = 0;
};

// What a drop did. Space is that of the reclaim after it.
struct DropReport {
  std::vector<CheckpointId> dropped;
  ReclaimReport reclaim;
  // Records of the dropped steps that could not be read. What they named stays counted, and its
  // space in use.
  std::vector<std::string> warnings{};
};

// What dropping checkpoints would give back, in encoded bytes of chunks.
struct DropForecast {
  // What the reclaim after the drop frees, of their chunks and of those that earlier drops have
  // left.
  uint64_t freed_now = 0;
  // The rest, in files that are more than half alive. It comes back once more of them is dropped,
  // or by Reclaim with `all`.
  uint64_t freed_later = 0;
  // Records that cannot be read. What they name stays, as in a drop. So do the files of which it is
  // therefore not known what lives, and their space is in neither number.
  std::vector<std::string> warnings{};
};

struct RewindReport {
  std::string fork;             // the run that holds the later steps now. Empty: there were none
  std::vector<uint64_t> moved;  // those steps, rising
};

struct CheckReport {
  bool ok() const { return errors.empty(); }
  std::vector<std::string> errors;  // each names what, where, found and expected
  uint64_t num_steps = 0;
  uint64_t num_tensors = 0;
  uint64_t num_chunks = 0;  // distinct live chunks
  uint64_t bytes_read = 0;  // encoded bytes read and verified (read_data only)
};

struct StoreStats {
  uint32_t format_version = 0;
  uint64_t num_runs = 0;
  uint64_t num_steps = 0;
  uint64_t num_chunks = 0;     // distinct live chunks
  uint64_t logical_bytes = 0;  // raw bytes of all steps, each for itself
  uint64_t unique_bytes = 0;   // raw bytes of all distinct live chunks
  uint64_t stored_bytes = 0;   // encoded bytes of those
  uint64_t pending_bytes = 0;  // encoded bytes of dead chunks still on disk
  uint64_t disk_bytes = 0;     // bytes the file system has allocated to the store
  uint64_t num_files = 0;
  std::vector<CodecUse> by_codec;  // of live chunks
  std::vector<CoderUse> by_coder;  // of the same
  // Records that cannot be read. What they count is in none of the numbers.
  std::vector<std::string> warnings{};
};

class Store {
 public:
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;  // waits for background merging, and abandons nothing committed

  // Makes an empty store in `path`, which must not exist, or be an empty folder, or hold the debris
  // of a Create that was cut short. kAlreadyExists: there is a store. kFailedPrecondition: the
  // folder holds something else.
  static Result<std::unique_ptr<Store>> Create(const std::filesystem::path& path,
                                               const CreateOptions& options = {});
  // Opens for reading and writing. kNotFound: no store there. kLocked: another writer has it. The
  // message names its process when known. kFailedPrecondition: made by a newer varve.
  static Result<std::unique_ptr<Store>> Open(const std::filesystem::path& path,
                                             const StoreOptions& options = {});
  static Result<std::unique_ptr<Store>> OpenOrCreate(const std::filesystem::path& path,
                                                     const CreateOptions& options = {});
  // Opens for reading while a writer may be at work. It takes no lock, writes nothing, and works on
  // a read-only mount. What is committed becomes visible by itself: on a miss, or after at most 30
  // s. Calls that change the store give kFailedPrecondition.
  static Result<std::unique_ptr<Store>> OpenForReading(const std::filesystem::path& path,
                                                       const StoreOptions& options = {});

  // Starts a checkpoint. The store must outlive the writer. kAlreadyExists: the step is there and
  // the options say error. kNotFound: options.parent names no step.
  Result<std::unique_ptr<CheckpointWriter>> Begin(uint64_t step, const SaveOptions& options = {});
  // Opens a checkpoint. The store must outlive the reader. kNotFound names run and step.
  virtual Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(std::string_view run,
                                                                   uint64_t step) const = 0;

  virtual Result<std::vector<RunInfo>> ListRuns() const = 0;
  // The checkpoints of a run by rising step. kNotFound when there is no such run.
  virtual Result<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view run) const = 0;
  // The newest step of a run by number. nullopt: the run has none. kNotFound: no such run.
  virtual Result<std::optional<uint64_t>> LatestStep(std::string_view run) const = 0;
  // The step that a tag names. kNotFound names run and tag.
  virtual Result<uint64_t> FindTag(std::string_view run, std::string_view tag) const = 0;
  // The checkpoint that a step expression names: "100", "latest", "best:loss", a tag, or one of
  // these after "RUN@" (varve/step.h). kNotFound names what is missing. A plain number is not
  // looked up. What the caller does next finds out whether that step is there. kInvalidArgument: it
  // is no expression.
  Result<CheckpointId> Resolve(std::string_view step) const;

  // Adds metrics to a committed checkpoint. A name that it has already gets the new value. The
  // change is durable on return, as that of all calls below. kNotFound names the step.
  virtual Status SetMetrics(const CheckpointId& id,
                            const std::map<std::string, double>& metrics) = 0;
  // Makes `tag` name this checkpoint, and no other of its run any more. kNotFound names the step.
  // kInvalidArgument: see ValidateTag.
  virtual Status SetTag(const CheckpointId& id, std::string_view tag) = 0;
  // Removes a tag, and no checkpoint. kNotFound names run and tag.
  virtual Status RemoveTag(std::string_view run, std::string_view tag) = 0;

  // Starts a run from a checkpoint of another: `new_run` gets that step, with the same tensors,
  // state and metrics, and without its tags. Copies no chunk. `at` unset = the newest step. Returns
  // the step it forked at. kAlreadyExists: there is such a run.
  virtual Result<uint64_t> Fork(std::string_view run, std::string_view new_run,
                                std::optional<uint64_t> at = {}) = 0;
  // Makes `to` the newest step of a run. The later steps, with their tags, move to a new run RUN~1
  // (or ~2 ...) in one atomic step. Readers that have one of them open get kNotFound. kNotFound: no
  // such step. kFailedPrecondition: one of the later steps is the base of a save in progress.
  virtual Result<RewindReport> Rewind(std::string_view run, uint64_t to) = 0;

  // The steps of a run at which a tensor changed, rising. kNotFound: no step has such a tensor.
  virtual Result<std::vector<TensorChange>> Log(std::string_view run,
                                                std::string_view tensor) const = 0;
  // What differs between two checkpoints, of one run or of two. kNotFound names the one that is
  // missing.
  virtual Result<CheckpointDiff> Diff(const CheckpointId& before, const CheckpointId& after,
                                      const DiffOptions& options = {}) const = 0;

  // Saves checkpoints of this store in another one, step by step. What `destination` holds already
  // is shared there, and a chunk is read at most once. The pipeline budget of `destination` bounds
  // memory. The first error ends the copy, and what was copied before stays.
  virtual Result<std::vector<SaveReport>> CopyTo(Store* destination,
                                                 std::span<const CheckpointId> ids,
                                                 const CopyOptions& options = {}) const = 0;

  // Encoded bytes of the chunks that would die if these checkpoints were dropped together. Dropping
  // them gives as much back, at once or by reclaim. Changes nothing.
  virtual Result<uint64_t> BytesFreedByDrop(std::span<const CheckpointId> ids) const = 0;
  // Says when these bytes would come back. Changes nothing. Saves and drops of others may change
  // the answer meanwhile.
  virtual Result<DropForecast> ForecastDrop(std::span<const CheckpointId> ids) const = 0;
  // Drops checkpoints. Bytes shared with others stay. Each step goes atomically, and it works on a
  // full disk. All ids are checked first, and after one of these errors nothing is dropped:
  // kNotFound names every id that is missing, kFailedPrecondition one that a save in progress is
  // based on.
  virtual Result<DropReport> Drop(std::span<const CheckpointId> ids,
                                  const DropOptions& options = {}) = 0;
  // Gives the space of dead chunks back.
  virtual Result<ReclaimReport> Reclaim(const ReclaimOptions& options = {}) = 0;

  // Verifies the store and changes nothing. A damaged store gives a report with errors. A Status
  // comes only when checking itself could not go on.
  virtual Result<CheckReport> Check(const CheckOptions& options = {}) const = 0;
  virtual Result<StoreStats> Stats() const = 0;

  // For a store opened for reading: shows it everything committed up to now. No effect otherwise.
  virtual Status CatchUp() const = 0;

 protected:
  Store() = default;

 private:
  // What Begin does, for varve itself.
  friend class SaveSession;
  virtual Result<std::unique_ptr<SaveSession>> BeginSession(uint64_t step,
                                                            const SaveOptions& options) = 0;
};

}  // namespace varve
