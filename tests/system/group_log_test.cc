// SPDX-License-Identifier: Apache-2.0
//
// A group with thousands of steps: its log stays a bounded number of small files, and opening it
// takes no longer for that.
#include "store/group/group_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "store/format/group_file.h"
#include "store/group/posix_record_log.h"
#include "tests/support/temp_folder.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

constexpr uint32_t kNumRanks = 4;

// VARVE_FULL_SIZE=1 is set by scripts/must_show.
bool IsFullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

void Append(GroupLog* log, const Author& author, RecordBody body) {
  bool done = false;
  const Status status = log->Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
    if (done) return std::optional<GroupRecord>();
    done = true;
    return std::optional(GroupRecord{author, body});
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
}

// The records of saves as ranks write them, without the members' bytes.
void AppendSteps(GroupLog* log, uint64_t num_steps) {
  Append(log, {}, EpochRecord{1, 1, kNumRanks});
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    Append(log, {1, rank, rank + 1}, OwnRecord{"host"});
  }
  for (uint64_t step = 1; step <= num_steps; ++step) {
    BeginRecord begin;
    begin.attempt = step;
    begin.id = {"main", step};
    begin.base = step - 1;
    Append(log, {1, 0, 1}, begin);
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
      Append(log, {1, rank, rank + 1}, PreparedRecord{step, {.member = rank + 1}});
    }
    CommitRecord commit;
    commit.attempt = step;
    commit.metrics["loss"] = static_cast<double>(step);
    Append(log, {1, 0, 1}, commit);
  }
}

TEST(GroupLogSystemTest, ThousandsOfStepsOpenFastAndInFewFiles) {
  const uint64_t num_steps = IsFullSize() ? 10'000 : 1'000;
  const TempFolder folder;
  const auto group = CreateOrReadGroup(folder.path());
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  {
    GroupLog log(MakePosixRecordLog(LogFolder(folder.path())), group->digest_seed);
    ASSERT_NO_FATAL_FAILURE(AppendSteps(&log, num_steps));
  }
  double fastest_ms = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto store = Store::OpenForReading(folder.path());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    fastest_ms = std::min(fastest_ms, elapsed.count());
    EXPECT_EQ((*store)->LatestStep("main").value(), num_steps);
    EXPECT_EQ((*store)->ListRuns().value()[0].num_steps, num_steps);
  }
  const uint64_t files = Group::ReadStatus(folder.path())->num_log_files;
  std::printf("%llu steps of %u ranks: open %.1f ms, %llu files in the log\n",
              static_cast<unsigned long long>(num_steps), kNumRanks, fastest_ms,
              static_cast<unsigned long long>(files));
  EXPECT_LE(files, 2 * GroupLog::kSnapshotInterval + 2 + 3);  // and files of snapshots
  if (IsFullSize()) {
    EXPECT_LE(fastest_ms, 100);
  }
}

}  // namespace
}  // namespace varve::internal::testing
