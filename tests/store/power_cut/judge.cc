// SPDX-License-Identifier: Apache-2.0
#include "tests/store/power_cut/judge.h"

#include <algorithm>

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

std::string CheckWritable(Store* store, uint64_t seed) {
  const Status saved = SaveContentOf(store, {"main", 1000}, 9);
  if (!saved.ok()) return "a save after it: " + saved.ToString();
  if (seed % 4 == 0) {
    const auto reclaimed = store->Reclaim({.all = true});
    if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.status().ToString();
    if (reclaimed->pending_bytes != 0) return "a reclaim after it leaves bytes";
  }
  return CheckClean(*store);
}

}  // namespace

std::vector<State> AllowedStates(const std::vector<State>& states, const Moment& moment) {
  std::vector<State> allowed;
  allowed.push_back(moment.num_done > 0 ? states[moment.num_done - 1] : State());
  if (moment.has_begun) allowed.push_back(states[moment.num_done]);
  return allowed;
}

bool MayLackStore(const std::vector<State>& allowed) {
  return std::ranges::any_of(allowed, [](const State& state) { return !state.exists; });
}

std::string JudgeStore(const fs::path& path, const std::vector<State>& allowed, uint64_t seed,
                       const std::string& key) {
  const StoreOptions options{.key = key};
  const bool may_lack = MayLackStore(allowed);
  {
    const auto reader = Store::OpenForReading(path);
    if (!reader.ok() && !may_lack) return "reading: " + reader.status().ToString();
    if (reader.ok()) {
      const std::string fault = CheckState(**reader, allowed);
      if (!fault.empty()) return "reading: " + fault;
    }
  }
  auto store =
      may_lack ? Store::OpenOrCreate(path, {.store = options}) : Store::Open(path, options);
  if (!store.ok()) return "opening: " + store.status().ToString();
  ApplyRequests(store->get());
  std::string fault = may_lack ? "" : CheckState(**store, allowed);
  if (fault.empty()) fault = CheckClean(**store);
  if (fault.empty()) fault = CheckWritable(store->get(), seed);
  store->reset();
  if (fault.empty() && !fs::is_empty(path / "incoming")) fault = "incoming is not empty";
  return fault;
}

}  // namespace varve::internal::testing
