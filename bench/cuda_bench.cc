// SPDX-License-Identifier: Apache-2.0
//
// cuda_bench [--folder FOLDER] [--json FILE] [--only digest|save|large]: how fast varve is on a
// GPU, compared with its targets. README.md explains the numbers. Exit codes: 0 = all targets were
// met, 1 = a target was not met, 77 = there is no GPU, and every row says so.
#include "bench/cuda_bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "bench/bench_params.h"
#include "bench/workplace.h"
#include "trainer_hooks/save/staging_memory.h"

namespace varve::internal::bench {
namespace {

constexpr int kNoGpu = 77;

struct Flags {
  CudaParams params;
  double gib = 8;
  double large_gib = 32;
  std::string json;
  std::string only;
  bool describe = false;
};

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

// The sizes that were asked for, or what the machine has room for.
class Room {
 public:
  explicit Room(const std::filesystem::path& folder)
      : device_(Gpu::FreeBytes()), disk_(AvailableIn(folder)), host_(2 * HalfOfFreeMemory()) {}

  // Shares of the free memory of device, folder and host that a state may have.
  uint64_t Fit(double gib, double of_device, double of_disk, double of_host) const {
    const auto part = [](uint64_t free, double share) {
      return static_cast<uint64_t>(static_cast<double>(free) * share);
    };
    const uint64_t most =
        std::min({part(device_, of_device), part(disk_, of_disk), part(host_, of_host)});
    return std::min(part(kGiB, gib), most) / (16 * kMiB) * (16 * kMiB);
  }
  // scripts/gpu_check reads these numbers.
  std::string Describe() const {
    const auto mib = [](uint64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; };
    return "free: device " + mib(device_) + ", folder " + mib(disk_) + ", host " + mib(host_);
  }

 private:
  static uint64_t AvailableIn(const std::filesystem::path& folder) {
    std::error_code error;  // no folder has no room
    const std::filesystem::space_info space = std::filesystem::space(folder, error);
    return error ? 0 : space.available;
  }

  const uint64_t device_, disk_, host_;
};

void ChooseSizes(Flags* flags, JudgedTable* table) {
  std::filesystem::create_directories(flags->params.folder);
  const Room room(flags->params.folder);
  constexpr uint64_t kLeastState = 256 * kMiB;  // a smaller one says nothing of a GPU's speed
  CudaParams& params = flags->params;
  // The device holds the state twice, and once more in staging. The host holds it in staging and,
  // when the folder is memory, in a store that has two steps while a third is written.
  params.state_bytes = room.Fit(flags->gib, 0.42, 0.3, 0.2);
  params.large_bytes = room.Fit(flags->large_gib, 0.85, 0.6, 0.4);
  params.small_bytes = std::min(256 * kMiB, params.state_bytes);
  if (std::min(params.state_bytes, params.large_bytes) < kLeastState) {
    Fail("a state must have at least " + std::to_string(kLeastState / kMiB) +
         " MiB, and there is no room for one: " + room.Describe());
  }
  char text[240];
  std::snprintf(text, sizeof text,
                "large %.2f GiB (asked for %.2f), small %.2f, largest %.2f (%.2f)",
                Gib(params.state_bytes), flags->gib, Gib(params.small_bytes),
                Gib(params.large_bytes), flags->large_gib);
  table->Describe("states", text);
  table->Describe("room", room.Describe());
  table->Describe("store", "in " + params.folder.string() + ", without compression");
  std::printf("states: %s\n%s\n", text, room.Describe().c_str());
}

// Empty: there is one.
std::string WhyNoGpu() {
  int devices = 0;
  const Status status = gpu::ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (!status.ok()) return "no GPU here: " + status.message();
  return devices == 0 ? "no GPU here: no device" : "";
}

JudgedTable Plan() {
  std::vector<PlannedRow> rows;
  for (const auto& part : {PlanDigests(), PlanSaves(), PlanLarge()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return JudgedTable(rows);
}

void Measure(Flags* flags, JudgedTable* table) {
  Gpu gpu;
  std::printf("%s\n", gpu.Describe().c_str());
  table->Describe("device", gpu.Describe());
  if (flags->describe) {
    std::printf("%s\n", Room(flags->params.folder).Describe().c_str());
    return;
  }
  ChooseSizes(flags, table);
  const auto is_wanted = [&](const char* part) {
    return flags->only.empty() || flags->only == part;
  };
  if (is_wanted("digest")) MeasureDigests(flags->params, &gpu, table);
  if (is_wanted("save")) MeasureSaves(flags->params, &gpu, table);
  if (is_wanted("large")) MeasureLarge(flags->params, &gpu, table);
  table->NotRun("not asked for");
}

int Main(int argc, char** argv) {
  CLI::App app("How fast varve is on a GPU, beside its targets");
  Flags flags;
  flags.params.folder = "/dev/shm";
  app.add_option("--folder", flags.params.folder,
                 "Where stores are made, and removed (default /dev/shm: stalls, not disks, are "
                 "measured)");
  app.add_option("--gib", flags.gib, "Size of the large state (8)")->check(CLI::PositiveNumber);
  app.add_option("--large-gib", flags.large_gib, "Size of the largest (32)")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.params.rounds, "Of a measure, at most (20)")
      ->check(CLI::Range(kMinRounds, 10'000));
  app.add_option("--seconds", flags.params.seconds, "Of a measure, about (10)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", flags.json, "Where the rows go as JSON");
  app.add_option("--only", flags.only, "One part")
      ->check(CLI::IsMember({"digest", "save", "large"}));
  app.add_flag("--describe", flags.describe, "Says what device there is, and no more");
  CLI11_PARSE(app, argc, argv);

  JudgedTable table = Plan();
  if (!flags.json.empty()) table.WriteJsonTo(flags.json);
  const std::string why_not = WhyNoGpu();
  if (why_not.empty()) {
    Measure(&flags, &table);
  } else {
    std::printf("cuda_bench: not run: %s\n", why_not.c_str());
    table.Describe("device", why_not);
    if (!flags.describe) table.NotRun("no GPU");
  }
  if (!flags.json.empty()) table.WriteJsonTo(flags.json);  // with all samples
  if (!why_not.empty()) return kNoGpu;
  return flags.describe ? 0 : table.Finish();
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
