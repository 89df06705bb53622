// SPDX-License-Identifier: Apache-2.0
//
// A run of many steps. Two of the tensors change at each step. It measures saving, opening,
// listing, one query, dropping one step, and operations that move or drop nearly all steps. Each
// operation that changes the store gets a copy of it.
#include <array>

#include "bench/scale/axes.h"
#include "bench/scale/tiny_state.h"
#include "bench/state.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

// The expected powers: with the number of steps, and with the number of tensors in each.
struct Expected {
  Growth by_steps, by_tensors;
};
constexpr Expected kConstant{{0, 0}, {0, 0}};
constexpr Expected kOneStep{{0, 0}, {1, 1}};
constexpr Expected kListOfSteps{{1, 1}, {0, 0}};
constexpr Expected kAllRecords{{1, 1}, {1, 1}};
// All steps, but never with all of them in memory.
constexpr Expected kStreamed{{1, 0}, {1, 1}};
constexpr uint64_t kKept = 100;
constexpr int kQueries = 100;

class Steps {
 public:
  Steps(const Plan& plan, Workplace* place, uint64_t num_steps, uint64_t num_tensors,
        bool both_grow, Curves* curves)
      : plan_(plan),
        place_(place),
        num_steps_(num_steps),
        both_grow_(both_grow),
        curves_(curves),
        path_(place->NewPath("steps")),
        state_(num_tensors, 1) {}

  void Run() {
    Build();
    Read();
    const std::string middle = std::to_string(num_steps_ / 2);
    Add("varve drop, a step in the middle", kOneStep, OnCopy({"drop", middle}));
    Add("varve forget, all but 100", kStreamed,
        OnCopy({"forget", "--keep-last", std::to_string(kKept)}));
    Add("varve rewind to the middle", kStreamed, OnCopy({"rewind", "main", "--to", middle}));
    Add("varve fork, newest step", kOneStep, OnCopy({"fork", "main", "new"}));
    Writing();
    place_->Remove(path_);
  }

 private:
  void Add(const char* what, const Expected& expected, const Cost& cost) {
    Growth growth = expected.by_steps;
    if (both_grow_) {
      growth.work += expected.by_tensors.work;
      growth.memory += expected.by_tensors.memory;
    }
    curves_->Add(what, growth, static_cast<double>(num_steps_), cost);
  }
  void SaveNext(Store* store) {
    const uint64_t n = state_.num_tensors();
    state_.Change(next_, next_ % n, n / 2 + 1);
    state_.Save(store, next_++);
  }
  void Build() {
    const auto store = Must(Store::Create(path_));
    const double all = static_cast<double>(num_steps_);
    const uint64_t last = std::max<uint64_t>(1, num_steps_ / 20);
    const auto until = [&](uint64_t step) {
      while (next_ < step) SaveNext(store.get());
    };
    Cost cost = MeasureCost([&] { until(num_steps_ - last); });
    Add("save, the first 95 %", kOneStep, cost.Each(all - static_cast<double>(last)));
    cost = MeasureCost([&] { until(num_steps_); });
    Add("save, the last 5 %", kOneStep, cost.Each(static_cast<double>(last)));
    state_.RequireRestores(*store, num_steps_ - 1);
  }
  void Read() {
    std::unique_ptr<Store> store;
    Add("open for writing", kConstant, MeasureCost([&] { store = Must(Store::Open(path_)); }));
    store.reset();
    Add("open for reading", kConstant,
        MeasureCost([&] { store = Must(Store::OpenForReading(path_)); }));
    Add("newest step", kConstant, MeasureCost([&] { Must(store->LatestStep("main")); }));
    Add("list of steps", kListOfSteps, MeasureCost([&] { Must(store->ListCheckpoints("main")); }));
    Add("query of a tensor, any step", kConstant,
        MeasureCost([&] { Query(*store); }).Each(kQueries));
    store.reset();
    Add("varve steps", kListOfSteps, Verb(path_, {"steps"}));
    Add("varve --json steps", kListOfSteps, Verb(path_, {"--json", "steps"}));
    Add("varve stats", kAllRecords, Verb(path_, {"stats"}));
    Add("varve log of a tensor", kListOfSteps, Verb(path_, {"log", state_.NameOf(0)}));
    Add("varve check", kAllRecords, Verb(path_, {"check"}));
    Add("varve forget --dry-run", kStreamed,
        Verb(path_, {"forget", "--dry-run", "--keep-last", std::to_string(kKept)}));
  }
  void Query(const Store& store) const {
    std::array<std::byte, TinyState::kTensorBytes> out;
    for (uint64_t i = 0; i < kQueries; ++i) {
      const auto reader = Must(store.OpenCheckpoint("main", Mix(i, 1) % num_steps_));
      Require(reader->Read(state_.NameOf(Mix(i, 2) % state_.num_tensors()), out));
    }
  }
  // Measures operations of a writer that has the store open, as a trainer has.
  void Writing() {
    const fs::path path = Copy();
    auto store = Must(Store::Open(path));
    const CheckpointId middle{"main", num_steps_ / 2}, another{"main", num_steps_ / 2 + 1};
    Add("Drop, the first after opening", kOneStep, MeasureCost([&] {
          Must(store->Drop({&middle, 1}));
        }));
    Add("Drop, another step", kOneStep, MeasureCost([&] { Must(store->Drop({&another, 1})); }));
    Add("Reclaim, nothing to do", kConstant, MeasureCost([&] { Must(store->Reclaim()); }));
    Add("ListRuns", kConstant, MeasureCost([&] { Must(store->ListRuns()); }));
    Add("SetTag", kConstant, MeasureCost([&] {
          Require(store->SetTag({"main", num_steps_ / 4}, "tag"));
        }));
    Add("save after them", kOneStep, MeasureCost([&] { SaveNext(store.get()); }));
    store.reset();  // its threads remove files, too
    place_->Remove(path);
  }
  fs::path Copy() {
    const fs::path copy = place_->NewPath("copy");
    fs::copy(path_, copy, fs::copy_options::recursive);
    return copy;
  }
  Cost Verb(const fs::path& path, std::vector<std::string> words) const {
    words.insert(words.begin(), {plan_.varve, "--store", path});
    return RunProgram(words);
  }
  Cost OnCopy(std::vector<std::string> words) {
    const fs::path copy = Copy();
    const Cost cost = Verb(copy, std::move(words));
    place_->Remove(copy);
    return cost;
  }

  const Plan& plan_;
  Workplace* const place_;
  const uint64_t num_steps_;
  const bool both_grow_;
  Curves* const curves_;
  const fs::path path_;
  TinyState state_;
  uint64_t next_ = 0;
};

}  // namespace

void MeasureSteps(const Plan& plan, uint64_t num_tensors, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) {
    Steps(plan, &place, n, num_tensors, false, curves).Run();
  }
}

void MeasureStepsAndTensors(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) {
    Steps(plan, &place, n, n, true, curves).Run();
  }
}

}  // namespace varve::internal::bench
