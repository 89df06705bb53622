// SPDX-License-Identifier: Apache-2.0
//
// A group of few ranks and many steps, of which only the log exists. It measures what a new process
// reads of the log, and what tags, lists, forks, rewinds and drops do in it.
#include <memory>

#include "bench/scale/axes.h"
#include "bench/workplace.h"
#include "store/format/group_file.h"
#include "store/group/posix_record_log.h"
#include "store/group/rank_save.h"
#include "varve/group.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kRanks = 16;
constexpr Growth kLinear{1, 1};
constexpr Growth kConstant{0, 0};
constexpr int kPolls = 200;

// Says what ranks say that save, one after the other.
class Group16 {
 public:
  explicit Group16(const fs::path& root)
      : epoch_(Must(Group::StartEpoch(root, kRanks))),
        log_(MakePosixRecordLog(LogFolder(root)), Must(ReadGroupFile(root)).digest_seed) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Say(rank, OwnRecord{"host"},
          [&](const GroupState& state) { return state.IsCurrent(AuthorOf(rank)); });
    }
  }

  void Save(uint64_t step) {
    const AttemptId attempt = log_.With([](const GroupState& state) { return state.next_attempt; });
    Say(0, BeginRecord{.attempt = attempt, .nonce = attempt, .id = {"main", step}},
        [&](const GroupState& state) { return state.FindAttempt(attempt) != nullptr; });
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const GroupPart part{.member = AuthorOf(rank).member, .root = {step, rank}};
      Say(rank, PreparedRecord{attempt, part}, [&](const GroupState& state) {
        return state.FindAttempt(attempt)->parts.contains(rank);
      });
    }
    Say(0, CommitRecord{.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}},
        [&](const GroupState& state) { return state.FindAttempt(attempt)->committed; });
  }
  Status Poll() { return log_.Refresh(); }

 private:
  Author AuthorOf(uint32_t rank) const { return {epoch_, rank, MemberId{rank} + 1}; }

  template <typename Done>
  void Say(uint32_t rank, const RecordBody& body, const Done& is_done) {
    Require(log_.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
      if (is_done(state)) return std::optional<GroupRecord>();
      return std::optional(GroupRecord{AuthorOf(rank), body});
    }));
  }

  const uint64_t epoch_;
  GroupLog log_;
};

void MeasureSize(uint64_t n, Workplace* place, Curves* curves) {
  const auto size = static_cast<double>(n);
  const fs::path root = place->NewPath("group");
  const auto add = [&](const char* what, Growth growth, const Cost& cost) {
    curves->Add(what, growth, size, cost);
  };
  {
    Group16 group(root);
    const uint64_t last = std::max<uint64_t>(1, n / 2);
    uint64_t next = 0;
    while (next < n - last) group.Save(next++);
    add("save in the log, 16 ranks", kConstant, MeasureCost([&] {
                                                  while (next < n) group.Save(next++);
                                                }).Each(static_cast<double>(last)));
    add("poll, nothing new", kConstant, MeasureCost([&] {
                                          for (int i = 0; i < kPolls; ++i) Require(group.Poll());
                                        }).Each(kPolls));
  }
  std::unique_ptr<Store> store;
  add("open", kLinear, MeasureCost([&] { store = Must(Store::Open(root)); }));
  add("ListRuns", kConstant, MeasureCost([&] { Must(store->ListRuns()); }));
  add("ListCheckpoints", kLinear, MeasureCost([&] { Must(store->ListCheckpoints("main")); }));
  add("tag each tenth step, and list", kLinear, MeasureCost([&] {
        for (uint64_t step = 0; step < n; step += 10) {
          Require(store->SetTag({"main", step}, "tag-" + std::to_string(step)));
        }
        Must(store->ListCheckpoints("main"));
      }));
  add("fork, newest step", kConstant, MeasureCost([&] { Must(store->Fork("main", "fork")); }));
  add("rewind to the middle", kLinear, MeasureCost([&] { Must(store->Rewind("main", n / 2)); }));
  std::vector<CheckpointId> most;
  for (uint64_t step = 0; step < n / 2; ++step) most.push_back({"main", step});
  add("Drop, half of the steps", kLinear,
      MeasureCost([&] { Must(store->Drop(most, {.reclaim = false})); }));
  store.reset();
  place->Remove(root);
}

}  // namespace

void MeasureGroupSteps(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) MeasureSize(n, &place, curves);
}

}  // namespace varve::internal::bench
