// SPDX-License-Identifier: Apache-2.0
//
// Loads a checkpoint into a trainer's memory: all of it or parts, under other names, in other
// types. An error lists everything that does not fit at once, before a byte of the target changes.
//
//   VARVE_ASSIGN_OR_RETURN(const auto reader, store->OpenCheckpoint("main", 100));
//   VARVE_ASSIGN_OR_RETURN(const auto report, varve::LoadState(*reader, {}, &state));
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/device_tensor_source.h"
#include "varve/training_state.h"

namespace varve {

// What to do about names. *Missing*: the target has a name that the checkpoint lacks. *Unexpected*:
// the checkpoint has a name that the target lacks. The modes are those of Megatron's
// --dist-ckpt-strictness. Another shape, or another dtype without `convert_dtype`, is always an
// error.
enum class Strictness {
  kRaiseAll,            // missing and unexpected are errors
  kLogUnexpected,       // missing is an error, unexpected is listed in the report
  kAssumeOkUnexpected,  // missing is an error, unexpected is not looked for
  kIgnoreAll,           // both are listed in the report, and what both have is loaded
};
// "raise_all", "log_unexpected", "assume_ok_unexpected", "ignore_all". kInvalidArgument: another
// name.
std::string_view StrictnessName(Strictness strictness);
Result<Strictness> ParseStrictness(std::string_view name);

// Turns the names of a checkpoint into those of the target. Rules are tried in the order in which
// they were added, and the first that matches decides. A name that no rule matches stays as it is.
// Thread rule: one thread at a time while rules are added. Then any thread may call Apply.
class NameMap {
 public:
  // The name itself, or a whole dotted prefix of it: "x_1" turns x_1 and x_1.weight, never x_10.
  // kInvalidArgument: one of them is empty, or another `to` for the same `from`.
  Status AddPair(std::string_view from, std::string_view to);
  // An ECMAScript expression, which must match the whole name. $1 ... in `to` are its groups.
  // kInvalidArgument says what is wrong with the expression, or which group it does not have.
  Status AddRegex(std::string_view pattern, std::string_view to);
  // Adds the pairs of a text file: "from to" on a line, separated by white space. Empty lines and
  // lines that start with '#' say nothing. Errors name file and line, and nothing is added then.
  Status AddFile(const std::filesystem::path& path);

  std::string Apply(std::string_view name) const;
  bool empty() const { return pairs_.empty() && regexes_.empty(); }

 private:
  struct Pair {
    std::string to;
    size_t order;  // among all rules
  };
  struct Regex;
  std::map<std::string, Pair, std::less<>> pairs_;     // by `from`
  std::vector<std::shared_ptr<const Regex>> regexes_;  // in their order
};

// What to do about RNG states, items and tensors (ReplicaPolicy::kKeepPerRank) of single ranks when
// the number of ranks has changed. They belong to nobody in particular then.
enum class RankStates {
  kError,  // kInvalidArgument names them
  // They are left out and named in the report. The trainer makes new ones, e.g. from DerivedSeed.
  kDrop,
};
// A seed for a rank's generator when its saved state has no owner any more. It is a pure function,
// well mixed, of what the run has consumed and the rank.
uint64_t DerivedSeed(int64_t consumed_samples, uint32_t rank);

struct LoadOptions {
  Strictness strictness = Strictness::kRaiseAll;
  // False: tensors of role kOptimizer stay as they are, in the target and in the checkpoint.
  bool optimizer = true;
  // False: the learning-rate schedule of the target stays.
  bool lr_scheduler = true;
  // False: loads nothing of the trainer state and the items (finetune).
  bool trainer_state = true;
  // Globs ('*' is any run of characters) of target names. What they leave out is neither loaded nor
  // missing nor unexpected. No include = everything. But a master that is left out, by these or by
  // `optimizer`, is made from its weight when that is loaded. Otherwise the next step of the
  // optimizer would undo the load.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  NameMap rename;
  // True: converts between F64, F32, BF16, F16, F8_E4M3 and F8_E5M2. Widening is exact. Narrowing
  // rounds to nearest, ties to even, and overflows to infinity (F8_E4M3, which has none: to NaN).
  bool convert_dtype = false;
  // False: a checkpoint of another topology than that of `into` is refused, by an error that names
  // both.
  bool reshard = true;
  RankStates rank_states = RankStates::kError;
  // Which rank this is. Its own tensors of those that were saved per rank ("rank_00003/NAME") fill
  // NAME, and those of other ranks are not looked at. Unset: they are tensors like any other.
  // OpenGroupCheckpointer and TrainerHooks set it.
  std::optional<uint32_t> rank{};
  // For Restore by many ranks, when set on any of them. One rank reads what several ranks want of
  // the checkpoint, and sends the others their part. For storage that is slower than what is
  // between the ranks. A load of one rank does not look at it.
  bool exchange = false;
  // The source of tensors with a device. Null = there are none. AsyncCheckpointer::Restore and
  // TrainerHooks use the checkpointer's.
  std::shared_ptr<DeviceTensorSource> devices{};
  // Names of tensors that other ranks of the target have. They are not unexpected.
  // OpenGroupCheckpointer and TrainerHooks set them.
  std::set<std::string, std::less<>> on_other_ranks{};
};

struct LoadReport {
  CheckpointId id;
  uint64_t stored_bytes = 0;            // what the save of the checkpoint added to its store
  uint64_t num_tensors = 0;             // of the target that were filled
  uint64_t bytes = 0;                   // of its memory, tied tensors once
  std::vector<std::string> missing;     // see Strictness
  std::vector<std::string> unexpected;  // names of the checkpoint, after `rename`
  std::vector<std::string> converted;   // "name: BF16 to F32"
  std::vector<std::string> made;        // made from their master, or masters from their weights
  std::vector<std::string> dropped;     // states of single ranks, see RankStates
  double seconds = 0;
};

// Loads into the memory of `into->tensors`, and replaces `into->trainer` (when the checkpoint has
// one) and `into->items` as the options say. Topology, metrics and tags are not touched.
//
// A tensor that only the target has is made, where that can be, from its partner in the checkpoint:
// a weight by rounding its master, a master by widening its weight. Tied tensors of the target are
// read once, and must be equal in the checkpoint, which may lack all names but one. Tensors that
// share memory in another way may get the values of any of them.
//
// Strided and converted tensors take up to 64 MiB of scratch memory. Thread rule: one thread at a
// time for a target. A load uses all cores.
//
// kInvalidArgument lists every mismatch, one a line, after a line that names the step, and nothing
// has changed. After any other error (kCorruption, kIOError, kNotFound when the step was dropped
// meanwhile) the tensors are unspecified, and the rest has not changed.
Result<LoadReport> LoadState(const CheckpointReader& reader, const LoadOptions& options,
                             TrainingState* into);

}  // namespace varve
