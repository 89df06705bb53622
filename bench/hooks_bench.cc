// SPDX-License-Identifier: Apache-2.0
//
// hooks_bench [--folder FOLDER] [--mib N] [--rounds N] [--cycles N]: what saving costs a training
// loop. It prints one row for each target of the hooks. README.md explains the numbers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/baselines.h"
#include "bench/bench_params.h"
#include "bench/measure.h"
#include "bench/rows.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "varve/async_checkpointer.h"

namespace varve::internal::bench {
namespace {

constexpr int kOverlaps = 5;  // saves of each share around a step

struct Flags {
  std::string folder = "bench-stores";
  uint64_t mib = 1024;
  int rounds = 15;
  int cycles = 5;
};

// The store's side of what a trainer has: its state, and threads that compute.
class Trainer {
 public:
  explicit Trainer(uint64_t bytes)
      : state_(MakeNoise(bytes, 64 * kMiB, 1)), copy_(state_.EmptyCopy()) {
    for (const StateTensor& t : state_.tensors) {
      view_.tensors.push_back(
          {{.name = t.name, .dtype = t.dtype, .shape = t.shape}, t.data.data()});
    }
    // Calibrates one step to a little over a second on all cores. The first measurement is a cold
    // one.
    work_ = kProbe;
    for (int look = 0; look < 3; ++look) {
      work_ = static_cast<int64_t>(1.1 * static_cast<double>(work_) / Seconds([&] { Step(); }));
    }
  }

  const TrainingState& view() const { return view_; }
  uint64_t bytes() const { return state_.bytes(); }

  // Gives `share` of all chunks new content, evenly spread.
  void Change(double share, uint64_t seed) {
    changed_.clear();
    double due = 0;
    for (const StateTensor& t : state_.tensors) {
      for (size_t at = 0; at < t.data.size(); at += kChunkBytes) {
        due += share;
        if (due < 1 - 1e-9) continue;
        due -= 1;
        const auto chunk = t.data.subspan(at, std::min<size_t>(kChunkBytes, t.data.size() - at));
        FillNoise(Mix(seed, changed_.size()), chunk);
        changed_.push_back(chunk);
      }
    }
  }

  // The least that a save must do before the trainer may continue: a digest pass over everything,
  // and a memcpy of what has changed, with as many threads as the save has.
  double Floor(int num_threads) {
    const double digest = Seconds([&] { DigestPass(state_, num_threads); });
    std::byte* to = copy_.memory.get();
    std::atomic<size_t> next = 0;
    const auto copy = [&] {
      for (size_t i = next++; i < changed_.size(); i = next++) {
        std::memcpy(to + i * kChunkBytes, changed_[i].data(), changed_[i].size());
      }
    };
    return digest + Seconds([&] {
             std::vector<std::jthread> threads;
             for (int i = 1; i < num_threads; ++i) threads.emplace_back(copy);
             copy();
           });
  }

  // A second of arithmetic on all cores, in their caches.
  void Step() { Compute(work_); }

 private:
  static constexpr int64_t kProbe = 20'000;

  static void Compute(int64_t work) {
    std::vector<std::jthread> threads;
    std::atomic<int64_t> next = 0;
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
      threads.emplace_back([&] {
        std::vector<float> x(16'384, 1.0f);
        while (next++ < work) {
          for (float& value : x) value = value * 0.999f + 0.001f;
        }
        if (x[7] == 0) std::printf(" ");  // so that nothing is left out
      });
    }
  }

  State state_;
  State copy_;
  TrainingState view_;
  std::vector<std::span<std::byte>> changed_;
  int64_t work_ = 0;
};

Rows rows;

std::unique_ptr<AsyncCheckpointer> Open(const std::filesystem::path& path, const Trainer& trainer) {
  auto checkpointer =
      Must(AsyncCheckpointer::Open(path, {.staging_budget_bytes = trainer.bytes() + kMiB,
                                          .retention = RetentionPolicy{.keep_last = 2}}));
  Require(checkpointer->Prewarm(trainer.view()));
  return checkpointer;
}

// Threads that stage while Save holds the trainer: the saver's, and the trainer's own.
int StagingThreads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2) + 1;
}

// Measures the stall of Save against its floor, at one share of changed chunks.
void MeasureStall(const Flags& flags, Workplace* place, Trainer* trainer, double share) {
  auto checkpointer = Open(place->NewPath("stall"), *trainer);
  const std::string label =
      "stall of Save, " + std::to_string(std::lround(100 * share)) + " % changed: ";
  std::vector<double> ratios, stalls;
  uint64_t step = 1;
  const auto save = [&] {
    const double stall =
        Seconds([&] { Require(checkpointer->Save(step++, trainer->view()).status()); });
    Require(checkpointer->Wait());
    place->Settle();
    return stall;
  };
  trainer->Change(1, 1);
  trainer->Floor(StagingThreads());  // touches its memory
  const double first_floor = trainer->Floor(StagingThreads());
  const double first = save();
  if (share == 1) {
    rows.Print("stall of the first Save, prewarmed", first / first_floor, 1.25,
               Milliseconds(first) + " against " + Milliseconds(first_floor));
  }
  double floor = 0;
  for (int i = 0; i < flags.rounds; ++i) {
    trainer->Change(share, step);
    floor = trainer->Floor(StagingThreads());
    stalls.push_back(save());
    ratios.push_back(stalls.back() / floor);
  }
  rows.Print(label + "median", Quantile(ratios, 0.5), 1.25,
             Milliseconds(Quantile(stalls, 0.5)) + " against " + Milliseconds(floor));
  rows.Print(label + "p99", Quantile(ratios, 0.99), 1.25, "of " + std::to_string(flags.rounds));
  Require(checkpointer->Close());
}

// Runs BeginSave, a step of a second on all cores, and AwaitStaged. Compares the stall with what
// Save may take.
void MeasureOverlap(Workplace* place, Trainer* trainer, double share) {
  auto checkpointer = Open(place->NewPath("overlap"), *trainer);
  Require(checkpointer->Save(1, trainer->view()).status());
  Require(checkpointer->Wait());
  std::vector<double> ratios, stalls;
  for (int i = 0; i < kOverlaps; ++i) {
    const auto step = 2 + static_cast<uint64_t>(i);
    trainer->Change(share, step);
    const double floor = trainer->Floor(StagingThreads());
    double stall =
        Seconds([&] { Require(checkpointer->BeginSave(step, trainer->view()).status()); });
    trainer->Step();
    stall += Seconds([&] { Require(checkpointer->AwaitStaged()); });
    Require(checkpointer->Wait());
    place->Settle();
    stalls.push_back(stall);
    ratios.push_back(stall / (1.25 * floor));
  }
  rows.Print(
      "stall around a step of 1 s, " + std::to_string(std::lround(100 * share)) + " % changed",
      Quantile(ratios, 0.5), 0.1, Milliseconds(Quantile(stalls, 0.5)));
  Require(checkpointer->Close());
}

// Compares ten steps with a save at their start with ten steps without, by turns.
void MeasureLoop(const Flags& flags, Workplace* place, Trainer* trainer) {
  auto checkpointer = Open(place->NewPath("loop"), *trainer);
  Require(checkpointer->Save(1, trainer->view()).status());
  Require(checkpointer->Wait());
  std::vector<double> costs, intervals;
  for (int cycle = 0; cycle < flags.cycles; ++cycle) {
    const auto step = 2 + static_cast<uint64_t>(cycle);
    trainer->Change(0.01, step);
    place->Settle();
    const double saving = Seconds([&] {
      Require(checkpointer->BeginSave(step, trainer->view()).status());
      for (int i = 0; i < 10; ++i) {
        trainer->Step();
        Require(checkpointer->AwaitStaged());
      }
    });
    Require(checkpointer->Wait());
    place->Settle();
    const double plain = Seconds([&] {
      for (int i = 0; i < 10; ++i) trainer->Step();
    });
    costs.push_back((saving - plain) / plain);
    intervals.push_back(plain);
  }
  char note[64];
  std::snprintf(note, sizeof note, "of an interval of %.2f s", Quantile(intervals, 0.5));
  rows.Print("(stall + slowdown) / interval, 1 % changed", Quantile(costs, 0.5), 0.03, note);
  Require(checkpointer->Close());
}

int Main(int argc, char** argv) {
  CLI::App app("What saving costs a training loop");
  Flags flags;
  app.add_option("--folder", flags.folder, "Where stores are made; removed at the end");
  app.add_option("--mib", flags.mib, "Size of the state")->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.rounds, "Saves of each share without a step")
      ->check(CLI::PositiveNumber);
  app.add_option("--cycles", flags.cycles, "Intervals of ten steps")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  Workplace place(flags.folder);
  Trainer trainer(flags.mib * kMiB);
  std::printf(
      "state of %lu MiB, %u cores, %d of them stage; ratios to a digest pass and a memcpy "
      "of what changed\n",
      flags.mib, std::thread::hardware_concurrency(), StagingThreads());
  for (const double share : {0.0, 0.01, 0.1, 1.0}) MeasureStall(flags, &place, &trainer, share);
  for (const double share : {0.0, 0.01, 0.1, 1.0}) MeasureOverlap(&place, &trainer, share);
  MeasureLoop(flags, &place, &trainer);
  return rows.Finish();
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
