// SPDX-License-Identifier: Apache-2.0
//
// crash_writer STORE SEED FIRST_CONTENT: saves, replaces, drops and reclaims for ever, until it is
// killed. Each change is announced on standard output before it starts and reported when it has
// returned:
//
//   open | saving RUN STEP CONTENT | saved RUN STEP | dropping RUN STEP | dropped RUN STEP |
//   reclaiming | reclaimed
//
// The parent keeps these lines as its journal and knows from them what must, may and must not be in
// the store.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/crash/crash_plans.h"

namespace varve::internal::testing {
namespace {

constexpr size_t kMaxLiveSteps = 14;

// A line and its flush are one write, so that a kill leaves whole lines.
void Report(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void DieUnlessOk(const Status& status, const std::string& doing) {
  if (status.ok()) return;
  std::fprintf(stderr, "crash_writer: %s: %s\n", doing.c_str(), status.ToString().c_str());
  std::exit(1);
}

class Workload {
 public:
  Workload(Store* store, uint64_t seed, uint64_t first_content)
      : store_(store), random_(seed), content_(first_content) {
    for (const char* run : {kLargeRun, kSmallRun}) LoadSteps(run);
  }

  void RunForEver() {
    while (true) {
      switch (Draw(12)) {
        case 0:
          Burst();
          break;
        case 1:
          Reclaim();
          break;
        case 2:
        case 3:
          DropSome(AnyRun());
          break;
        case 4:
          Replace(AnyRun());
          break;
        default:
          SaveNext(AnyRun());
      }
    }
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }
  const char* AnyRun() { return Draw(2) == 0 ? kLargeRun : kSmallRun; }

  void LoadSteps(const char* run) {
    const auto found = store_->ListCheckpoints(run);
    if (found.status().code() == StatusCode::kNotFound) return;
    DieUnlessOk(found.status(), "list");
    for (const CheckpointInfo& info : *found) steps_[run].insert(info.id.step);
  }

  void Save(const std::string& run, uint64_t step, OnExisting on_existing) {
    const uint64_t content = content_++;
    const std::string place = run + " " + std::to_string(step);
    Report("saving " + place + " " + std::to_string(content));
    const auto report = SaveContent(store_, PlanOf(run), step, content,
                                    {.run = run, .on_existing = on_existing, .parent = {}});
    DieUnlessOk(report.status(), "save " + place);
    Report("saved " + place);
    steps_[run].insert(step);
  }

  // Saves mostly the next number. Sometimes it saves one that was dropped, whose chunks may live on
  // elsewhere.
  void SaveNext(const std::string& run) {
    const std::set<uint64_t>& steps = steps_[run];
    uint64_t step = steps.empty() ? 0 : *steps.rbegin() + 1;
    if (Draw(4) == 0) step = Draw(step + 1);
    if (steps.contains(step)) return;
    if (steps.size() >= kMaxLiveSteps) DropSome(run);
    Save(run, step, OnExisting::kError);
  }

  void Replace(const std::string& run) {
    if (steps_[run].empty()) return;
    Save(run, AnyStep(run), OnExisting::kReplace);
  }

  // More small saves than it takes to have their files merged.
  void Burst() {
    for (int i = 0; i < 80; ++i) SaveNext(kSmallRun);
  }

  uint64_t AnyStep(const std::string& run) {
    const std::set<uint64_t>& steps = steps_[run];
    return *std::next(steps.begin(), static_cast<int64_t>(Draw(steps.size())));
  }

  void DropSome(const std::string& run) {
    for (uint64_t left = 1 + Draw(4); left > 0 && steps_[run].size() > 1; --left) {
      const uint64_t step = AnyStep(run);
      const std::string place = run + " " + std::to_string(step);
      Report("dropping " + place);
      const CheckpointId id{run, step};
      DieUnlessOk(store_->Drop({&id, 1}, {.reclaim = Draw(2) == 0}).status(), "drop " + place);
      Report("dropped " + place);
      steps_[run].erase(step);
    }
  }

  void Reclaim() {
    Report("reclaiming");
    DieUnlessOk(store_->Reclaim({.all = Draw(2) == 0}).status(), "reclaim");
    Report("reclaimed");
  }

  Store* const store_;
  std::mt19937_64 random_;
  uint64_t content_;
  std::map<std::string, std::set<uint64_t>> steps_;
};

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: crash_writer STORE SEED FIRST_CONTENT\n", stderr);
    return 2;
  }
  auto store = Store::OpenOrCreate(argv[1]);
  DieUnlessOk(store.status(), "open");
  Report("open");
  Workload(store->get(), std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10))
      .RunForEver();
  return 1;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
