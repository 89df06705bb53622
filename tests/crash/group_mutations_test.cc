// SPDX-License-Identifier: Apache-2.0
//
// Deliberate mistakes in the protocol of a group (store/group/mutation.h). Each script runs
// ranks in an order that brings its mistake to light. They are threads of this process, but for a
// rank that dies, which is a process of its own. Without the mistake the script finds nothing, and
// with it the script finds the mistake each time.
//
// Nothing here depends on time: ranks meet at the mutation points. Only with a mistake may a rank
// wait for one that does not come. The restart storm (group_storm_test.py) runs the same judge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "store/group/group_store.h"
#include "store/group/mutation.h"
#include "tests/crash/group_content.h"
#include "tests/support/temp_folder.h"
#include "varve/group.h"

namespace varve::internal {

namespace {

std::optional<Mutation> mutation_now;  // set between scripts

// What is to be done at the next pass of each point. The first thread that comes takes it.
std::mutex actions_mutex;
std::map<MutationPoint, std::function<void()>> actions;

void DoAt(MutationPoint point, std::function<void()> action) {
  const std::lock_guard lock(actions_mutex);
  actions[point] = std::move(action);
}

}  // namespace

bool IsMutated(Mutation mutation) { return mutation_now == mutation; }

void PassMutationPoint(MutationPoint point) {
  std::function<void()> action;
  {
    const std::lock_guard lock(actions_mutex);
    const auto it = actions.find(point);
    if (it == actions.end()) return;
    action = std::move(it->second);
    actions.erase(it);
  }
  action();
}

namespace testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Lines = std::vector<std::string>;  // what the judge says

uint64_t Start(const std::filesystem::path& root, uint32_t num_ranks) {
  return Group::StartEpoch(root, num_ranks).value();
}

std::unique_ptr<GroupStore> Join(const std::filesystem::path& root, uint32_t rank, uint64_t epoch) {
  // So patient that a busy machine changes nothing. With one mistake, ranks wait in vain.
  const std::chrono::milliseconds timeout =
      mutation_now == Mutation::kReuseAttempt ? std::chrono::seconds(2) : std::chrono::hours(24);
  return GroupStore::Join(root, {.rank = rank, .epoch = epoch, .timeout = timeout}).value();
}

RankSave Begin(GroupStore* store, uint32_t num_ranks, uint64_t step) {
  return BeginSave(store, num_ranks, step).value();
}

void SaveAlone(GroupStore* store, uint64_t step) {
  const Status status = Begin(store, 1, step).writer->Commit().status();
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// A process joins as rank 1, says that its part of step 1 is durable, and dies.
void PrepareAndDie(const std::filesystem::path& root, uint64_t epoch) {
  const auto worker =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("group_worker_mutant");
  const std::string command =
      worker.string() + " prepare " + root.string() + " 1 " + std::to_string(epoch) + " 1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

Lines Judge(const std::filesystem::path& root) {
  const auto lines = JudgeGroup(root);
  return lines.ok() ? *lines : Lines{"cannot judge: " + lines.status().ToString()};
}

// A save is committed between a sweep's look at the log and its look at the member.
Lines SaveDuringSweep(const std::filesystem::path& root) {
  {
    const auto store = Join(root, 0, Start(root, 1));
    SaveAlone(store.get(), 1);
    store->AwaitSweep();
    DoAt(MutationPoint::kSweeping, [&] {
      SaveAlone(store.get(), 2);
      store->AwaitSweep();
    });
    EXPECT_TRUE(SweepMember(store->place(), store->own_member(), kDropsARound).ok());
  }
  return Judge(root);
}

// A rank has said that its part is durable, dies and comes back. It is about to abort the save when
// rank 0 commits it.
Lines CommitDuringRestart(const std::filesystem::path& root) {
  {
    const uint64_t epoch = Start(root, 2);
    const auto zero = Join(root, 0, epoch);
    const RankSave of_zero = Begin(zero.get(), 2, 1);
    PrepareAndDie(root, epoch);

    std::promise<void> aborts, committed;
    std::thread restarted;
    DoAt(MutationPoint::kAborting, [&] {
      aborts.set_value();
      committed.get_future().wait();
    });
    DoAt(MutationPoint::kAllPrepared, [&] {
      restarted = std::thread([&] { Join(root, 1, epoch); });
      aborts.get_future().wait();
    });
    const Status status = of_zero.writer->Commit().status();
    EXPECT_TRUE(status.ok()) << status.ToString();
    committed.set_value();
    restarted.join();
  }
  return Judge(root);
}

// Two ranks save.
Lines SaveTogether(const std::filesystem::path& root) {
  std::string failed;
  {
    const uint64_t epoch = Start(root, 2);
    const auto zero = Join(root, 0, epoch), one = Join(root, 1, epoch);
    const RankSave of_zero = Begin(zero.get(), 2, 1), of_one = Begin(one.get(), 2, 1);
    std::thread other([&] { of_one.writer->Commit().status().IgnoreError(); });
    const Status status = of_zero.writer->Commit().status();
    if (!status.ok()) failed = "the save failed: " + status.ToString();
    other.join();
  }
  Lines lines = Judge(root);
  if (!failed.empty()) lines.push_back(failed);
  return lines;
}

// Rank 0 gives a save up and starts the next one. Rank 1 has said that its part of the first is
// durable, and sees only afterwards how the first ended.
Lines SaveAfterOneThatWasGivenUp(const std::filesystem::path& root) {
  std::string failed;
  {
    const uint64_t epoch = Start(root, 2);
    const auto zero = Join(root, 0, epoch), one = Join(root, 1, epoch);
    const RankSave given_up = Begin(zero.get(), 2, 1), of_one = Begin(one.get(), 2, 1);
    std::promise<void> prepared, next_began;
    DoAt(MutationPoint::kPrepared, [&] {
      prepared.set_value();
      next_began.get_future().wait();
    });
    std::thread other([&] {
      EXPECT_FALSE(of_one.writer->Commit().ok());
      const Result<RankSave> next = BeginSave(one.get(), 2, 2);
      if (next.ok()) next->writer->Commit().status().IgnoreError();  // rank 0 says how it ended
    });
    prepared.get_future().wait();
    given_up.writer->Abandon();
    const RankSave next = Begin(zero.get(), 2, 2);
    next_began.set_value();
    const Status status = next.writer->Commit().status();
    if (!status.ok()) failed = "the save failed: " + status.ToString();
    other.join();
  }
  Lines lines = Judge(root);
  if (!failed.empty()) lines.push_back(failed);
  return lines;
}

// What the judge says after a script, with a mistake or without one.
Lines RunScript(Lines script(const std::filesystem::path&), std::optional<Mutation> mutation) {
  const TempFolder folder;
  mutation_now = mutation;
  Lines lines = script(folder.path() / "root");
  mutation_now.reset();
  const std::lock_guard lock(actions_mutex);
  EXPECT_TRUE(actions.empty()) << "a mutation point was not passed";
  actions.clear();
  return lines;
}

TEST(GroupMutationsTest, ASweepThatTakesAStaleStateIsFound) {
  EXPECT_THAT(RunScript(SaveDuringSweep, std::nullopt), ElementsAre("step 1 ok", "step 2 ok"));
  const Lines found = RunScript(SaveDuringSweep, Mutation::kStaleRoots);
  EXPECT_THAT(found, Contains(StartsWith("error ")));
  EXPECT_THAT(found, Contains("step 1 ok"));
  EXPECT_THAT(found, Not(Contains("step 2 ok")));
}

TEST(GroupMutationsTest, ARestartThatDropsWithoutALookIsFound) {
  EXPECT_THAT(RunScript(CommitDuringRestart, std::nullopt), ElementsAre("step 1 ok"));
  const Lines found = RunScript(CommitDuringRestart, Mutation::kSweepWithoutLook);
  EXPECT_THAT(found, Contains(StartsWith("error ")));
  EXPECT_THAT(found, Not(Contains("step 1 ok")));
}

TEST(GroupMutationsTest, AnAttemptWhoseNumberIsUsedAgainIsFound) {
  EXPECT_THAT(RunScript(SaveAfterOneThatWasGivenUp, std::nullopt), ElementsAre("step 2 ok"));
  EXPECT_THAT(RunScript(SaveAfterOneThatWasGivenUp, Mutation::kReuseAttempt),
              Contains(StartsWith("the save failed: ")));
}

TEST(GroupMutationsTest, AShardThatARankDoesNotNameIsFound) {
  EXPECT_THAT(RunScript(SaveTogether, std::nullopt), ElementsAre("step 1 ok"));
  EXPECT_THAT(
      RunScript(SaveTogether, Mutation::kForgetShard),
      ElementsAre(AllOf(StartsWith("the save failed: "), HasSubstr("rank 1 saves nothing of it"))));
}

}  // namespace
}  // namespace testing

}  // namespace varve::internal
