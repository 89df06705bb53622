// SPDX-License-Identifier: Apache-2.0
//
// Backups and repairs on disks that are full or fail at each of their calls.
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "base/folders.h"
#include "base/util.h"
#include "store/format/format_file.h"
#include "store/ops/database_copy.h"
#include "tests/store/faults/store_faults.h"
#include "tests/store/save/trained_steps.h"
#include "varve/backup.h"
#include "varve/repair.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class BackupFaultsTest : public FaultsTest {
 protected:
  fs::path copy() const { return folder_.path() / "store.copy"; }

  std::string JudgeCopy(const std::vector<State>& allowed) const {
    const auto store = Store::OpenForReading(copy());
    if (!store.ok()) return "the copy: " + store.status().ToString();
    std::string fault = CheckState(**store, allowed);
    if (fault.empty()) fault = CheckClean(**store);
    return fault.empty() ? "" : "the copy: " + fault;
  }

  // `earlier` is what the copy holds before. A copy that a backup could not finish is no store, or
  // what it was.
  Scenario Backup(const std::function<void()>& start, const State& earlier, const State& later) {
    const Operation back_up = [this] { return BackUp(path(), copy()).status(); };
    return {start, back_up, [=, this](const Status& status) -> std::string {
              std::string fault;
              if (status.ok()) {
                fault = JudgeCopy({later});
              } else if (earlier.exists) {
                fault = JudgeCopy({earlier, later});
              }
              if (!fault.empty()) return fault;
              const Status again = status.ok() ? status : back_up();
              if (!again.ok()) return "the backup again: " + again.ToString();
              fault = JudgeCopy({later});
              return fault.empty() ? CheckClean(*store_) : fault;
            }};
  }

  Scenario LaterBackup() {
    State later = before_;
    later.Put({"main", 4}, ContentOfStep(4));
    later.steps.erase({"main", 2});
    return Backup(
        [this] {
          StartFromTemplate();
          VARVE_ASSERT_OK(BackUp(path(), copy()).status());
          VARVE_ASSERT_OK(SaveStep(4, 4));
          VARVE_ASSERT_OK(DropSteps({2}));
        },
        before_, later);
  }
};

TEST_F(BackupFaultsTest, TheFirst) {
  MakeTemplate();
  SweepAll(Backup([this] { StartFromTemplate(); }, State(), before_));
}

TEST_F(BackupFaultsTest, ALaterOne) {
  MakeTemplate();
  SweepAll(LaterBackup());
}

// What the step of the copy needs lies in steps that the copy no longer has.
TEST_F(BackupFaultsTest, OfReplays) {
  const TrainedSteps steps(5000, 3);
  MakeTemplate([&] {
    for (const size_t i : {0, 1}) {
      VARVE_ASSERT_OK(steps.Save(store_.get(), i));
      before_.Put(steps.IdOf(i), steps.TensorsOf(i));
    }
  });
  State later = before_;
  later.Put(steps.IdOf(2), steps.TensorsOf(2));
  const std::vector<CheckpointId> dropped = {steps.IdOf(0), steps.IdOf(1)};
  for (const CheckpointId& id : dropped) later.steps.erase({id.run, id.step});
  SweepAll(Backup(
      [&] {
        StartFromTemplate();
        VARVE_ASSERT_OK(BackUp(path(), copy()).status());
        VARVE_ASSERT_OK(steps.Save(store_.get(), 2));
        VARVE_ASSERT_OK(store_->Drop(dropped).status());
        VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
        ASSERT_TRUE(HasReplays(*store_).value());
      },
      before_, later));
}

// Else the next backup takes the copy for one that a writer has changed.
TEST_F(BackupFaultsTest, BackupKeepsTheManifestThatCurrentNames) {
  MakeTemplate();
  StartFromTemplate();
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  const std::string marker = ReadSmallFile(copy() / "BACKUP", 4096).value();
  DatabaseCopy again(copy());
  VARVE_ASSERT_OK(again.Prepare(ReadFormatFile(path(), /*for_writing=*/false).value()));
  const std::string manifest = ReadCurrent(copy() / "db").value();
  {
    const FailingIo io({.path = copy() / "db" / "CURRENT", .call = "reads", .error = EIO});
    EXPECT_EQ(again.Publish(manifest).code(), StatusCode::kIOError);
    EXPECT_NE(io.failed(), "");
  }
  EXPECT_EQ(ReadSmallFile(copy() / "BACKUP", 4096).value(), marker);
  VARVE_EXPECT_OK(BackUp(path(), copy()).status());
}

TEST_F(BackupFaultsTest, ALackOfDescriptorsIsNoDamage) {
  MakeTemplate();
  State later = before_;
  later.Put({"main", 4}, ContentOfStep(4));
  Scenario scenario = Backup(
      [this] {
        StartFromTemplate();
        VARVE_ASSERT_OK(BackUp(path(), copy()).status());
        VARVE_ASSERT_OK(SaveStep(4, 4));
      },
      before_, later);
  scenario.judge = [judge = scenario.judge](const Status& status) {
    return status.code() == StatusCode::kCorruption ? "it is called damage" : judge(status);
  };
  SweepEach(scenario, {.path = copy().string(), .call = "open", .error = EMFILE}, /*stride=*/3);
}

// Or nobody would sync its name, because it is there the next time.
TEST_F(BackupFaultsTest, AFolderWhoseNameIsNotSyncedIsMadeAgain) {
  const fs::path parent = folder_.path() / "parent";
  VARVE_ASSERT_OK(MakeDurableFolders(parent));
  const fs::path made = parent / "made";
  {
    const FailingIo io({.path = parent.string(), .call = "syncs", .error = EIO});
    EXPECT_FALSE(MakeDurableFolders(made).ok());
    EXPECT_NE(io.failed(), "");
  }
  EXPECT_FALSE(fs::exists(made));
  VARVE_EXPECT_OK(MakeDurableFolders(made));
}

// A backup reads the manifest and the tables that it has copied before CURRENT names them.
TEST_F(BackupFaultsTest, PlantedMistakesAreFound) {
  MakeTemplate();
  const Scenario scenario = Backup([this] { StartFromTemplate(); }, State(), before_);
  for (const std::string file : {"FORMAT", "db/CURRENT"}) {
    const std::string path = copy() / file;
    ExpectFound(scenario, "a short write of " + file + " of a backup is taken for whole",
                {.path = path, .call = "writes", .short_write = true});
    ExpectFound(scenario, "a failed sync of " + file + " of a backup is taken for done",
                {.path = path, .call = "syncs", .error = EIO, .lose = true});
  }
  for (const std::string file : {"db/MANIFEST-", "db/0"}) {
    ExpectHarmless(scenario, "a short write of " + file + " of a backup is taken for whole",
                   {.path = copy() / file, .call = "writes", .short_write = true});
    ExpectHarmless(scenario, "a failed sync of " + file + " of a backup is taken for done",
                   {.path = copy() / file, .call = "syncs", .error = EIO, .lose = true});
  }
}

class RepairFaultsTest : public FaultsTest {
 protected:
  // The store has lost the frames of its last save.
  void MakeDamagedTemplate() {
    MakeTemplate([&] { LoseNewestFrames(); });
    Lose({{"main", 3}});
  }
  // The store has lost the frames of a step, which it needs for the step after that, too.
  void MakeTemplateWithoutASource() {
    MakeTemplate([&] {
      for (const size_t i : {0, 1, 2, 3}) {
        VARVE_ASSERT_OK(steps_.Save(store_.get(), i));
        before_.Put(steps_.IdOf(i), steps_.TensorsOf(i));
        if (i == 2) LoseNewestFrames();
      }
      EXPECT_TRUE(HasReplays(*store_).value());
    });
    Lose({steps_.IdOf(2), steps_.IdOf(3)});
  }

  void LoseNewestFrames() {
    fs::path newest;
    for (const TableFile& file : FilesOf(Family::kChunks)) {
      if (newest.empty() || newest < file.path) newest = file.path;
    }
    damaged_ = fs::relative(newest, path());
    for (const TableFile& file : FilesOf(Family::kMeta)) meta_.push_back(file.path.filename());
  }
  void Lose(const std::vector<CheckpointId>& ids) {
    kept_ = before_;
    for (const CheckpointId& id : ids) lost_.insert({id.run, id.step});
    for (const auto& id : lost_) kept_.steps.erase(id);
  }

  void StartDamaged() {
    StartFromTemplate();
    store_.reset();
    ASSERT_TRUE(fs::remove(path() / damaged_));
  }

  // A repair that has a sound backup takes the lost step from it.
  void MakeBackup() {
    StartFromTemplate();
    VARVE_ASSERT_OK(BackUp(path(), backup_template_.path() / "backup").status());
    kept_ = before_;
    options_.from = (folder_.path() / "backup").string();
  }
  void StartWithBackup() {
    StartDamaged();
    fs::copy(backup_template_.path() / "backup", options_.from, fs::copy_options::recursive);
  }

  // What can be read of the damaged store, whether it has been repaired or not.
  Status ReadWhatIsThere() const {
    VARVE_ASSIGN_OR_RETURN(const auto reader, Store::OpenForReading(path()));
    for (const auto& [id, tensors] : kept_.steps) {
      if (lost_.contains(id)) continue;
      VARVE_RETURN_IF_ERROR(ReadTensors(*reader, {id.first, id.second}).status());
    }
    return Status::Ok();
  }

  std::string JudgeRepair(const Status& status) {
    if (const Status read = ReadWhatIsThere(); !read.ok()) return "reading: " + read.ToString();
    const auto report = RepairStore(path(), options_);
    if (!report.ok()) return "repairing again: " + report.status().ToString();
    if (status.ok() && !report->damage.empty()) return "the store is damaged again";
    if (!fs::exists(Aside() / "FORMAT")) return "the damaged store is gone";
    if (fs::exists(path().string() + "~repair")) return "~repair is left";
    return JudgeOperation([] { return Status::Ok(); }, Status::Ok(), kept_, kept_);
  }

  fs::path Aside() const { return path().string() + "~damaged"; }

  fs::path damaged_;
  std::vector<std::string> meta_;  // tables with names of runs and tags
  const TrainedSteps steps_{5000, 4};
  std::set<std::pair<std::string, uint64_t>> lost_;
  State kept_;
  RepairOptions options_;
  TempFolder backup_template_;
};

TEST_F(RepairFaultsTest, WhatCanBeReadIsKept) {
  MakeDamagedTemplate();
  SweepAll({[this] { StartDamaged(); }, [this] { return RepairStore(path()).status(); },
            [this](const Status& status) { return JudgeRepair(status); }});
}

TEST_F(RepairFaultsTest, WhatCanBeReplayedIsKept) {
  MakeTemplateWithoutASource();
  SweepAll({[this] { StartDamaged(); }, [this] { return RepairStore(path()).status(); },
            [this](const Status& status) { return JudgeRepair(status); }});
}

TEST_F(RepairFaultsTest, ASourceThatIsLostIsTakenFromABackup) {
  MakeTemplateWithoutASource();
  MakeBackup();
  SweepAll({[this] { StartWithBackup(); },
            [this] { return RepairStore(path(), options_).status(); },
            [this](const Status& status) { return JudgeRepair(status); }});
}

// Faults of the backup's own calls, too. A step that cannot be taken from there is no step lost:
// the repair fails, and the next one takes it.
TEST_F(RepairFaultsTest, WhatIsLostIsTakenFromABackup) {
  MakeDamagedTemplate();
  MakeBackup();
  SweepAll({[this] { StartWithBackup(); },
            [this] { return RepairStore(path(), options_).status(); },
            [this](const Status& status) { return JudgeRepair(status); }});
}

// FORMAT of the damaged store is that of another store, so its id does not tell what lies aside.
TEST_F(RepairFaultsTest, TheDamagedStoreIsKeptByWhateverNameItHas) {
  MakeDamagedTemplate();
  const TempFolder other;
  VARVE_ASSERT_OK(Store::Create(other.path() / "store").status());
  const Scenario scenario = {
      [&] {
        StartDamaged();
        fs::copy_file(other.path() / "store/FORMAT", path() / "FORMAT",
                      fs::copy_options::overwrite_existing);
      },
      [this] { return RepairStore(path()).status(); },
      [this](const Status& status) {
        const Status again = status.ok() ? status : RepairStore(path()).status();
        return again.ok() ? JudgeRepair(status) : "repairing again: " + again.ToString();
      }};
  SweepEach(scenario, {.path = folder_.path(), .call = "rename", .error = EIO});
}

// A repair leaves out the tables of meta that it cannot open, and the tags in them.
TEST_F(RepairFaultsTest, AnErrorThatPassesLosesNoTag) {
  MakeDamagedTemplate();
  ASSERT_FALSE(meta_.empty());
  for (const std::string& file : meta_) {
    SCOPED_TRACE(file);
    const uint64_t first = IsFullSize() ? 0 : static_cast<uint64_t>(&file - meta_.data()) % 4;
    SweepEach({[this] { StartDamaged(); }, [this] { return RepairStore(path()).status(); },
               [this](const Status& status) { return JudgeRepair(status); }},
              {.path = file, .call = "reads", .first = first, .error = EIO}, /*stride=*/4);
  }
}

}  // namespace
}  // namespace varve::internal::testing
