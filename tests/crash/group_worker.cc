// SPDX-License-Identifier: Apache-2.0
//
// One process of the restart storm (group_storm_test.py), to be killed:
//
//   group_worker epoch ROOT NUM_RANKS      starts an epoch, prints its number
//   group_worker rank ROOT RANK EPOCH SEED FIRST
//                                          joins and saves for ever, rank 0 from step FIRST on
//   group_worker collect ROOT SEED         drops steps and reclaims for ever
//   group_worker read ROOT SEED            opens checkpoints and compares every byte for ever
//   group_worker save ROOT NUM_RANKS LAST  saves steps 1 to LAST, and ends in the next save
//   group_worker judge ROOT                reads all of them once, and looks for what leaks
//   group_worker leaks ROOT                looks for what leaks, whatever trainer has saved it
//
// The number of a step is that of its content. Rank r holds the content of a plan of its own, under
// names of its own. There is also a plan for all ranks. Rank r holds the first tensor of that
// content whole, and an equal part of each other one.
//
// Rank 0 prints `saving STEP` before and `saved STEP` or `failed STEP WHY` after each save. The
// collector prints `dropping STEP` and `dropped STEP`.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "store/group/group_store.h"
#include "store/group/mutation.h"
#include "tests/crash/group_content.h"
#include "tests/support/step_content.h"
#include "varve/group.h"

namespace varve::internal {

#ifdef VARVE_GROUP_MUTATIONS
std::atomic<bool> dies_when_prepared{false};

bool IsMutated(Mutation mutation) {
  static const char* const name = std::getenv("VARVE_MUTATION");
  if (name == nullptr) return false;
  const std::string wanted = name;
  switch (mutation) {
    case Mutation::kStaleRoots:
      return wanted == "stale-roots";
    case Mutation::kSweepWithoutLook:
      return wanted == "sweep-without-look";
    case Mutation::kReuseAttempt:
      return wanted == "reuse-attempt";
    case Mutation::kForgetShard:
      return wanted == "forget-shard";
  }
  return false;
}

// Most of them are short, and some are long enough for a whole save.
void PassMutationPoint(MutationPoint point) {
  static std::atomic<uint64_t> calls{0};
  switch (point) {
    case MutationPoint::kSweeping: {
      const bool is_long = testing::Mix(static_cast<uint64_t>(::getpid()), ++calls) % 3 == 0;
      ::usleep(is_long ? 150000 : 5000);
      break;
    }
    case MutationPoint::kAllPrepared:
      if (!IsMutated(Mutation::kSweepWithoutLook)) break;
      [[fallthrough]];  // else the mistake is seldom wrong
    case MutationPoint::kAborting:
      ::usleep(400000);  // long enough for a process to start
      break;
    case MutationPoint::kPrepared:
      if (dies_when_prepared) std::_Exit(0);
      break;
  }
}
#endif

namespace testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLiveSteps = 8;
constexpr int kSuperseded = 3;  // exit code of a rank whose epoch is over

void Report(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

[[noreturn]] void Die(const Status& status, const std::string& doing) {
  std::fprintf(stderr, "group_worker: %s: %s\n", doing.c_str(), status.ToString().c_str());
  std::_Exit(1);
}

// --- a rank ---

Status SaveOnce(GroupStore* store, uint32_t num_ranks, uint64_t step) {
  const uint32_t rank = store->author().rank;
  VARVE_ASSIGN_OR_RETURN(const RankSave save, BeginSave(store, num_ranks, step));
  // Ranks are not equally fast.
  if (Mix(rank, step) % 4 == 0) ::usleep(static_cast<useconds_t>(Mix(step, rank) % 300000));
  return save.writer->Commit().status();
}

// Returns the step of the save that rank 0 has started. nullopt = there is none for a while, or
// this rank's epoch is over.
Result<std::optional<uint64_t>> NextStep(const GroupStore& store) {
  return store.log()->Await<uint64_t>(std::chrono::milliseconds(500),
                                      [&](const GroupState& state) -> std::optional<uint64_t> {
                                        for (const auto& [number, attempt] : state.attempts) {
                                          if (!attempt.committed && !store.HasTakenPart(number))
                                            return attempt.id.step;
                                        }
                                        return std::nullopt;
                                      });
}

// Returns the ranks of this epoch, or of a later one, in which what this rank saves does not count
// any more.
uint32_t NumRanks(const GroupStore& store) {
  return store.log()->With([](const GroupState& state) { return state.num_ranks; });
}

bool IsOver(const GroupStore& store) {
  return store.log()->With([&](const GroupState& s) { return !s.IsCurrent(store.author()); });
}

int RunRank(const fs::path& root, uint32_t rank, uint64_t epoch, uint64_t seed, uint64_t first) {
  auto joined =
      Group::Join(root, {.rank = rank, .epoch = epoch, .timeout = std::chrono::milliseconds(1500)});
  if (joined.status().code() == StatusCode::kAborted) return kSuperseded;
  if (!joined.ok()) Die(joined.status(), "join");
  auto* const store = static_cast<GroupStore*>(joined->get());
  const uint32_t num_ranks = NumRanks(*store);
  // Reclaims come from a thread of their own, as from a retention that runs behind the training.
  const std::jthread housekeeper([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const Status status = store->Reclaim({}).status();
      if (!status.ok() && !IsOver(*store)) Die(status, "reclaim");
      ::usleep(static_cast<useconds_t>(20000 + Mix(seed, rank) % 20000));
    }
  });
  Report("joined");
  for (uint64_t n = 0;; ++n) {
    uint64_t step = first + n;
    if (rank == 0) {
      Report("saving " + std::to_string(step));
    } else {
      const auto next = NextStep(*store);
      if (!next.ok()) Die(next.status(), "wait");
      if (!next->has_value() && IsOver(*store)) return kSuperseded;
      if (!next->has_value()) continue;
      step = **next;
    }
    const Status status = SaveOnce(store, num_ranks, step);
    if (rank == 0 && status.ok()) Report("saved " + std::to_string(step));
    if (rank == 0 && !status.ok())
      Report("failed " + std::to_string(step) + " " + status.message());
    if (status.ok()) continue;
    if (IsOver(*store)) return kSuperseded;
    if (status.code() != StatusCode::kAborted) Die(status, "save");
  }
}

// --- the others ---

int RunCollector(const fs::path& root, uint64_t seed) {
  auto store = Store::Open(root);
  if (!store.ok()) Die(store.status(), "open");
  std::mt19937_64 random(seed);
  while (true) {
    ::usleep(static_cast<useconds_t>(random() % 50000));
    const auto steps = ListSteps(**store);
    if (!steps.ok()) Die(steps.status(), "list");
    if (steps->size() > kMaxLiveSteps) {
      const CheckpointId id{"main", (*steps)[random() % (steps->size() - 1)]};
      Report("dropping " + std::to_string(id.step));
      const Status status = (*store)->Drop({&id, 1}, {.reclaim = random() % 2 == 0}).status();
      if (status.ok()) Report("dropped " + std::to_string(id.step));
      if (!status.ok() && status.code() != StatusCode::kFailedPrecondition) Die(status, "drop");
    }
    if (random() % 8 != 0) continue;
    const Status status = (*store)->Reclaim().status();
    if (!status.ok()) Die(status, "reclaim");
  }
}

int RunReader(const fs::path& root, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t n = 0;; ++n) {
    // Opens by turns with pins and without, and with a new handle now and then.
    const auto store = n % 2 == 0 ? Store::OpenForReading(root) : Store::Open(root);
    if (!store.ok()) Die(store.status(), "open");
    for (int i = 0; i < 5; ++i) {
      const auto steps = ListSteps(**store);
      if (!steps.ok()) Die(steps.status(), "list");
      if (steps->empty()) break;
      const uint64_t step = (*steps)[random() % steps->size()];
      const auto reader = (*store)->OpenCheckpoint("main", step);
      const Status status = reader.ok() ? VerifyStep(**reader) : reader.status();
      if (status.ok()) {
        Report("verified " + std::to_string(step));
      } else if (status.code() != StatusCode::kNotFound) {
        Die(status, "step " + std::to_string(step));
      } else if (n % 2 == 1 && reader.ok()) {
        Die(status, "pinned step " + std::to_string(step));
      }
    }
  }
}

int ReportLeaks(const fs::path& root) {
  const auto leaks = FindLeaks(root);
  if (!leaks.ok()) Die(leaks.status(), "leaks");
  for (const std::string& leak : *leaks) Report("leak " + leak);
  return 0;
}

int Judge(const fs::path& root) {
  const auto lines = JudgeGroup(root);
  if (!lines.ok()) Die(lines.status(), "judge");
  for (const std::string& line : *lines) Report(line);
  return 0;
}

#ifdef VARVE_GROUP_MUTATIONS
// Saves a step that rank 0 has begun, and dies as soon as it has said that its part is durable.
int PrepareAndDie(const fs::path& root, uint32_t rank, uint64_t epoch, uint64_t step) {
  const auto store =
      Group::Join(root, {.rank = rank, .epoch = epoch, .timeout = std::chrono::hours(24)});
  if (!store.ok()) Die(store.status(), "join");
  dies_when_prepared = true;
  auto* const group = static_cast<GroupStore*>(store->get());
  Die(SaveOnce(group, NumRanks(*group), step), "save");
}
#endif

// Ranks are threads here.
int SaveSteps(const fs::path& root, uint32_t num_ranks, uint64_t last) {
  const auto epoch = Group::StartEpoch(root, num_ranks);
  if (!epoch.ok()) Die(epoch.status(), "epoch");
  std::vector<std::unique_ptr<Store>> stores;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    auto store = Group::Join(root, {.rank = rank, .epoch = *epoch});
    if (!store.ok()) Die(store.status(), "join");
    stores.push_back(*std::move(store));
  }
  for (uint64_t step = 1; step <= last; ++step) {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        auto* const store = static_cast<GroupStore*>(stores[rank].get());
        const Status status = SaveOnce(store, num_ranks, step);
        if (!status.ok()) Die(status, "save");
      });
    }
  }
  const auto unfinished = stores[0]->Begin(last + 1);
  if (!unfinished.ok()) Die(unfinished.status(), "begin");
  std::_Exit(0);
}

int Main(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  const fs::path root = argc > 2 ? argv[2] : "";
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (verb == "epoch" && argc == 4) {
    const auto epoch = Group::StartEpoch(root, static_cast<uint32_t>(number(3)));
    if (!epoch.ok()) Die(epoch.status(), "epoch");
    Report(std::to_string(*epoch));
    return 0;
  }
  if (verb == "rank" && argc == 7) {
    return RunRank(root, static_cast<uint32_t>(number(3)), number(4), number(5), number(6));
  }
#ifdef VARVE_GROUP_MUTATIONS
  if (verb == "prepare" && argc == 6) {
    return PrepareAndDie(root, static_cast<uint32_t>(number(3)), number(4), number(5));
  }
#endif
  if (verb == "save" && argc == 5) {
    return SaveSteps(root, static_cast<uint32_t>(number(3)), number(4));
  }
  if (verb == "collect" && argc == 4) return RunCollector(root, number(3));
  if (verb == "read" && argc == 4) return RunReader(root, number(3));
  if (verb == "judge" && argc == 3) return Judge(root);
  if (verb == "leaks" && argc == 3) return ReportLeaks(root);
  std::fputs("usage: group_worker epoch|rank|save|collect|read|judge|leaks ROOT ...\n", stderr);
  return 2;
}

}  // namespace
}  // namespace testing

}  // namespace varve::internal

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
