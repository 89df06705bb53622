// SPDX-License-Identifier: Apache-2.0
//
// The hooks of a trainer of one rank.
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"
#include "varve/trainer_hooks.h"

namespace varve::internal::capi {

namespace {

static_assert(static_cast<int>(StopReason::kNone) == VARVE_STOP_NONE);
static_assert(static_cast<int>(StopReason::kLastStep) == VARVE_STOP_LAST_STEP);
static_assert(static_cast<int>(StopReason::kExitInterval) == VARVE_STOP_EXIT_INTERVAL);
static_assert(static_cast<int>(StopReason::kExitDuration) == VARVE_STOP_EXIT_DURATION);
static_assert(static_cast<int>(StopReason::kSignal) == VARVE_STOP_SIGNAL);

struct TrainerHooksObject : Object {
  static constexpr const char* kKind = "hooks";
  const char* kind() const override { return kKind; }
  std::shared_ptr<StateObject> state;
  std::unique_ptr<TrainerHooks> hooks;
};

Result<HooksOptions> ReadHooksOptions(const varve_hooks_options* options) {
  constexpr uint32_t kMostRetries = 1000;
  varve_hooks_options given;
  VARVE_RETURN_IF_ERROR(ReadOptions("varve_hooks_options", options, &given));
  VARVE_RETURN_IF_ERROR(CheckConstant("compression", given.compression, VARVE_COMPRESSION_MAX));
  VARVE_RETURN_IF_ERROR(CheckConstant("num_threads", given.num_threads, INT32_MAX));
  VARVE_RETURN_IF_ERROR(CheckConstant("retries", given.retries, kMostRetries));
  HooksOptions read;
  read.checkpointer.staging_budget_bytes = given.staging_budget_bytes;
  read.checkpointer.check_staging = given.check_staging;
  read.checkpointer.retries = static_cast<int>(given.retries);
  if (given.skips_when_busy != 0) read.checkpointer.when_busy = WhenBusy::kSkip;
  read.checkpointer.store.compression = static_cast<Compression>(given.compression);
  read.checkpointer.store.num_threads = static_cast<int>(given.num_threads);
  if (given.log != nullptr) {
    read.log = [log = given.log, context = given.log_context](const std::string& line) {
      log(context, line.c_str());
    };
  }
  return read;
}

// True when the save of this step was skipped (WhenBusy::kSkip).
bool IsSkipped(AsyncCheckpointer* checkpointer, uint64_t step) {
  if (checkpointer == nullptr) return false;
  const auto stats = checkpointer->last_stats();
  return stats.has_value() && stats->step == step && stats->skipped;
}

// Tags name one step, so those of a save that has begun are used up.
Status AfterStep(TrainerHooksObject* object, int64_t step, bool is_last, bool* stop) {
  VARVE_ASSIGN_OR_RETURN(const auto state, Exclusive<StateObject>::Of(object->state));
  VARVE_ASSIGN_OR_RETURN(const bool saves, object->hooks->WillSave(step, is_last));
  state->state.trainer.global_step = step;
  VARVE_ASSIGN_OR_RETURN(*stop, object->hooks->AfterStep(state->state, is_last));
  const bool is_skipped = IsSkipped(object->hooks->checkpointer(), static_cast<uint64_t>(step));
  if (saves && !is_skipped) state->state.tags.clear();
  return Status::Ok();
}

// Runs `work` on the hooks of a handle.
template <typename Work>
Status WithHooks(varve_hooks* hooks, const Work& work) {
  VARVE_ASSIGN_OR_RETURN(const auto object, Exclusive<TrainerHooksObject>::Get(hooks));
  return work(object.object().get());
}

// Runs `change` on the checkpointer of the hooks.
template <typename Change>
Status ChangeSaved(varve_hooks* hooks, const char* what, const char* name, const Change& change) {
  return WithHooks(hooks, [&](TrainerHooksObject* object) -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer(what, name));
    AsyncCheckpointer* const checkpointer = object->hooks->checkpointer();
    if (checkpointer != nullptr) return change(checkpointer);
    return Status::FailedPrecondition("the hooks save nothing, expected the flag --save");
  });
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::AsyncCheckpointer;
using varve::Status;

varve_status varve_hooks_start(const varve_flags* flags, varve_state* state,
                               const varve_hooks_options* options, varve_hooks** hooks) {
  return Call("varve_hooks_start", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("hooks", hooks));
    *hooks = nullptr;
    VARVE_ASSIGN_OR_RETURN(const auto given, Exclusive<FlagsObject>::Get(flags));
    VARVE_ASSIGN_OR_RETURN(const auto described, Exclusive<StateObject>::Get(state));
    VARVE_ASSIGN_OR_RETURN(const varve::HooksOptions read, ReadHooksOptions(options));
    auto made = std::make_shared<TrainerHooksObject>();
    made->state = described.object();
    VARVE_ASSIGN_OR_RETURN(made->hooks,
                           varve::TrainerHooks::Start(given->flags, &described->state, read));
    Give(std::move(made), hooks);
    return Status::Ok();
  });
}

varve_status varve_hooks_loaded(varve_hooks* hooks, varve_load_report* report) {
  return Call("varve_hooks_loaded", [&] {
    return WithHooks(hooks, [&](TrainerHooksObject* object) -> Status {
      VARVE_RETURN_IF_ERROR(CheckStruct("varve_load_report", report));
      const auto& loaded = object->hooks->loaded();
      if (!loaded.has_value()) return Status::NotFound("the start of the hooks loaded nothing");
      WriteStruct(varve_load_report{.struct_size = sizeof(varve_load_report),
                                    .run = loaded->id.run.c_str(),
                                    .step = loaded->id.step,
                                    .num_tensors = loaded->num_tensors,
                                    .num_bytes = loaded->bytes,
                                    .seconds = loaded->seconds},
                  report);
      return Status::Ok();
    });
  });
}

varve_status varve_hooks_before_optimizer_step(varve_hooks* hooks) {
  return Call("varve_hooks_before_optimizer_step", [&] {
    return WithHooks(
        hooks, [](TrainerHooksObject* object) { return object->hooks->BeforeOptimizerStep(); });
  });
}

varve_status varve_hooks_will_save(varve_hooks* hooks, int64_t step, int is_last, int* will_save) {
  return Call("varve_hooks_will_save", [&] {
    return WithHooks(hooks, [&](TrainerHooksObject* object) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("will_save", will_save));
      *will_save = 0;
      VARVE_ASSIGN_OR_RETURN(const bool saves, object->hooks->WillSave(step, is_last != 0));
      *will_save = saves ? 1 : 0;
      return Status::Ok();
    });
  });
}

varve_status varve_hooks_after_step(varve_hooks* hooks, int64_t step, int is_last, int* stop) {
  return Call("varve_hooks_after_step", [&] {
    return WithHooks(hooks, [&](TrainerHooksObject* object) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("stop", stop));
      *stop = 0;
      bool stops = false;
      VARVE_RETURN_IF_ERROR(AfterStep(object, step, is_last != 0, &stops));
      *stop = stops ? 1 : 0;
      return Status::Ok();
    });
  });
}

varve_status varve_hooks_stop_reason(varve_hooks* hooks, uint32_t* reason, int* exit_code) {
  return Call("varve_hooks_stop_reason", [&] {
    return WithHooks(hooks, [&](TrainerHooksObject* object) -> Status {
      if (reason != nullptr) *reason = static_cast<uint32_t>(object->hooks->stop_reason());
      if (exit_code != nullptr) *exit_code = object->hooks->exit_code();
      return Status::Ok();
    });
  });
}

varve_status varve_hooks_set_metric(varve_hooks* hooks, uint64_t step, const char* name,
                                    double value) {
  return Call("varve_hooks_set_metric", [&] {
    return ChangeSaved(hooks, "name", name, [&](AsyncCheckpointer* checkpointer) {
      return checkpointer->SetMetrics(step, {{name, value}});
    });
  });
}

varve_status varve_hooks_set_tag(varve_hooks* hooks, uint64_t step, const char* tag) {
  return Call("varve_hooks_set_tag", [&] {
    return ChangeSaved(hooks, "tag", tag, [&](AsyncCheckpointer* checkpointer) {
      return checkpointer->SetTag(step, tag);
    });
  });
}

varve_status varve_hooks_finish(varve_hooks* hooks) {
  return Call("varve_hooks_finish", [&] {
    return WithHooks(hooks, [](TrainerHooksObject* object) { return object->hooks->Finish(); });
  });
}

void varve_hooks_close(varve_hooks* hooks) {
  CallQuietly("varve_hooks_close", [&] { Close<TrainerHooksObject>(hooks); });
}
