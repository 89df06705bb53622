// SPDX-License-Identifier: Apache-2.0
//
// Loads a checkpoint into a trainer's memory, which is called the target. A load may take all or
// parts of a checkpoint, rename tensors, and convert types. One error lists everything that does
// not fit, before a byte of the target changes.
//
//   VARVE_ASSIGN_OR_RETURN(const auto reader, store->OpenCheckpoint("main", 100));
//   VARVE_ASSIGN_OR_RETURN(const auto report, varve::LoadState(*reader, {}, &state));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/device_tensor_source.h"
#include "varve/name_map.h"
#include "varve/training_state.h"

namespace varve {

// Says what a load does about names that only one side has. *Missing*: the target has a name that
// the checkpoint lacks. *Unexpected*: the checkpoint has a name that the target lacks. An
// item is never unexpected: LoadState says what happens to items that the target lacks. The modes
// have names of Megatron's --dist-ckpt-strictness. Megatron means the opposite by missing and
// unexpected, so a mode of the same name may do something else. A tensor of another shape, or of
// another dtype without `convert_dtype`, is always an error.
enum class Strictness {
  kRaiseAll,            // missing and unexpected are errors
  kLogUnexpected,       // missing is an error, unexpected is listed in the report
  kAssumeOkUnexpected,  // missing is an error, unexpected is not looked for
  kIgnoreAll,           // both are listed in the report. Tensors that both sides have are loaded
};
// The names are "raise_all", "log_unexpected", "assume_ok_unexpected" and "ignore_all".
// kInvalidArgument: ParseStrictness gets another name.
std::string_view StrictnessName(Strictness strictness);
Result<Strictness> ParseStrictness(std::string_view name);

// RNG states, items with a rank (StateItem), and tensors saved with ReplicaPolicy::kKeepPerRank
// belong to single ranks. RankStates says what a load does with them when Topology::world_size of
// the checkpoint and of the target differ. They then belong to no rank of the new job.
enum class RankStates {
  kError,  // the load fails, and kInvalidArgument names them
  // They are left out and named in the report. The trainer makes new ones, e.g. from DerivedSeed.
  kDrop,
};
// Returns a seed for a rank's random number generator whose saved state was left out. It is a hash
// (splitmix64) of the consumed samples and the rank.
uint64_t DerivedSeed(int64_t consumed_samples, uint32_t rank);

struct LoadOptions {
  Strictness strictness = Strictness::kRaiseAll;
  // False: tensors of role kOptimizer are not loaded. They are neither missing nor unexpected.
  bool optimizer = true;
  // False: the learning-rate schedule of the target stays.
  bool lr_scheduler = true;
  // False: the trainer progress and the items are not loaded, as for fine-tuning.
  bool trainer_state = true;
  // Globs of target names ('*' is any run of characters). No include = everything. A tensor that
  // the globs leave out is not loaded, and is neither missing nor unexpected. There is one
  // exception. If a weight is loaded, and its master is left out by the globs or by `optimizer`,
  // the master is made from the weight. Otherwise the next optimizer step would undo the load.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  NameMap rename;
  // True: converts between F64, F32, BF16, F16, F8_E4M3 and F8_E5M2. Widening is exact. Narrowing
  // rounds to nearest, ties to even. A value that is too large becomes infinity, or NaN in F8_E4M3,
  // which has no infinity.
  bool convert_dtype = false;
  // False: the load fails with kInvalidArgument when the checkpoint and the target both have a
  // topology and these differ. The error names both.
  bool reshard = true;
  RankStates rank_states = RankStates::kError;
  // The number of this rank. A tensor that was saved per rank, as "rank_00003/NAME", fills NAME of
  // rank 3 alone. Other ranks ignore it. Unset: such a tensor is loaded under its full name, like
  // any other. OpenGroupCheckpointer and TrainerHooks set this.
  std::optional<uint32_t> rank{};
  // True: in a Restore by many ranks, a chunk that several ranks need is read by one of them, which
  // sends each of the others the part that it needs. It is enough that one rank sets this. Use it
  // when the storage is slower than the network between the ranks. A load by one rank ignores it.
  bool exchange = false;
  // Reads and writes tensors on devices (varve/cuda.h). If it is null, LoadState expects all
  // tensors on the host. AsyncCheckpointer::Restore and TrainerHooks then use
  // CheckpointerOptions::devices.
  std::shared_ptr<DeviceTensorSource> devices{};
  // Names of tensors that other ranks of the target have, so they are not unexpected.
  // OpenGroupCheckpointer and TrainerHooks set them.
  std::set<std::string, std::less<>> on_other_ranks{};
};

// Says what a load did. Names are those of the target. An item is "item NAME", or "item NAME of
// rank R" if it belongs to a rank.
struct LoadReport {
  CheckpointId id;                      // the checkpoint that was loaded
  uint64_t stored_bytes = 0;            // bytes that the save of the checkpoint added to its store
  uint64_t num_tensors = 0;             // tensors of the target that were filled
  uint64_t bytes = 0;                   // bytes of these tensors. Tied tensors count once
  std::vector<std::string> missing;     // see Strictness
  std::vector<std::string> unexpected;  // see Strictness. Names of the checkpoint, after `rename`
  std::vector<std::string> converted;   // "name: BF16 to F32"
  std::vector<std::string> made;        // weights made from masters, and masters from weights
  std::vector<std::string> dropped;     // states of single ranks, see RankStates
  double seconds = 0;
};

// Loads the checkpoint of `reader` into the memory of `into->tensors`. As the options say, it also
// loads `into->items`, and replaces `into->trainer` if the checkpoint has trainer progress.
// Topology, metrics and tags of `into` stay.
//
// An item of `into` that stands for a variable stays, and its variable is filled from the item of
// the same name and rank. `strictness` says what happens when the checkpoint lacks that item. All
// other items of `into` are removed. The items of the checkpoint that filled no variable are added
// to `into`. There is one exception. If `into` has a variable for an item NAME of this rank, the
// items NAME of other ranks are not added.
//
// If the checkpoint lacks a weight and has its master, the weight is made by rounding the master.
// If it lacks a master and has its weight, the master is made by widening the weight. Tied tensors
// of the target are read once. The checkpoint need not have all names of tied tensors. The tensors
// that it has under these names must have equal values. If tensors of the target share memory
// without being tied, the memory may get the values of any one of them.
//
// A load uses all cores. Strided and converted tensors take up to 64 MiB of scratch memory in all.
//
// Thread rule: one thread at a time for each target.
//
// kInvalidArgument names the step and lists every mismatch, each on a line. Nothing has changed
// then. After any other error the contents of the tensors are unspecified, and the other fields
// of `into` have not changed. kUnavailable: memory ran out. Then variables of items may have
// changed, too. kCorruption: stored bytes are damaged. kNotFound: the step was dropped
// meanwhile.
Result<LoadReport> LoadState(const CheckpointReader& reader, const LoadOptions& options,
                             TrainingState* into);

}  // namespace varve
