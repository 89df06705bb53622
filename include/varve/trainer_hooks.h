// SPDX-License-Identifier: Apache-2.0
//
// TrainerHooks does what the flags of a training say: it loads, saves when a save is due, drops old
// steps, and says when to stop.
//
//   VARVE_ASSIGN_OR_RETURN(auto hooks, varve::TrainerHooks::Start(flags, &state));  // loads
//   for (int64_t step = state.trainer.global_step + 1; step <= last; ++step) {
//     ForwardAndBackward();
//     VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());  // waits until the tensors may change
//     OptimizerStep();
//     state.trainer.global_step = step;
//     VARVE_ASSIGN_OR_RETURN(const bool stop, hooks->AfterStep(state, step == last));
//     if (stop) break;                          // the save of this step is durable
//   }
//   return hooks->Finish();                     // ok: all is durable. Otherwise: the first error
//
// With many ranks, Start, BeforeOptimizerStep, WillSave, AfterStep and Finish are collective,
// and return the same result on all ranks. The other calls do not communicate. When one or more
// ranks fail in a collective call, every rank returns the error of the lowest rank that failed.
// Rank 0 decides when to save, when to stop and which step is loaded. With --save, SIGTERM or
// SIGUSR1 to any rank stops all ranks at the same step, with a save. Some flags must be the same on
// all ranks: --run, --finetune, --no-save-optim, --no-load-optim, --no-async-save,
// --exit-on-missing-checkpoint, --dist-ckpt-strictness, and whether --save, --load, --ckpt-step and
// --remote are given.
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

// The exit code of a trainer that saved and stopped because of a signal: EX_TEMPFAIL of sysexits.h,
// "try again". A job script that sees this code starts the trainer again.
inline constexpr int kPreemptedExitCode = 75;

// Why the training must stop. stop_reason() returns what AfterStep has found last, even if
// AfterStep then returned an error. kNone: the training need not stop. kExitInterval and
// kExitDuration stand for --exit-interval and --exit-duration-in-mins.
enum class StopReason { kNone, kLastStep, kExitInterval, kExitDuration, kSignal };

struct HooksOptions {
  // The flags decide some fields. `run` and `retention` always come from the flags, and what is set
  // here is ignored. `timeout` comes from --rank-timeout-in-secs if that is given. `url`,
  // `interval` and `keep` of `remote` come from the flags if --remote is given.
  CheckpointerOptions checkpointer;
  // `strictness` and `optimizer` always come from the flags, and what is set here is ignored.
  // --finetune sets `optimizer`, `lr_scheduler` and `trainer_state` to false.
  LoadOptions load;
  // Called with one line of text at a time, without a newline: a few at the start, then one for
  // each save and each push. There are no lines for saves if checkpointer.on_save is set. There are
  // no lines for pushes if on_push of checkpointer.remote is set. Several threads may call `log` at
  // the same time. It must not call the hooks, and must not throw. Unset = lines go to standard
  // error, and with many ranks only those of rank 0.
  std::function<void(const std::string& line)> log;
  // Connects the ranks of the job. Null = the job has one rank. With many ranks, --save is the root
  // of a group (varve/group_checkpointer.h). --load is the root of a group, or a store of one rank.
  // With many ranks --remote is an error, because the root of a group cannot be pushed. The hooks
  // communicate through `ranks` only inside the calls below, on the trainer's thread. A save in the
  // background only calls gone(), which does not communicate. `ranks` must outlive the hooks, and
  // must not be used for anything else. RankGroup::Split makes such a group.
  RankGroup* ranks = nullptr;
};

class TrainerHooks {
 public:
  // Checks the flags, and loads if --load is given. With --save, it also checks the free space,
  // takes the memory for staging, and catches SIGTERM and SIGUSR1 until Finish. Such a signal
  // causes a save and a stop in the next AfterStep. Start checks the state, too, so that a mistake
  // is an error before the first step. The error says what to do. A load fills the tensors of
  // `state` and the variables of its items. Their memory must stay where it is while the hooks
  // live. A load fills only what `state` lists. So a trainer whose optimizer makes its state in the
  // first step must make and list this state before Start. If global_step is still 0 after a load
  // without --finetune, as for an imported checkpoint, Start sets it to the number of the step.
  // kFailedPrecondition: the run has steps already, and the training does not continue from one of
  // them. kNotFound: there is nothing to load, and --ckpt-step, --finetune or
  // --exit-on-missing-checkpoint is given. Other errors are those of the flags, the load and the
  // checkpointer.
  static Result<std::unique_ptr<TrainerHooks>> Start(const CheckpointFlags& flags,
                                                     TrainingState* state,
                                                     const HooksOptions& options = {});
  // The destructor does what Finish does, but is not collective. With many ranks, it waits for the
  // other ranks only if a save is in progress, and then at most 30 s. An error that no call has
  // returned is printed to standard error.
  virtual ~TrainerHooks() = default;
  TrainerHooks(const TrainerHooks&) = delete;
  TrainerHooks& operator=(const TrainerHooks&) = delete;

  // Describes what Start has loaded. nullopt: nothing was loaded.
  virtual const std::optional<LoadReport>& loaded() const = 0;

  // Call it before each optimizer step. It returns when the tensors may change
  // (AsyncCheckpointer::AwaitStaged). If it is not called after a save has started, that save is
  // not committed, and the next AfterStep returns kFailedPrecondition.
  virtual Status BeforeOptimizerStep() = 0;

  // Says whether AfterStep of this step will save. If it will not, the trainer need not gather the
  // values that only a save needs. Call it between AfterStep of the previous step and AfterStep of
  // this step, with the same `is_last`. AfterStep does what the answer says. A signal in between
  // takes effect one step later. Only with WhenBusy::kSkip may the save be skipped. Errors as
  // AfterStep. WillSave does not notice that BeforeOptimizerStep was not called.
  virtual Result<bool> WillSave(int64_t step, bool is_last = false) = 0;

  // Call it as the last thing in the loop body, after each optimizer step, with all of `state` up
  // to date. `state.trainer.global_step` is the step. AfterStep starts a save at steps whose number
  // is a multiple of --save-interval, at the last step, and when the training is about to stop.
  // Returns true when the trainer must stop. With --save, the save of this step is durable then. If
  // CheckpointerOptions::failure_is_fatal is true, all earlier saves are durable, too.
  // kFailedPrecondition: BeforeOptimizerStep was not called, or ranks are at different steps.
  // kInvalidArgument: global_step is negative. Other errors are those of
  // AsyncCheckpointer::BeginSave and of a failed save.
  virtual Result<bool> AfterStep(const TrainingState& state, bool is_last) = 0;
  virtual StopReason stop_reason() const = 0;
  // kPreemptedExitCode if a signal stopped the training before its last step. Otherwise 0.
  int exit_code() const { return stop_reason() == StopReason::kSignal ? kPreemptedExitCode : 0; }

  // Closes the checkpointer: waits for the last save, then for the last push, and closes the store.
  // Returns the first error of a save or of the retention after it, even if an earlier call has
  // returned it. If there was none, Finish returns an error when a step that must get to the object
  // store (RemoteOptions) is still not there. After Finish, call only loaded, stop_reason,
  // exit_code and the destructor.
  virtual Status Finish() = 0;

  // The checkpointer that the hooks use and own. Null without --save.
  virtual AsyncCheckpointer* checkpointer() = 0;

 protected:
  TrainerHooks() = default;
};

}  // namespace varve
