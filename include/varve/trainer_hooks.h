// SPDX-License-Identifier: Apache-2.0
//
// All that a training loop needs, by flags: load, save when it is due, drop what is old, stop when
// told.
//
//   VARVE_ASSIGN_OR_RETURN(auto hooks, varve::TrainerHooks::Start(flags, &state));  // loads
//   for (int64_t step = state.trainer.global_step + 1; step <= last; ++step) {
//     ForwardAndBackward();
//     VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());  // what is being saved has been copied
//     OptimizerStep();
//     state.trainer.global_step = step;
//     VARVE_ASSIGN_OR_RETURN(const bool stop, hooks->AfterStep(state, step == last));
//     if (stop) break;                          // it has saved if that was due
//   }
//   return hooks->Finish();                     // the last save is durable, or the error is here
//
// With ranks every call is collective and ends alike on all of them: with the error of the lowest
// rank that has one, and with one decision at each step. Rank 0 decides when to save, when to stop
// and what is loaded. A signal to any rank stops all of them at the same step, with a save. Flags
// that rank 0 does not decide, as --run and --finetune, must be the same on all ranks.
//
// Thread rule: one thread at a time, the trainer's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "varve/async_checkpointer.h"
#include "varve/flags.h"
#include "varve/rank_group.h"

namespace varve {

// The exit code of a trainer that a signal told to stop, after it has saved: EX_TEMPFAIL of
// sysexits.h, "try again". A job script that sees it starts the trainer again.
inline constexpr int kPreemptedExitCode = 75;

enum class StopReason { kNone, kLastStep, kExitInterval, kExitDuration, kSignal };

struct HooksOptions {
  // `run` and `retention` come from the flags.
  CheckpointerOptions checkpointer;
  // `strictness`, `optimizer` and what --finetune leaves out come from the flags.
  LoadOptions load;
  // Gets one line at a time, without its end: a few at the start, then one a save. It may be called
  // on another thread. Unset = standard error, and with ranks rank 0 alone writes.
  std::function<void(const std::string& line)> log;
  // The ranks of the job. Null = this one is alone. With ranks, --save and --load are the root of a
  // group (varve/group_checkpointer.h), or --load a store of one rank. The hooks speak through it
  // inside the calls below only, on the trainer's thread. It must outlive the hooks and be used for
  // nothing else. RankGroup::Split makes one.
  RankGroup* ranks = nullptr;
};

class TrainerHooks {
 public:
  // Checks the flags and the free space, loads if asked, takes the memory for staging, and turns
  // SIGTERM and SIGUSR1 into a save at the next step boundary until Finish. Everything that can be
  // known to be wrong before the first step fails here, with a sentence that says what to do. The
  // tensors of `state` are filled by a load and must stay where they are.
  static Result<std::unique_ptr<TrainerHooks>> Start(const CheckpointFlags& flags,
                                                     TrainingState* state,
                                                     const HooksOptions& options = {});
  // As Finish, but not collective, so a rank that has failed does not wait for the others. An error
  // that no call has returned goes to standard error.
  virtual ~TrainerHooks() = default;
  TrainerHooks(const TrainerHooks&) = delete;
  TrainerHooks& operator=(const TrainerHooks&) = delete;

  // What Start has loaded. nullopt: the training starts afresh.
  virtual const std::optional<LoadReport>& loaded() const = 0;

  // Call it before each optimizer step. It returns when the tensors may change
  // (AsyncCheckpointer::AwaitStaged). A save after which it is not called is not committed, and the
  // next AfterStep is kFailedPrecondition.
  virtual Status BeforeOptimizerStep() = 0;

  // Call it after each optimizer step, with all of `state` up to date. `state.trainer.global_step`
  // is the step. It starts a save when one is due: every --save-interval steps, at the last step,
  // and when the training is about to stop. True: stop now, everything is durable.
  virtual Result<bool> AfterStep(const TrainingState& state, bool is_last) = 0;
  virtual StopReason stop_reason() const = 0;
  // 0, or kPreemptedExitCode after a signal.
  int exit_code() const { return stop_reason() == StopReason::kSignal ? kPreemptedExitCode : 0; }

  // Waits for the last save and closes the store. Returns an error that no call has returned yet.
  virtual Status Finish() = 0;

  // Null without --save.
  virtual AsyncCheckpointer* checkpointer() = 0;

 protected:
  TrainerHooks() = default;
};

}  // namespace varve
