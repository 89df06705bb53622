// SPDX-License-Identifier: Apache-2.0
//
// scale_bench [--axis NAME...] [--sizes N...] [--json FILE]: how costs grow with tensors, steps and
// ranks. It prints a table and a fitted power for each operation. scale_bench --row N: the numbers
// of a row of `scripts/must_show scale` at its size, with their limits. README.md explains the
// numbers.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

#include "bench/rows.h"
#include "bench/scale/axes.h"
#include "bench/scale/cost.h"
#include "bench/scale/tiny_state.h"
#include "bench/state.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr double kMiBytes = 1024.0 * 1024.0;

struct Flags {
  std::string folder = "bench-stores";
  std::vector<std::string> axes;
  std::vector<uint64_t> sizes;
  std::string json;
  int row = 0;
  uint64_t tensors = 100;  // of each step in row 4
  bool quick = false;
};

struct Axis {
  const char* name;
  const char* unit;
  std::vector<uint64_t> sizes, quick;
  std::function<void(const Plan&, Curves*)> measure;
};

// Sizes that show a curve within minutes on two cores. Those of --quick show nothing.
std::vector<Axis> AllAxes() {
  const auto steps = [](uint64_t tensors) {
    return [tensors](const Plan& plan, Curves* c) { MeasureSteps(plan, tensors, c); };
  };
  const auto log = [](const Plan& plan, Curves* c) { MeasureLog(plan, 5, c); };
  return {
      {"tensors", "tensors", {20'000, 60'000, 180'000}, {100, 200}, MeasureTensors},
      {"import", "tensors", {10'000, 20'000, 40'000}, {50, 100}, MeasureImports},
      {"steps", "steps", {4'000, 16'000, 64'000}, {20, 40}, steps(20)},
      {"steps-tensors", "both", {300, 600, 1'200}, {8, 16}, MeasureStepsAndTensors},
      {"log", "ranks", {32, 64, 128}, {2, 4}, log},
      {"group-steps", "steps", {1'000, 2'000, 4'000}, {8, 16}, MeasureGroupSteps},
      {"ranks", "ranks", {8, 16, 32}, {2, 4}, MeasureRanks},
      {"sweep", "dropped", {50, 100, 200}, {4, 8}, MeasureSweep},
      {"coverage", "ranks", {128, 256, 512}, {4, 8}, MeasureCoverage},
      {"recut", "cuts", {4, 16, 64}, {2, 4}, MeasureRecuts},
  };
}

std::string CommandPath() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "varve";
}

Plan MakePlan(const Flags& flags, std::vector<uint64_t> sizes) {
  return {flags.folder, CommandPath(), std::move(sizes)};
}

int MeasureCurves(const Flags& flags) {
  int num_missed = 0;
  std::string json;
  for (const Axis& axis : AllAxes()) {
    const bool is_asked = flags.axes.empty() || std::ranges::count(flags.axes, axis.name) > 0;
    if (!is_asked) continue;
    const auto& sizes = flags.quick ? axis.quick : axis.sizes;
    Curves curves(axis.unit);
    std::printf("\n== %s\n", axis.name);
    axis.measure(MakePlan(flags, flags.sizes.empty() ? sizes : flags.sizes), &curves);
    curves.Print();
    num_missed += curves.num_missed();
    json += (json.empty() ? "{\"" : ",\n\"") + std::string(axis.name) + "\": " + curves.ToJson();
  }
  if (!flags.json.empty() && !(std::ofstream(flags.json) << json << "}\n").flush()) {
    Fail("cannot write " + flags.json);
  }
  std::printf("%d grow faster than expected\n", num_missed);
  return num_missed == 0 ? 0 : 1;
}

// --- the rows of must_show ---

std::string Note(const Cost& cost) {
  char text[128];
  std::snprintf(text, sizeof text, "%.3f s, %.3f s of CPUs, %.0f MiB held, %.0f MiB read",
                cost.seconds, cost.cpu_seconds, cost.memory_bytes / kMiBytes,
                cost.bytes_read / kMiBytes);
  return text;
}

// The size of a row, unless --sizes says another.
uint64_t SizeOf(const Flags& flags, uint64_t full, uint64_t quick) {
  if (!flags.sizes.empty()) return flags.sizes[0];
  return flags.quick ? quick : full;
}

void PrintTimes(const char* what, const std::vector<double>& seconds) {
  std::printf("  %-52s median %s, the slowest %s\n", what,
              Milliseconds(Quantile(seconds, 0.5)).c_str(),
              Milliseconds(Quantile(seconds, 1)).c_str());
}

// Ranks that save nothing, 200 times.
int LogRow(const Flags& flags) {
  const auto num_ranks = static_cast<uint32_t>(SizeOf(flags, 1024, 4));
  const int num_saves = flags.quick ? 3 : 200;
  Workplace place(flags.folder);
  const LogCosts costs = RunLog(place.NewPath("log"), num_ranks, num_saves);
  const double kib_of_ranks = 1024.0 * num_ranks;
  Rows rows;
  std::printf("%u ranks, %d saves\n", num_ranks, num_saves);
  std::printf(
      "latency: from when all ranks are ready to say PREPARED until all have read COMMIT\n");
  rows.Print("latency of a save in the log, median, s", Quantile(costs.latencies, 0.5), 0.25, "");
  rows.Print("... the slowest", Quantile(costs.latencies, 1), 0.25, "");
  PrintTimes("all ranks ready -> the last has said PREPARED", costs.to_prepared);
  PrintTimes("the last has said PREPARED -> COMMIT is durable", costs.prepared_to_committed);
  PrintTimes("COMMIT is durable -> the last rank has read it", costs.committed_to_known);
  PrintTimes("before that: rank 0 says BEGIN -> all have read it", costs.begins);
  PrintTimes("floor: so many threads, bare file calls, all at once", costs.floors);
  // There are two snapshots and the records after the older one. A save adds one record a rank.
  rows.Print("files in the log, most", static_cast<double>(costs.most_files),
             2.0 * 1024 + 4.0 * num_ranks, "");
  rows.Print("bytes read a save, all ranks / (1 KiB x ranks)", costs.save.bytes_read / kib_of_ranks,
             1, Note(costs.save));
  rows.Print("... a rank / (1 KiB x ranks)", costs.save.bytes_read / kib_of_ranks / num_ranks, 1,
             "");
  rows.Print("file operations a save, of all ranks / ranks", costs.save.calls / num_ranks, 32,
             "polls too");
  rows.Print("bytes that a poll reads which finds nothing", costs.poll.bytes_read, 256, "");
  return rows.Finish();
}

// One size of an axis, with the limit of each operation.
struct Limit {
  const char* what;
  double seconds;
  double mib;  // of memory
};

int JudgeRow(const Curves& curves, const std::vector<Limit>& limits, Rows rows = {}) {
  for (const auto& [what, cost] : curves.Last()) {
    const auto limit = std::ranges::find(limits, what, &Limit::what);
    if (limit == limits.end()) {
      std::printf("%-52s %s\n", what.c_str(), Note(cost).c_str());
      continue;
    }
    rows.Print(what + ", seconds", cost.seconds, limit->seconds, Note(cost));
    rows.Print(what + ", MiB", cost.memory_bytes / kMiBytes, limit->mib, "");
  }
  return rows.Finish();
}

int TensorsRow(const Flags& flags) {
  const uint64_t n = SizeOf(flags, 1'000'000, 100);
  Curves curves("tensors");
  MeasureTensors(MakePlan(flags, {n}), &curves);
  std::printf("%llu tensors of 128 bytes\n", static_cast<unsigned long long>(n));
  Rows rows;
  for (const auto& [what, cost] : curves.Last()) {
    if (what != "save, unchanged") continue;
    const auto size = static_cast<double>(n);
    rows.Print(what + ", microseconds of a CPU a tensor", 1e6 * cost.cpu_seconds / size, 2, "");
    rows.Print(what + ", bytes held a tensor", cost.memory_bytes / size, 300, "");
  }
  return JudgeRow(curves,
                  {{"save", 20, 512},
                   {"save, unchanged", 2, 512},
                   {"read one tensor", 0.05, 64},
                   {"varve ls", 10, 1024},
                   {"varve ls, one name", 0.5, 256},
                   {"varve diff, 1 % changed", 10, 1024},
                   {"varve drop, unchanged step", 10, 1024},
                   {"varve check", 30, 2048}},
                  rows);
}

int StepsRow(const Flags& flags) {
  const uint64_t n = SizeOf(flags, 100'000, 20);
  Curves curves("steps");
  MeasureSteps(MakePlan(flags, {n}), flags.tensors, &curves);
  std::printf("%llu steps of %llu tensors\n", static_cast<unsigned long long>(n),
              static_cast<unsigned long long>(flags.tensors));
  return JudgeRow(curves, {{"open for reading", 0.1, 64},
                           {"open for writing", 0.1, 64},
                           {"varve --json steps", 5, 512},
                           {"query of a tensor, any step", 0.005, 64},
                           {"varve drop, a step in the middle", 0.5, 256},
                           {"varve forget, all but 100", 120, 512},
                           {"varve rewind to the middle", 60, 512}});
}

int WaitsRow(const Flags& flags) {
  const uint64_t mib = SizeOf(flags, 4096, 64);
  const double interval = flags.quick ? 0.01 : 1;
  const int num_saves = flags.quick ? 3 : 15;
  Rows rows;
  const auto measure = [&](Beside beside) {
    return MeasureWaits(MakePlan(flags, {}), beside, mib, interval, num_saves);
  };
  const auto all_of = [](const std::vector<SaveTime>& times, double SaveTime::*field) {
    std::vector<double> all;
    for (const SaveTime& time : times) all.push_back(time.*field);
    return all;
  };
  const std::vector<SaveTime> undisturbed = measure(Beside::kNothing);
  const std::vector<double> alone = all_of(undisturbed, &SaveTime::seconds);
  const double median = Quantile(alone, 0.5);
  std::printf("a save each %.2f s, a store of %llu MiB; alone %s, the slowest %s\n", interval,
              static_cast<unsigned long long>(mib), Milliseconds(median).c_str(),
              Milliseconds(Quantile(alone, 1)).c_str());
  for (const Beside beside : {Beside::kForget, Beside::kReclaim, Beside::kCheck, Beside::kOwnForget,
                              Beside::kOwnReclaim, Beside::kOwnCheck}) {
    const std::vector<SaveTime> times = measure(beside);
    const auto most = [&](double SaveTime::*field) {
      return Milliseconds(Quantile(all_of(times, field), 1));
    };
    rows.Print(std::string("longest wait of a commit, ms; beside ") + NameOf(beside),
               1e3 * std::max(0.0, Quantile(all_of(times, &SaveTime::seconds), 1) - median), 20,
               std::to_string(times.size()) + " saves, of which at most " +
                   most(&SaveTime::waited) + " for a commit of another; the disk alone at most " +
                   most(&SaveTime::disk));
  }
  return rows.Finish();
}

int Main(int argc, char** argv) {
  CLI::App app("How costs grow with tensors, steps and ranks");
  Flags flags;
  app.add_option("--folder", flags.folder, "Where stores are made; removed at the end");
  app.add_option("--axis", flags.axes, "Only these axes");
  app.add_option("--sizes", flags.sizes,
                 "Their sizes, or that of the row, in place of the usual ones");
  app.add_option("--json", flags.json, "Writes the curves to this file, too");
  app.add_option("--row", flags.row, "A row of must_show, 2 to 5")->check(CLI::Range(2, 5));
  app.add_option("--tensors", flags.tensors, "Tensors of each step in row 4")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--quick", flags.quick, "Small sizes, which show that it runs");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  switch (flags.row) {
    case 2:
      return LogRow(flags);
    case 3:
      return TensorsRow(flags);
    case 4:
      return StepsRow(flags);
    case 5:
      return WaitsRow(flags);
    default:
      return MeasureCurves(flags);
  }
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) {
  const int helper = varve::internal::bench::MainOfHelper(argc, argv);
  return helper >= 0 ? helper : varve::internal::bench::Main(argc, argv);
}
