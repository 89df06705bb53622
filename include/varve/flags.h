// SPDX-License-Identifier: Apache-2.0
//
// The flags by which people tell a trainer when to save and what to load, named as Megatron names
// them, for any argument parser:
//
//   varve::CheckpointFlags flags;
//   for (const varve::FlagSpec& flag : varve::CheckpointFlagSpecs(&flags)) {
//     // register flag.name and flag.help; when it is met, call flag.set with its value
//   }
//   VARVE_RETURN_IF_ERROR(varve::ValidateFlags(flags));   // TrainerHooks::Start does that, too
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

// A plain value. TrainerHooks::Start copies it.
struct CheckpointFlags {
  std::string save;                       // --save FOLDER
  std::optional<uint64_t> save_interval;  // --save-interval STEPS
  std::string run = "main";               // --run NAME
  bool save_optim = true;                 // --no-save-optim
  bool async_save = true;                 // --async-save, --no-async-save
  uint64_t max_checkpoint_keep = 0;       // --max-checkpoint-keep K, where 0 keeps all
  uint64_t keep_every = 0;                // --keep-every STEPS
  std::optional<KeepBest> keep_best;      // --keep-best METRIC[:max]

  std::string load;                               // --load FOLDER
  std::string ckpt_step;                          // --ckpt-step [RUN@]STEP, empty = latest
  bool load_optim = true;                         // --no-load-optim
  bool finetune = false;                          // --finetune
  bool exit_on_missing_checkpoint = false;        // --exit-on-missing-checkpoint
  Strictness strictness = Strictness::kRaiseAll;  // --dist-ckpt-strictness MODE

  std::optional<uint64_t> exit_interval;        // --exit-interval STEPS
  std::optional<double> exit_duration_in_mins;  // --exit-duration-in-mins MINUTES
  std::optional<double> exit_deadline_in_secs;  // --exit-deadline-in-secs SECONDS

  std::optional<double> rank_timeout_in_secs;  // --rank-timeout-in-secs SECONDS
};

struct FlagSpec {
  std::string name;   // "--save"
  std::string value;  // what follows it, "FOLDER". Empty: nothing does
  std::string help;
  // Sets it. The value is empty where none follows. kInvalidArgument names flag and value.
  std::function<Status(std::string_view value)> set;
};
// All flags, in the order of a help text. `flags` must outlive the result.
std::vector<FlagSpec> CheckpointFlagSpecs(CheckpointFlags* flags);

// kInvalidArgument says in one sentence which flags do not go together, and what to do.
Status ValidateFlags(const CheckpointFlags& flags);

// The retention that the flags ask for. It keeps the newest --max-checkpoint-keep, and also what
// --keep-every and --keep-best say, and every tagged step. Unset: it keeps everything.
std::optional<RetentionPolicy> RetentionOf(const CheckpointFlags& flags);

}  // namespace varve
