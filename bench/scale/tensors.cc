// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of many tensors: saved, saved again unchanged, saved with each hundredth changed,
// listed, compared, checked, loaded and dropped. Verbs are those of the command, as processes.
#include <array>

#include "bench/scale/axes.h"
#include "bench/scale/tiny_state.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr Growth kLinear{1, 1};
constexpr Growth kConstant{0, 0};

void MeasureSize(const Plan& plan, uint64_t n, Workplace* place, Curves* curves) {
  const auto path = place->NewPath("tensors");
  const auto size = static_cast<double>(n);
  const auto add = [&](const char* what, Growth growth, const Cost& cost) {
    curves->Add(what, growth, size, cost);
  };
  TinyState state(n, 1);
  auto store = Must(Store::Create(path));
  add("save", kLinear, MeasureCost([&] { state.Save(store.get(), 1); }));
  add("save, unchanged", kLinear, MeasureCost([&] { state.Save(store.get(), 2); }));
  state.Change(3, 0, 100);
  add("save, 1 % changed", kLinear, MeasureCost([&] { state.Save(store.get(), 3); }));
  add("load", kLinear, MeasureCost([&] { state.RequireRestores(*store, 3); }));
  store.reset();

  const auto verb = [&](std::vector<std::string> words) {
    std::vector<std::string> command = {plan.varve, "--store", path};
    command.insert(command.end(), words.begin(), words.end());
    return RunProgram(command);
  };
  add("open for writing", kConstant, MeasureCost([&] { store = Must(Store::Open(path)); }));
  store.reset();
  add("open for reading", kConstant,
      MeasureCost([&] { store = Must(Store::OpenForReading(path)); }));
  add("read one tensor", kConstant, MeasureCost([&] {
        std::array<std::byte, TinyState::kTensorBytes> out;
        Require(Must(store->OpenCheckpoint("main", 2))->Read(state.NameOf(n / 2), out));
      }));
  store.reset();
  add("varve ls", kLinear, verb({"ls", "3"}));
  add("varve --json ls", kLinear, verb({"--json", "ls", "3"}));
  add("varve ls, one name", kConstant, verb({"ls", "3", state.NameOf(n / 2)}));
  add("varve show", kLinear, verb({"show", "3"}));
  add("varve diff, 1 % changed", kLinear, verb({"diff", "2", "3"}));
  add("varve check", kLinear, verb({"check"}));
  add("varve check --read-data", kLinear, verb({"check", "--read-data"}));
  add("varve drop, unchanged step", kLinear, verb({"drop", "2"}));
  add("varve drop, first step", kLinear, verb({"drop", "1"}));
  store = Must(Store::Open(path));
  state.RequireRestores(*store, 3);
  store.reset();
  place->Remove(path);
}

}  // namespace

void MeasureTensors(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) MeasureSize(plan, n, &place, curves);
}

}  // namespace varve::internal::bench
