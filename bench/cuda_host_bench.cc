// SPDX-License-Identifier: Apache-2.0
//
// cuda_host_bench [--rounds N] [--changed SHARE] [--folder FOLDER]: what the host's side of a save
// of tensors on a GPU takes, for 8 GiB in 32 to 5,000 tensors. It runs on a CUDA runtime without
// latency (instant_cuda.h), so it needs no GPU. README.md explains the numbers. Exit codes: 0 = all
// targets were met, 1 = a target was not met.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/instant_cuda.h"
#include "bench/rows.h"
#include "bench/workplace.h"
#include "varve/async_checkpointer.h"
#include "varve/cuda.h"

namespace varve::internal::bench {
namespace {

using instant::Clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kChunkBytes = kMiB;  // of FP32

struct Size {
  int tensors;
  uint64_t tensor_bytes;
};
constexpr Size kSizes[] = {
    {32, 256 * kMiB}, {300, 28 * kMiB}, {1000, 8 * kMiB}, {5000, 16 * kMiB / 10 / 4096 * 4096}};

// Seconds of one save.
struct Sample {
  double before = 0;  // from BeginSave to the launch of the digests
  double beside = 0;  // work of the host before it waits for them
  double after = 0;   // from there to the end of AwaitStaged
};

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Memory of zeros, which takes none until it is written to.
class DeviceMemory {
 public:
  explicit DeviceMemory(uint64_t bytes) : bytes_(bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Fail("no address space for " + std::to_string(bytes) + " bytes");
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE);  // a write takes one page
    data_ = static_cast<std::byte*>(memory);
    instant::SetMemory({data_, bytes});
  }
  ~DeviceMemory() { (void)munmap(data_, bytes_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

TrainingState MakeState(const Size& size, std::byte* memory) {
  TrainingState state;
  for (int i = 0; i < size.tensors; ++i) {
    state.tensors.push_back({{.name = "model.layers." + std::to_string(i) + ".mlp.experts.weight",
                              .shape = {1024, static_cast<int64_t>(size.tensor_bytes / 4096)}},
                             memory + static_cast<uint64_t>(i) * size.tensor_bytes,
                             /*device=*/0});
  }
  return state;
}

// Every chunk that changes gets one byte of another value, in a page of its own.
std::vector<const std::byte*> ChooseChanged(const Size& size, double share, std::byte* memory) {
  std::vector<const std::byte*> changed;
  double due = 0;
  for (int i = 0; i < size.tensors; ++i) {
    for (uint64_t at = 0; at < size.tensor_bytes; at += kChunkBytes) {
      due += share;
      if (due < 1) continue;
      due -= 1;
      changed.push_back(memory + static_cast<uint64_t>(i) * size.tensor_bytes + at);
    }
  }
  return changed;
}

std::vector<Sample> MeasureSaves(const Size& size, double share, int rounds, const Workplace& place,
                                 const std::filesystem::path& path) {
  const DeviceMemory memory(static_cast<uint64_t>(size.tensors) * size.tensor_bytes);
  TrainingState state = MakeState(size, memory.data());
  const auto source = Must(CudaTensorSource::Create({.streams = {{0, nullptr}}}));
  const auto checkpointer =
      Must(AsyncCheckpointer::Open(path, {.staging_budget_bytes = 256 * kMiB,
                                          .store = {.compression = Compression::kNone},
                                          .devices = source,
                                          .retention = RetentionPolicy{.keep_last = 1}}));
  Require(checkpointer->Prewarm(state));
  const std::vector<const std::byte*> changed = ChooseChanged(size, share, memory.data());
  instant::SetChanged(changed);
  std::vector<Sample> samples;
  for (int round = -2; round < rounds; ++round) {  // the first two are thrown away
    for (const std::byte* const chunk : changed) {
      *const_cast<std::byte*>(chunk) = static_cast<std::byte>(round + 8);
    }
    const Clock::time_point begin = Clock::now();
    Require(checkpointer->Save(static_cast<uint64_t>(round) + 3, state).status());
    const Clock::time_point end = Clock::now();
    Require(checkpointer->Wait());
    place.Settle();
    const instant::Marks& marks = instant::marks();
    if (round < 0) continue;
    samples.push_back({.before = Seconds(marks.launched - begin),
                       .beside = Seconds(marks.awaited - marks.digested),
                       .after = Seconds(end - marks.awaited)});
  }
  Require(checkpointer->Close());
  return samples;
}

std::vector<double> Values(const std::vector<Sample>& samples, double Sample::*part) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*part);
  return values;
}
double Median(const std::vector<Sample>& samples, double Sample::*part) {
  return Quantile(Values(samples, part), 0.5);
}

int Main(int argc, char** argv) {
  CLI::App app("What the host's side of a save of tensors on a GPU takes, without a GPU");
  int rounds = 40;
  double share = 0;
  std::filesystem::path folder = "/dev/shm";
  app.add_option("--rounds", rounds, "Saves of each state (40)")->check(CLI::Range(1, 10'000));
  app.add_option("--changed", share, "Share of the chunks that change (0)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--folder", folder, "Where stores are made, and removed (/dev/shm)");
  CLI11_PARSE(app, argc, argv);

  constexpr double kMostBefore = 0.3e-3, kMostAfter = 0.2e-3;
  bool is_met = true;
  std::printf("Milliseconds, least and median of %d saves, %.1f %% of the chunks changed\n", rounds,
              100 * share);
  std::printf("%8s %10s  %-15s %-15s %-15s\n", "tensors", "MiB each", "until launch", "beside it",
              "after digests");
  for (const Size& size : kSizes) {
    Workplace place(folder);
    const std::vector<Sample> samples =
        MeasureSaves(size, share, rounds, place, place.NewPath("store"));
    const auto text = [&](double Sample::*part) {
      char pair[48];
      std::snprintf(pair, sizeof pair, "%.3f / %.3f", 1e3 * std::ranges::min(Values(samples, part)),
                    1e3 * Median(samples, part));
      return std::string(pair);
    };
    const bool is_this_met = Median(samples, &Sample::before) <= kMostBefore &&
                             Median(samples, &Sample::after) <= kMostAfter;
    is_met = is_met && is_this_met;
    std::printf("%8d %10.1f  %-15s %-15s %-15s %s\n", size.tensors,
                static_cast<double>(size.tensor_bytes) / static_cast<double>(kMiB),
                text(&Sample::before).c_str(), text(&Sample::beside).c_str(),
                text(&Sample::after).c_str(), is_this_met ? "met" : "NOT MET");
    std::fflush(stdout);
  }
  std::printf("targets: until launch <= %.1f, after digests <= %.1f (medians)\n", 1e3 * kMostBefore,
              1e3 * kMostAfter);
  return is_met ? 0 : 1;
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
