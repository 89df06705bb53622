// SPDX-License-Identifier: Apache-2.0
//
// A training loop on a GPU that saves with varve, and what the saves cost it. The lines marked (1)
// to (4) are all that saving takes.
//
//   cuda_loop                              8 GiB of state, a save every 20 steps
//   cuda_loop --changed 0/0/100            all of it changes between two saves
//   cuda_loop --check                      saves are what the tensors held: see cuda_loop_check.h
//
// The steps run three times: some without saves, all with saves, some without. The overhead of a
// save is the extra time of the loop, by the clock of the host, divided by the time of the steps
// between two saves. It includes the stall of the trainer, and what the saves in the background
// took from its steps.
//
// Exit codes: 0 = done, 1 = an error, or a check that failed, 77 = there is no GPU.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/cuda_example.h"
#include "examples/cuda_loop_check.h"
#include "examples/cuda_loop_trainer.h"
#include "varve/async_checkpointer.h"
#include "varve/cuda.h"

namespace cuda_example {
namespace {

using Clock = std::chrono::steady_clock;
using varve::Result;
using varve::Status;

constexpr int kNoGpu = 77;

struct Flags {
  double gib = 8;
  int steps = 80;
  int save_every = 20;
  std::string changed = "90/9/1";
  bool one_phase = false;
  double step_passes = 100;
  double staging_mib = 256;
  double host_staging_gib = 0;
  std::string codec = "auto";
  std::string store = "cuda_loop_store";
  bool check = false;
  int rounds = 500;
};

// "frozen/sparse/dense", in percent of the state. "dense" alone leaves the rest frozen.
Result<Shares> ParseShares(const std::string& text) {
  double frozen = 0, sparse = 0, dense = 0;
  int end = 0;
  const auto is_whole = [&] { return static_cast<size_t>(end) == text.size(); };
  const bool is_one = std::sscanf(text.c_str(), "%lf%n", &dense, &end) == 1 && is_whole();
  if (is_one) frozen = 100 - dense;
  const bool is_three =
      !is_one && std::sscanf(text.c_str(), "%lf/%lf/%lf%n", &frozen, &sparse, &dense, &end) == 3 &&
      is_whole();
  const bool is_all =
      frozen >= 0 && sparse >= 0 && dense >= 0 && std::abs(frozen + sparse + dense - 100) < 1e-6;
  if ((is_one || is_three) && is_all) {
    return Shares{.frozen = frozen / 100, .sparse = sparse / 100, .dense = dense / 100};
  }
  return Status::InvalidArgument("--changed " + text +
                                 ": expected FROZEN/SPARSE/DENSE of a sum of 100, or DENSE");
}

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// The times of a run of steps.
struct Run {
  int steps = 0;
  double seconds = 0;        // by the host's clock, until the device was done
  std::vector<double> each;  // step, by the device's
  std::vector<varve::SaveStats> saves;
};

class Loop {
 public:
  Loop(const Flags& flags, Trainer* trainer, cudaStream_t stream)
      : flags_(flags), trainer_(trainer), stream_(stream) {}

  // Saves after the first step of each interval, so that the save can hide behind the whole
  // interval. `checkpointer`: null = without saves.
  Result<Run> Steps(int count, varve::AsyncCheckpointer* checkpointer) {
    std::vector<Event> events;
    for (int i = 0; i <= count; ++i) {
      VARVE_ASSIGN_OR_RETURN(Event event, MakeEvent());
      events.push_back(std::move(event));
    }
    Run run{.steps = count};
    CUDA_OK(cudaStreamSynchronize(stream_));
    const auto start = Clock::now();
    CUDA_OK(cudaEventRecord(events[0].get(), stream_));
    for (int i = 1; i <= count; ++i) {
      VARVE_RETURN_IF_ERROR(Step(i % flags_.save_every == 1 % flags_.save_every, checkpointer));
      CUDA_OK(cudaEventRecord(events[i].get(), stream_));
    }
    CUDA_OK(cudaStreamSynchronize(stream_));
    run.seconds = Seconds(Clock::now() - start);
    for (int i = 0; i < count; ++i) {
      VARVE_ASSIGN_OR_RETURN(const double seconds, SecondsBetween(events[i], events[i + 1]));
      run.each.push_back(seconds);
    }
    return run;
  }

 private:
  Status Step(bool saves, varve::AsyncCheckpointer* checkpointer) {
    const int64_t step = trainer_->state().trainer.global_step + 1;
    VARVE_RETURN_IF_ERROR(trainer_->ForwardAndBackward());
    if (checkpointer != nullptr) VARVE_RETURN_IF_ERROR(checkpointer->AwaitStaged());  // (3)
    VARVE_RETURN_IF_ERROR(trainer_->OptimizerStep(step));
    if (checkpointer == nullptr || !saves) return Status::Ok();
    VARVE_RETURN_IF_ERROR(  // (2)
        checkpointer->BeginSave(static_cast<uint64_t>(step), trainer_->state()).status());
    return flags_.one_phase ? checkpointer->AwaitStaged() : Status::Ok();
  }

  const Flags& flags_;
  Trainer* const trainer_;
  const cudaStream_t stream_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
double Max(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

void PrintRun(const char* what, const Run& run) {
  std::printf("%d steps %s: %.3f s; a step %.2f ms (median), %.2f ms (longest)\n", run.steps, what,
              run.seconds, 1e3 * Median(run.each), 1e3 * Max(run.each));
}

// Prints one line for the reader and one for programs.
void PrintOverhead(const Flags& flags, const Run& plain, const Run& saving, double first_stall) {
  std::vector<double> stalls, waits, durable;
  for (const varve::SaveStats& save : saving.saves) {
    stalls.push_back(save.stall_seconds);
    waits.push_back(save.busy_wait_seconds);
    durable.push_back(save.durable_seconds);
  }
  const double step = plain.seconds / plain.steps;
  const double interval = step * flags.save_every;
  const double cost = (saving.seconds - step * saving.steps) / static_cast<double>(stalls.size());
  std::printf(
      "calls of a save held the host %.3f ms (median), %.3f ms (longest), of which it "
      "waited %.3f ms (longest) for the save before; the first %.1f ms; durable after "
      "%.2f s (median)\n",
      1e3 * Median(stalls), 1e3 * Max(stalls), 1e3 * Max(waits), 1e3 * first_stall,
      Median(durable));
  constexpr double kTarget = 0.02;
  const double overhead = cost / interval;
  std::printf(
      "cuda_loop: %s, changed %s: (stall + slowdown) / interval %.4f (%.2f ms of %.3f s), "
      "at most %.2f: %s\n",
      flags.one_phase ? "one-phase" : "two-phase", flags.changed.c_str(), overhead, 1e3 * cost,
      interval, kTarget, overhead <= kTarget ? "met" : "NOT MET");
}

Result<varve::Compression> ParseCompression(const std::string& name) {
  if (name == "auto") return varve::Compression::kAuto;
  if (name == "none") return varve::Compression::kNone;
  if (name == "fast") return varve::Compression::kFast;
  return Status::InvalidArgument("--codec " + name + ": expected auto, none or fast");
}

uint64_t Bytes(double count, int shift) {
  return static_cast<uint64_t>(count * static_cast<double>(uint64_t{1} << shift));
}

Status Train(const Flags& flags, cudaStream_t stream) {
  VARVE_ASSIGN_OR_RETURN(const Shares shares, ParseShares(flags.changed));
  VARVE_ASSIGN_OR_RETURN(const varve::Compression compression, ParseCompression(flags.codec));
  VARVE_ASSIGN_OR_RETURN(auto trainer, Trainer::Create(Bytes(flags.gib, 30), shares, stream));
  VARVE_ASSIGN_OR_RETURN(const double pass, trainer->ReadPass());
  VARVE_RETURN_IF_ERROR(trainer->MakeStepsLast(flags.step_passes * pass));
  std::printf(
      "%.3f GiB of state in %zu tensors, %s percent frozen/sparse/dense; one read pass "
      "%.3f ms, a step of %d products and AdamW at least %.1f ms\n",
      static_cast<double>(trainer->bytes()) / (uint64_t{1} << 30), trainer->state().tensors.size(),
      flags.changed.c_str(), 1e3 * pass, 2 * trainer->products(), 1e3 * flags.step_passes * pass);

  std::vector<varve::SaveStats> saves;
  VARVE_ASSIGN_OR_RETURN(
      auto source, varve::CudaTensorSource::Create(  // (1)
                       {.streams = {{0, stream}}, .staging_bytes = Bytes(flags.staging_mib, 20)}));
  VARVE_ASSIGN_OR_RETURN(
      auto checkpointer,
      varve::AsyncCheckpointer::Open(
          flags.store, {.staging_budget_bytes = Bytes(flags.host_staging_gib, 30),
                        .store = {.compression = compression},
                        .devices = source,
                        .retention = varve::RetentionPolicy{.keep_last = 2},
                        .on_save = [&](const varve::SaveStats& save) { saves.push_back(save); }}));
  VARVE_RETURN_IF_ERROR(checkpointer->Prewarm(trainer->state()));

  Loop loop(flags, trainer.get(), stream);
  const int half = (flags.steps + 1) / 2;
  VARVE_RETURN_IF_ERROR(loop.Steps(3, nullptr).status());  // warms up
  VARVE_ASSIGN_OR_RETURN(Run plain, loop.Steps(half, nullptr));
  VARVE_RETURN_IF_ERROR(checkpointer->Save(0, trainer->state()).status());
  VARVE_RETURN_IF_ERROR(checkpointer->Wait());
  VARVE_ASSIGN_OR_RETURN(Run saving, loop.Steps(flags.steps, checkpointer.get()));
  VARVE_RETURN_IF_ERROR(checkpointer->Close());  // (4)
  VARVE_ASSIGN_OR_RETURN(const Run after, loop.Steps(half, nullptr));

  for (size_t i = 0; i < saves.size(); ++i) std::printf("%s\n", ToString(saves[i]).c_str());
  if (saves.size() < 2) return Status::InvalidArgument("no save lies within so few steps");
  saving.saves.assign(saves.begin() + 1, saves.end());
  PrintRun("without saves", plain);
  PrintRun("with saves", saving);
  PrintRun("without saves", after);
  plain.steps += after.steps;
  plain.seconds += after.seconds;
  PrintOverhead(flags, plain, saving, saves[0].stall_seconds);
  return Status::Ok();
}

Status RunOnDevice(const Flags& flags) {
  if (std::filesystem::exists(flags.store)) {
    return Status::AlreadyExists(flags.store + " is there already; --store names a new folder");
  }
  VARVE_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
  const Status status =
      flags.check ? CheckContract(flags.store, flags.rounds) : Train(flags, stream.get());
  if (status.ok()) std::filesystem::remove_all(flags.store);
  return status;
}

int Main(int argc, char** argv) {
  CLI::App app("A training loop on a GPU that saves with varve, and what the saves cost it");
  Flags flags;
  app.add_option("--gib", flags.gib, "Size of the state")->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "Steps with saves, and as many without")
      ->check(CLI::PositiveNumber);
  app.add_option("--save-every", flags.save_every, "Steps between saves")
      ->check(CLI::PositiveNumber);
  app.add_option("--changed", flags.changed,
                 "Percent of the state that is frozen, an embedding of which each step changes "
                 "some rows, and changed by each step: FROZEN/SPARSE/DENSE, or DENSE alone");
  app.add_flag("--one-phase,!--two-phase", flags.one_phase,
               "Save waits until the tensors may change; two-phase (the default) waits before the "
               "next optimizer step");
  app.add_option("--step-passes", flags.step_passes,
                 "Length of a step, in read passes over the state")
      ->check(CLI::PositiveNumber);
  app.add_option("--staging-mib", flags.staging_mib, "Staging on the device")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--host-staging-gib", flags.host_staging_gib,
                 "Pinned memory of the host; 0 = as needed")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--codec", flags.codec, "auto, none or fast");
  app.add_option("--store", flags.store, "A new folder; removed when all went well");
  app.add_flag("--check", flags.check, "Instead: that saves are what the tensors held");
  app.add_option("--rounds", flags.rounds, "Saves of --check")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  int devices = 0;
  const Status there = ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (!there.ok() || devices == 0) {
    std::printf("cuda_loop: not run: no GPU here (%s)\n",
                there.ok() ? "no device" : there.message().c_str());
    return kNoGpu;
  }
  const Status status = RunOnDevice(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_loop: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace cuda_example

int main(int argc, char** argv) { return cuda_example::Main(argc, argv); }
