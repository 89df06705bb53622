// SPDX-License-Identifier: Apache-2.0
//
// gpt_train: trains a small GPT-2 on text, saves to a varve store, resumes from it. See
// ../README.md.
#include <tbb/global_control.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "gpt/data.h"
#include "gpt/flags.h"
#include "gpt/trainer.h"
#include "varve/trainer_hooks.h"

namespace gpt {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

void PrintStep(const StepReport& report, Clock::duration time) {
  std::printf("step %ld loss %.9g bits %08x lr %.9g samples %ld-%ld grad_norm %.6g ms %.1f\n",
              report.step, report.loss, std::bit_cast<uint32_t>(report.loss), report.lr,
              report.first_sample, report.last_sample, report.grad_norm, Milliseconds(time));
}

// On a thread of the checkpointer.
void PrintSave(const varve::SaveMetrics& m) {
  if (!m.status.ok() || m.skipped) {
    std::printf("%s\n", ToString(m).c_str());
    return;
  }
  std::printf(
      "saved step %lu logical_bytes %lu new_bytes %lu stored_bytes %lu ms %.1f stall_ms %.1f\n",
      m.step, m.logical_bytes, m.new_bytes, m.stored_bytes, m.durable_seconds * 1e3,
      m.stall_seconds * 1e3);
}

varve::Status WriteDump(const Dump& dump, const varve::TrainingState& state) {
  for (const varve::StateTensor& tensor : state.tensors) {
    if (tensor.name != dump.name) continue;
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, varve::NumBytes(tensor.dtype, tensor.shape));
    std::ofstream file(dump.file, std::ios::binary);
    file.write(static_cast<const char*>(tensor.data), static_cast<std::streamsize>(bytes));
    if (!file.flush()) return varve::Status::IOError("cannot write " + dump.file);
    return varve::Status::Ok();
  }
  return varve::Status::NotFound("--dump-tensor: the trainer has no tensor '" + dump.name + "'");
}

varve::HooksOptions MakeHooksOptions() {
  varve::HooksOptions options;
  options.log = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  options.checkpointer.on_save = PrintSave;
  return options;
}

varve::Status Train(const Flags& flags, varve::TrainerHooks* hooks, Trainer* trainer) {
  bool stops = trainer->step() >= flags.train_iters;
  while (!stops) {
    const auto start = Clock::now();
    trainer->ForwardBackward(BatchSizeAt(flags, trainer->step() + 1));
    VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());
    const StepReport report = trainer->Update();
    PrintStep(report, Clock::now() - start);
    for (const Dump& dump : flags.dumps) {
      if (dump.step == report.step) VARVE_RETURN_IF_ERROR(WriteDump(dump, *trainer->state()));
    }
    VARVE_ASSIGN_OR_RETURN(stops,
                           hooks->AfterStep(*trainer->state(), report.step == flags.train_iters));
  }
  return hooks->Finish();
}

// The exit code.
varve::Result<int> Run(Flags flags) {
  flags.trainer.schedule.decay_iters = flags.lr_decay_iters.value_or(flags.train_iters);
  VARVE_ASSIGN_OR_RETURN(std::string text, ReadText(flags.data));
  VARVE_RETURN_IF_ERROR(ValidateOptions(flags.trainer, text));
  std::printf("text %s bytes %zu\n", flags.data.c_str(), text.size());
  Trainer trainer(flags.trainer, std::move(text));
  VARVE_ASSIGN_OR_RETURN(
      const auto hooks,
      varve::TrainerHooks::Start(flags.checkpoint, trainer.state(), MakeHooksOptions()));
  if (hooks->loaded().has_value()) VARVE_RETURN_IF_ERROR(trainer.Resume());
  VARVE_RETURN_IF_ERROR(Train(flags, hooks.get(), &trainer));
  return hooks->exit_code();
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT-2 on text, bit for bit the same each time.");
  gpt::Flags flags;
  gpt::AddFlags(&app, &flags);
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a killed run leaves whole lines
  std::optional<tbb::global_control> limit;
  if (flags.threads > 0) limit.emplace(tbb::global_control::max_allowed_parallelism, flags.threads);
  const varve::Result<int> exit_code = gpt::Run(std::move(flags));
  if (exit_code.ok()) return *exit_code;
  std::fprintf(stderr, "gpt_train: %s\n", exit_code.status().ToString().c_str());
  return 1;
}
