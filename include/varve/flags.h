// SPDX-License-Identifier: Apache-2.0
//
// The flags of a trainer that say when to save and what to load. A flag that Megatron has, too, has
// Megatron's name. The modes of --dist-ckpt-strictness also have Megatron's names, but they may do
// something else. Megatron calls "unexpected" what varve calls "missing", and the other way round
// (Strictness in varve/load.h). The flags work with any argument parser:
//
//   varve::CheckpointFlags flags;
//   for (const varve::FlagSpec& flag : varve::CheckpointFlagSpecs(&flags)) {
//     // register flag.name and flag.help. The parser calls flag.set with the flag's value
//   }
//   VARVE_RETURN_IF_ERROR(varve::ValidateFlags(flags));   // TrainerHooks::Start does that, too
//
// Run a parser that cannot be extended, such as gflags or getopt, after TakeCheckpointFlags, which
// removes the flags of this header from the command line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/load.h"
#include "varve/retention.h"

namespace varve {

// The values of all flags. A plain value. TrainerHooks::Start copies it.
struct CheckpointFlags {
  std::string save;                       // --save FOLDER
  std::optional<uint64_t> save_interval;  // --save-interval STEPS
  bool durable_every_step = false;        // --durable-every-step, which is --save-interval 1
  std::string run = "main";               // --run NAME
  bool save_optim = true;                 // --no-save-optim
  bool async_save = true;                 // --async-save, --no-async-save
  uint64_t max_checkpoint_keep = 0;       // --max-checkpoint-keep K, where 0 keeps all
  // These two flags need --max-checkpoint-keep.
  uint64_t keep_every = 0;            // --keep-every STEPS
  std::optional<KeepBest> keep_best;  // --keep-best METRIC[:max]
  std::string remote;                 // --remote URL, of an object store (varve/remote.h)
  uint64_t remote_interval = 1;       // --remote-interval SAVES
  uint64_t remote_keep = 0;           // --remote-keep K, where 0 keeps all

  std::string load;                               // --load FOLDER
  std::string ckpt_step;                          // --ckpt-step [RUN@]STEP, empty = latest
  bool load_optim = true;                         // --no-load-optim
  bool finetune = false;                          // --finetune
  bool exit_on_missing_checkpoint = false;        // --exit-on-missing-checkpoint
  Strictness strictness = Strictness::kRaiseAll;  // --dist-ckpt-strictness MODE

  std::optional<uint64_t> exit_interval;  // --exit-interval STEPS

  // These three times are more than 0 and at most 1e9.
  std::optional<double> exit_duration_in_mins;  // --exit-duration-in-mins MINUTES
  std::optional<double> exit_deadline_in_secs;  // --exit-deadline-in-secs SECONDS
  std::optional<double> rank_timeout_in_secs;   // --rank-timeout-in-secs SECONDS
};

// Describes one flag to an argument parser.
struct FlagSpec {
  std::string name;   // e.g. "--save"
  std::string value;  // the name of its value in a help text, e.g. "FOLDER". Empty = it has none
  std::string help;
  // Sets the field of CheckpointFlags. Pass "" to a flag without a value. kInvalidArgument names
  // flag and value.
  std::function<Status(std::string_view value)> set;
};
// Returns all flags, in the order of a help text. `flags` must outlive the result.
std::vector<FlagSpec> CheckpointFlagSpecs(CheckpointFlags* flags);

// Reads the checkpoint flags of a command line and removes them from it: "--save FOLDER",
// "--save=FOLDER", "--finetune". All other words stay, in their order, and `argv[*argc]` stays
// null. If a flag is given twice, the last value counts. A word "--" ends the flags, and stays. A
// value that begins with "--" must be given as "--save=--odd". A flag of another parser must not
// have the name of a checkpoint flag as its value, because TakeCheckpointFlags would take that
// value for a flag. kInvalidArgument names flag and value, and nothing has changed then.
Status TakeCheckpointFlags(int* argc, char** argv, CheckpointFlags* flags);

// Checks the flags. kInvalidArgument says which flags are wrong or do not fit each other, and what
// to do.
Status ValidateFlags(const CheckpointFlags& flags);

// Returns the retention policy of the flags. It keeps the newest --max-checkpoint-keep steps, the
// steps that --keep-every and --keep-best name, and every tagged step. Unset = all steps stay.
std::optional<RetentionPolicy> RetentionOf(const CheckpointFlags& flags);

}  // namespace varve
