// SPDX-License-Identifier: Apache-2.0
//
// gpt_train: trains a small GPT-2 on text, saves to a varve store, resumes from it. See
// ../README.md.
#include <tbb/global_control.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "gpt/data.h"
#include "gpt/flags.h"
#include "gpt/launch.h"
#include "gpt/trainer.h"
#include "varve/trainer_hooks.h"

#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif
#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif

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
void PrintSave(const varve::SaveStats& m) {
  if (!m.status.ok() || m.skipped) {
    std::printf("%s\n", ToString(m).c_str());
    return;
  }
  std::printf(
      "saved step %lu logical_bytes %lu new_bytes %lu stored_bytes %lu ms %.1f stall_ms %.1f\n",
      m.step, m.logical_bytes, m.new_bytes, m.stored_bytes, m.durable_seconds * 1e3,
      m.stall_seconds * 1e3);
}

// With several ranks, each writes its part, if it has one, to a file of its own.
varve::Status WriteDump(const Dump& dump, const varve::TrainingState& state,
                        const std::string& suffix) {
  for (const varve::StateTensor& tensor : state.tensors) {
    if (tensor.name != dump.name) continue;
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, varve::NumBytes(tensor.dtype, tensor.shape));
    std::ofstream file(dump.file + suffix, std::ios::binary);
    file.write(static_cast<const char*>(tensor.data), static_cast<std::streamsize>(bytes));
    if (!file.flush()) return varve::Status::IOError("cannot write " + dump.file + suffix);
    return varve::Status::Ok();
  }
  if (!suffix.empty()) return varve::Status::Ok();
  return varve::Status::NotFound("--dump-tensor: the trainer has no tensor '" + dump.name + "'");
}

varve::HooksOptions MakeHooksOptions(const Ranks& ranks) {
  varve::HooksOptions options;
  options.ranks = ranks.for_saves();
  options.load.rank_states = varve::RankStates::kDrop;  // Trainer::Resume makes new ones
  options.checkpointer.local_ranks = ranks.position().topology.size();
  options.log = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  options.checkpointer.on_save = PrintSave;
  return options;
}

// `suffix` is that of files that each rank writes.
varve::Status Train(const Flags& flags, const std::string& suffix, varve::TrainerHooks* hooks,
                    Trainer* trainer) {
  bool stops = trainer->step() >= flags.train_iters;
  // There is nothing to train. The checkpoint of another training is saved as it is, perhaps by
  // other ranks than before.
  if (stops && hooks->loaded().has_value()) {
    VARVE_RETURN_IF_ERROR(hooks->AfterStep(trainer->StateToSave(), true).status());
  }
  while (!stops) {
    const auto start = Clock::now();
    trainer->ForwardBackward(BatchSizeAt(flags, trainer->step() + 1));
    VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());
    const StepReport report = trainer->Update();
    VARVE_RETURN_IF_ERROR(trainer->status());
    PrintStep(report, Clock::now() - start);
    for (const Dump& dump : flags.dumps) {
      if (dump.step == report.step)
        VARVE_RETURN_IF_ERROR(WriteDump(dump, *trainer->state(), suffix));
    }
    const bool is_last = report.step == flags.train_iters;
    VARVE_ASSIGN_OR_RETURN(stops, hooks->AfterStep(trainer->StateToSave(), is_last));
  }
  return hooks->Finish();
}

// Returns a rank alone, or one of the ranks that the environment names. Only the first of them
// prints.
varve::Result<std::unique_ptr<Ranks>> MakeRanks(const Flags& flags) {
  VARVE_ASSIGN_OR_RETURN(auto world, JoinRanks());
  const int num_ranks = world == nullptr ? 1 : world->size();
  VARVE_ASSIGN_OR_RETURN(const Topology topology, TopologyOf(flags, num_ranks));
  if (world == nullptr) return std::make_unique<Ranks>();
  if (world->rank() > 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
    return varve::Status::IOError("cannot open /dev/null");
  }
  return Ranks::Make(std::move(world), topology);
}

// The exit code.
varve::Result<int> Run(Flags flags) {
  flags.trainer.schedule.decay_iters = flags.lr_decay_iters.value_or(flags.train_iters);
  VARVE_ASSIGN_OR_RETURN(const auto ranks, MakeRanks(flags));
  const Topology& topology = ranks->position().topology;
  VARVE_ASSIGN_OR_RETURN(std::string text, ReadText(flags.data));
  VARVE_RETURN_IF_ERROR(ValidateOptions(flags.trainer, text, topology));
  std::printf("text %s bytes %zu\n", flags.data.c_str(), text.size());
  Trainer trainer(flags.trainer, std::move(text), ranks.get());
  VARVE_ASSIGN_OR_RETURN(
      const auto hooks,
      varve::TrainerHooks::Start(flags.checkpoint, trainer.state(), MakeHooksOptions(*ranks)));
  if (hooks->loaded().has_value()) {
    const bool has_optimizer = flags.checkpoint.load_optim && !flags.checkpoint.finetune;
    const bool has_generator = hooks->loaded()->dropped.empty();
    VARVE_RETURN_IF_ERROR(trainer.Resume({.optimizer = has_optimizer, .generator = has_generator}));
  }
  const std::string suffix = topology.size() == 1 ? "" : "." + std::to_string(ranks->rank());
  VARVE_RETURN_IF_ERROR(Train(flags, suffix, hooks.get(), &trainer));
  return hooks->exit_code();
}

// The exit code of this process: of the ranks that it starts, or of the training.
varve::Result<int> RunOrSpawn(Flags flags) {
  if (flags.num_spawned > 0) {
    VARVE_ASSIGN_OR_RETURN(const std::optional<int> exit_code, Spawn(flags.num_spawned));
    if (exit_code.has_value()) return *exit_code;
    if (flags.threads == 0) {
      const size_t num_cores = std::thread::hardware_concurrency();
      flags.threads = std::max<size_t>(1, num_cores / flags.num_spawned);
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a killed run leaves whole lines
  std::optional<tbb::global_control> limit;
  if (flags.threads > 0) limit.emplace(tbb::global_control::max_allowed_parallelism, flags.threads);
  return Run(std::move(flags));
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT-2 on text, bit for bit the same each time.");
  gpt::Flags flags;
  gpt::AddFlags(&app, &flags);
  CLI11_PARSE(app, argc, argv);
#ifdef VARVE_HAS_S3
  varve::UseS3();
#endif
#ifdef VARVE_HAS_RADOS
  varve::UseRados();
#endif
  const varve::Result<int> exit_code = gpt::RunOrSpawn(std::move(flags));
  if (exit_code.ok()) return *exit_code;
  std::fprintf(stderr, "gpt_train: %s\n", exit_code.status().ToString().c_str());
  return 1;
}
