// SPDX-License-Identifier: Apache-2.0
//
// A damaged store is repaired: every step that the damaged store can still read is kept bit for
// bit, what is lost is named, and the damaged store stays as it was. A repair that is killed leaves
// the store as it was, or repaired.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/db/manifest_log.h"
#include "store/db/salvage_view.h"
#include "store/format/format_file.h"
#include "tests/store/repair_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kChildVariable[] = "VARVE_TEST_REPAIR";

TEST_F(RepairTest, WhatCanBeReadIsKeptBitForBit) {
  int lost = 0, kept = 0;
  const auto files = DbFiles();
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& file = files[i];
    if (file.ends_with(".sst") && i % 2 == 1) continue;  // every other one, for time
    for (const Damage damage : DamagesOf(i)) {
      SCOPED_TRACE(file + " damage " + std::to_string(static_cast<int>(damage)));
      const fs::path store = NewCopy();
      Inflict(damage, store / "db" / file);
      const auto before = Contents(store);
      // RocksDB with assertions ends a process that reads a frame behind a damaged key.
      const Steps readable = damage == Damage::kFirstBlock ? Steps() : ReadAll(store);
      const auto report = RepairStore(store);
      EXPECT_FALSE(fs::exists(store.string() + "~repair"));
      const bool is_table = file.ends_with(".sst");
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      if (report->damage.empty()) {
        EXPECT_FALSE(is_table);
        EXPECT_TRUE(report->damaged_store.empty());
        EXPECT_TRUE(Contents(store) == before);
        EXPECT_EQ(ReadAll(store).size(), whole_.size());
        continue;
      }
      EXPECT_TRUE(NamesTable(*report, file)) << report->damage[0];
      EXPECT_EQ(report->damaged_store, store.string() + "~damaged");
      EXPECT_TRUE(Contents(report->damaged_store) == before);
      ExpectRepaired(store, *report);
      std::set<std::pair<std::string, uint64_t>> kept_ids, lost_ids;
      for (const auto& step : report->kept) kept_ids.emplace(step.id.run, step.id.step);
      for (const auto& step : report->lost) {
        lost_ids.emplace(step.id.run, step.id.step);
        EXPECT_NE(step.reason, "");
      }
      for (const auto& [id, text] : readable) {
        EXPECT_TRUE(kept_ids.contains(id)) << StepName(id.first, id.second);
      }
      lost += static_cast<int>(lost_ids.size());
      kept += static_cast<int>(kept_ids.size());
    }
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(kept, lost);
}

TEST_F(RepairTest, ABackupBringsBackWhatIsLost) {
  const auto files = DbFiles();
  for (size_t i = 0; i < files.size(); i += 5) {
    const std::string& file = files[i];
    if (!file.ends_with(".sst")) continue;
    SCOPED_TRACE(file);
    const fs::path store = NewCopy();
    fs::remove(store / "db" / file);
    const auto report = RepairStore(store, {.dry_run = false, .from = backup_, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->lost, ::testing::IsEmpty());
    EXPECT_EQ(report->kept.size(), whole_.size());
    for (const auto& [id, text] : ReadAll(store)) {
      EXPECT_TRUE(text.data == whole_.at(id).data) << StepName(id.first, id.second);
    }
    EXPECT_EQ(ReadAll(store).size(), whole_.size());
  }
}

TEST_F(RepairTest, ABackupOfAnotherStoreIsRefused) {
  const fs::path other = folder_.path() / "other";
  ASSERT_TRUE(Store::Create(other).ok());
  const fs::path store = NewCopy();
  fs::remove(store / "db" / LargestTable());
  EXPECT_THAT(RepairStore(store, {.dry_run = false, .from = other, .progress = {}}),
              FailsWith(StatusCode::kFailedPrecondition, "is no backup of"));
  EXPECT_FALSE(fs::exists(store.string() + "~repair"));
}

TEST_F(RepairTest, ADryRunFindsTheSameAndChangesNothing) {
  const auto files = DbFiles();
  for (size_t i = 0; i < files.size(); i += 9) {
    const std::string& file = files[i];
    if (!file.ends_with(".sst")) continue;
    SCOPED_TRACE(file);
    const fs::path store = NewCopy();
    Inflict(Damage::kMiddle, store / "db" / file);
    const auto before = Contents(store.parent_path());
    const auto dry = RepairStore(store, {.dry_run = true, .from = {}, .progress = {}});
    ASSERT_TRUE(dry.ok()) << dry.status().ToString();
    EXPECT_TRUE(Contents(store.parent_path()) == before);
    const auto report = RepairStore(store);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(dry->damage, report->damage);
    EXPECT_EQ(dry->warnings, report->warnings);
    ASSERT_EQ(dry->lost.size(), report->lost.size());
    for (size_t k = 0; k < dry->lost.size(); ++k) {
      EXPECT_EQ(dry->lost[k].id, report->lost[k].id);
      EXPECT_EQ(dry->lost[k].reason, report->lost[k].reason);
      EXPECT_EQ(dry->lost[k].tensors, report->lost[k].tensors);
    }
    EXPECT_EQ(dry->kept.size(), report->kept.size());
  }
}

TEST_F(RepairTest, AStoreWithoutDamageStaysAsItIs) {
  const fs::path store = NewCopy();
  const auto before = Contents(store.parent_path());
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->damage, ::testing::IsEmpty());
  EXPECT_TRUE(Contents(store.parent_path()) == before);
}

TEST_F(RepairTest, WhatCannotBeRepairedIsRefused) {
  EXPECT_THAT(RepairStore(folder_.path() / "none"), FailsWith(StatusCode::kNotFound, "no store"));
  const fs::path store = NewCopy();
  {
    const auto writer = Store::Open(store).value();
    EXPECT_THAT(RepairStore(store), FailsWith(StatusCode::kLocked, "open for writing"));
  }
  const fs::path manifest = ManifestOf(store);
  fs::remove(store / "db" / manifest);
  fs::resize_file(store / "spare" / manifest, fs::file_size(store / "spare" / manifest) - 1);
  EXPECT_THAT(RepairStore(store),
              FailsWith(StatusCode::kCorruption, "take the store from a backup"));
  fs::remove_all(store / "spare");
  EXPECT_THAT(RepairStore(store),
              FailsWith(StatusCode::kCorruption, "take the store from a backup"));
}

// Nothing is lost with these files, because there are copies.
TEST_F(RepairTest, WhatNamesAllOtherFilesIsRepairedWithoutLoss) {
  const std::string manifest = ManifestOf(path());
  for (const std::string& file :
       {std::string("FORMAT"), "db/" + manifest, std::string("db/CURRENT")}) {
    for (const Damage damage : kDamages) {
      SCOPED_TRACE(file + " damage " + std::to_string(static_cast<int>(damage)));
      const fs::path store = NewCopy();
      Inflict(damage, store / file);
      const auto before = Contents(store);
      EXPECT_EQ(Store::OpenForReading(store).status().code(), StatusCode::kCorruption);
      EXPECT_EQ(Store::Open(store).status().code(), StatusCode::kCorruption);
      const auto report = RepairStore(store);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_TRUE(NamesTable(*report, store / file)) << report->damage.size();
      EXPECT_EQ(report->kept.size(), whole_.size());
      EXPECT_THAT(report->warnings, ::testing::IsEmpty());
      EXPECT_TRUE(Contents(report->damaged_store) == before);
      ExpectRepaired(store, *report);
    }
  }
}

// Every step that a lost tensor record, chunk or list hits is named with its tensors.
TEST_F(RepairTest, LostTensorsAreNamed) {
  const fs::path store = NewCopy();
  fs::remove(store / "db" / LargestTable());  // of chunks
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_FALSE(report->lost.empty());
  for (const auto& step : report->lost) {
    EXPECT_THAT(step.tensors, ::testing::Contains("w"));
    EXPECT_THAT(step.reason, ::testing::HasSubstr("tensor "));
  }
}

// Only the manifest still names the step. The backup does not have it, and then it does.
TEST_F(RepairTest, AStepOfWhichEveryTableIsLostIsNamed) {
  const auto before = DbFiles();
  Reopen();
  SaveStep("main", 5);
  store_.reset();
  const fs::path later = folder_.path() / "later";
  VARVE_ASSERT_OK(BackUp(path(), later).status());
  const StepText saved = ReadStep(*Store::OpenForReading(path()).value(), {"main", 5}).value();
  for (const fs::path& from : {fs::path(), backup_, later}) {
    SCOPED_TRACE(from);
    const fs::path store = NewCopy();
    for (const std::string& file : DbFiles()) {
      const bool is_new = file.ends_with(".sst") && std::ranges::count(before, file) == 0;
      if (is_new) fs::remove(store / "db" / file);
    }
    const auto report = RepairStore(store, {.dry_run = false, .from = from, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->warnings,
                ::testing::Contains(::testing::AllOf(
                    ::testing::HasSubstr("steps whose records were in it may be missing"),
                    ::testing::HasSubstr("that the trainer reported as saved"))));
    if (from == later) {
      whole_[{"main", 5}] = saved;
      EXPECT_THAT(report->lost, ::testing::IsEmpty());
    } else {
      ASSERT_EQ(report->lost.size(), 1u);
      EXPECT_EQ(report->lost[0].id, (CheckpointId{"main", 5}));
      EXPECT_THAT(report->lost[0].reason, ::testing::HasSubstr("its record is lost, or it was"));
    }
    EXPECT_EQ(report->kept.size(), whole_.size());
    ExpectRepaired(store, *report);
  }
}

class OwnerTest : public RepairTest {
 protected:
  static constexpr uid_t kOther = 12345;

  // Nothing is lost by it.
  void AddDamage(const fs::path& store) const {
    std::ofstream(store / "db" / LargestTable(), std::ios::app) << "x";
  }

  static fs::perms ModeOf(const fs::path& path) { return fs::status(path).permissions(); }
};

// One table is private. So is what was in it, which may lie in any table now.
TEST_F(OwnerTest, WhoCouldUseTheStoreCanUseTheRepairedOne) {
  const fs::path store = NewCopy();
  AddDamage(store);
  const std::map<std::string, int> modes = {
      {"", 02750}, {"db", 0700}, {"spare", 0710}, {"FORMAT", 0640}, {"db/LOCK", 0660}};
  for (const auto& [name, mode] : modes) fs::permissions(store / name, fs::perms(mode));
  fs::permissions(store / "db" / NewestChunks(), fs::perms(0600));
  if (::geteuid() == 0) GiveTo(kOther, store);
  fs::permissions(store, fs::perms(02750));  // giving it away took the bit
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->warnings, ::testing::IsEmpty());
  for (const auto& [name, mode] : modes) EXPECT_EQ(ModeOf(store / name), fs::perms(mode)) << name;
  for (const auto& entry : fs::recursive_directory_iterator(store)) {
    struct stat info {};
    ASSERT_EQ(::lstat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, ::geteuid() == 0 ? kOther : ::geteuid()) << entry.path();
    const bool is_table = entry.path().extension() == ".sst";
    EXPECT_TRUE(!is_table || (info.st_mode & 0777) == 0600) << entry.path();
  }
  ExpectRepaired(store, *report);
}

TEST_F(OwnerTest, AUserWhoMayNotGiveFilesAwayIsTold) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(folder_.path(), fs::perms::all);
  const fs::path store = NewCopy();
  AddDamage(store);
  GiveTo(kOther, store);
  fs::permissions(store.parent_path(), fs::perms::all);
  fs::permissions(store, fs::perms::all);
  for (const auto& entry : fs::recursive_directory_iterator(store)) {
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0777 : 0666));
  }
  Result<RepairReport> report = Status::Aborted("not run");
  {
    const AsNobody as_nobody;
    report = RepairStore(store);
  }
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->warnings, ::testing::ElementsAre(::testing::HasSubstr("does not belong to")));
  EXPECT_EQ(ModeOf(store / "db"), fs::perms::all);
  ExpectRepaired(store, *report);
}

TEST_F(RepairTest, AFolderThatHasTheNameOfAFileIsKeptWithWhatIsInIt) {
  for (const std::string name : {"LOCK", "IDENTITY", "999999.log"}) {
    SCOPED_TRACE(name);
    const fs::path store = NewCopy();
    fs::remove(store / "db" / name);
    fs::create_directory(store / "db" / name);
    std::ofstream(store / "db" / name / "notes") << "mine";
    const auto report = RepairStore(store);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_TRUE(NamesTable(*report, name + " is a folder"));
    EXPECT_EQ(Slurp(report->damaged_store / "db" / (name + "~damaged") / "notes"), "mine");
    EXPECT_EQ(report->kept.size(), whole_.size());
    ExpectRepaired(store, *report);
  }
}

// A view of the store has lost its manifest, so all is read from a copy of it. It is gone later.
TEST_F(RepairTest, AReportNamesNoFileOfAView) {
  for (const bool keep_partial : {false, true}) {
    const fs::path store = NewCopy();
    fs::remove(store / "db" / ManifestOf(store));
    const auto files = DbFiles();
    for (size_t i = 0; i < files.size(); i += 2) {
      if (files[i].ends_with(".sst")) Inflict(Damage::kMiddle, store / "db" / files[i]);
    }
    const auto report = RepairStore(store, {.keep_partial = keep_partial});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_FALSE(report->lost.empty());
    std::string all;
    for (const auto& text : report->damage) all += text + "\n";
    for (const auto& text : report->warnings) all += text + "\n";
    for (const auto& step : report->lost) all += step.reason + "\n";
    for (const auto& step : report->kept) {
      for (const auto& text : step.doubts) all += text + "\n";
    }
    for (const auto& step : report->partial) {
      for (const auto& text : step.other_losses) all += text + "\n";
    }
    EXPECT_THAT(all, ::testing::Not(::testing::HasSubstr("~repair")));
    EXPECT_THAT(all, ::testing::HasSubstr((store / "db").string() + "/"));
    ExpectRepaired(store, *report);
  }
}

// What a repair leaves that was killed right after its exchange.
TEST_F(RepairTest, AnEarlierRepairIsFinished) {
  const fs::path store = NewCopy(), work = store.string() + "~repair";
  const fs::path damaged = store.string() + "~damaged";
  fs::remove(store / "db" / LargestTable());
  const auto before = Contents(store);
  ASSERT_TRUE(RepairStore(store).ok());
  fs::create_directory(work);
  fs::rename(damaged, work / "store");
  std::ofstream(work / "ready") << ToHex(ReadFormatFile(store, false).value().store_id);
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->damage, ::testing::IsEmpty());
  EXPECT_FALSE(fs::exists(work));
  EXPECT_TRUE(Contents(damaged) == before);
}

TEST_F(RepairTest, AFolderThatNoRepairHasMadeStays) {
  const fs::path store = NewCopy(), other = store.string() + "~repair";
  fs::remove(store / "db" / LargestTable());
  fs::create_directory(other);
  std::ofstream(other / "notes") << "mine";
  const auto before = Contents(store.parent_path());
  EXPECT_THAT(RepairStore(store), FailsWith(StatusCode::kFailedPrecondition, "holds notes"));
  EXPECT_TRUE(Contents(store.parent_path()) == before);
}

// What a repair leaves that was killed right before its exchange. The names ~damaged and ~damaged2
// are taken.
TEST_F(RepairTest, LeftoversOfAnEarlierRepairGo) {
  const fs::path store = NewCopy(), work = store.string() + "~repair";
  fs::remove(store / "db" / LargestTable());
  const auto before = Contents(store);
  fs::create_directory(work);
  ASSERT_TRUE(Store::Create(work / "store").ok());
  std::ofstream(work / "ready") << ToHex(ReadFormatFile(work / "store", false).value().store_id);
  fs::create_directory(store.string() + "~damaged");
  fs::create_directory(store.string() + "~damaged2");
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->damaged_store, store.string() + "~damaged3");
  EXPECT_TRUE(Contents(report->damaged_store) == before);
  EXPECT_FALSE(fs::exists(work));
}

// Not a test: the process that TEST_F KilledAtAnyMoment kills.
TEST(RepairChild, Repairs) {
  const char* const store = std::getenv(kChildVariable);
  if (store == nullptr) GTEST_SKIP();
  EXPECT_TRUE(RepairStore(store, {.keep_partial = true}).ok());
}

TEST_F(RepairTest, KilledAtAnyMomentItLeavesTheStoreAsItWasOrRepaired) {
  const std::string table = NewestChunks();
  int killed = 0, finished = 0;
  for (int delay_ms = 1; finished < 2 && delay_ms < 200000; delay_ms += 1 + delay_ms) {
    const fs::path store = NewCopy();
    fs::remove(store / "db" / table);
    const auto before = Contents(store);
    ::setenv(kChildVariable, store.c_str(), 1);
    char program[] = "/proc/self/exe", filter[] = "--gtest_filter=RepairChild.*";
    char* const arguments[] = {program, filter, nullptr};
    pid_t child = 0;
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const std::string self = fs::read_symlink(program);
    ASSERT_EQ(::posix_spawn(&child, self.c_str(), &quiet, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&quiet);
    ::unsetenv(kChildVariable);
    ::usleep(static_cast<useconds_t>(delay_ms) * 1000);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    WIFSIGNALED(status) ? ++killed : ++finished;
    SCOPED_TRACE("killed after " + std::to_string(delay_ms) + " ms");
    const bool is_untouched = Contents(store) == before;
    const auto again = RepairStore(store, {.keep_partial = true});
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->damage.empty(), !is_untouched);
    EXPECT_FALSE(fs::exists(store.string() + "~repair"));
    EXPECT_TRUE(Contents(store.string() + "~damaged") == before);
    const auto repaired = Store::OpenForReading(store);
    ASSERT_TRUE(repaired.ok()) << repaired.status().ToString();
    const auto check = (*repaired)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    EXPECT_EQ(check->num_steps, whole_.size());
    const auto part = (*repaired)->OpenCheckpoint("main~damaged", 4);
    EXPECT_TRUE(part.ok()) << part.status().ToString();
  }
  EXPECT_GT(killed, 0);
  EXPECT_GT(finished, 0);
}

// A crash may leave part of a record at the end of a manifest, and a block may have no room for the
// header of the next record.
TEST(ManifestTest, TablesAreTakenOutBehindTheLastWholeRecord) {
  LostTable table;
  table.number = 300;
  table.level = 1;
  table.family_id = 6;
  const std::string once = WithoutTables("", {&table, 1});
  // A deleted file of level 1 and of number 300 (2 bytes), then family 6 (its tag has 2 bytes).
  EXPECT_EQ(once.substr(6), std::string("\x01\x06\x01\xac\x02\xc8\x01\x06", 8));
  for (size_t cut = 0; cut < once.size(); ++cut) {
    EXPECT_EQ(WithoutTables(once + once.substr(0, cut), {&table, 1}), once + once);
  }
  std::string torn = once + once;
  torn.back() ^= 1;
  EXPECT_EQ(WithoutTables(torn, {&table, 1}), once + once);
  const std::vector<LostTable> tables(8000, table);
  const std::string many = WithoutTables("", tables);
  ASSERT_GT(many.size(), size_t{3} * 32768);
  EXPECT_EQ(WithoutTables(many, {}), many);  // every record of three blocks is whole
  // The first of two records of a commit (kInAtomicGroup, one to come), which a crash has cut
  // short.
  std::string open_group;
  AppendLogRecord("\xac\x02\x01", &open_group);
  EXPECT_EQ(WithoutTables(open_group, {&table, 1}), once);
}

}  // namespace
}  // namespace varve::internal::testing