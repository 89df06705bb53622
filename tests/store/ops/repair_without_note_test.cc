// SPDX-License-Identifier: Apache-2.0
//
// A store that has lost its manifest, or the end of it, is repaired, when nothing says how long the
// manifest was.
#include "tests/store/repair_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// Without SYNCED nothing says whether the copy of a lost manifest is whole.
class LostNoteTest : public RepairTest {
 protected:
  // A store with steps 10 to 12, whose manifest was `before_` when it had no step 12. SYNCED is
  // lost. There are too few files for a merge.
  fs::path NewStore() {
    const fs::path store = NewCopy();
    fs::remove_all(store);
    store_ = Store::Create(store).value();
    SaveStep("main", 10);
    SaveStep("main", 11);
    manifest_ = ManifestOf(store);
    before_ = Slurp(store / "db" / manifest_);
    SaveStep("main", 12);
    newest_ = ReadStep(*store_, {"main", 12}).value().data;
    VARVE_EXPECT_OK(store_->SetTag({"main", 12}, "newest"));
    store_.reset();
    fs::remove_all(later_backup_);
    VARVE_EXPECT_OK(BackUp(store, later_backup_).status());
    fs::remove(store / "SYNCED");
    return store;
  }

  static void Overwrite(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  static std::vector<uint64_t> Kept(const RepairReport& report) {
    std::vector<uint64_t> steps;
    for (const auto& step : report.kept) steps.push_back(step.id.step);
    return steps;
  }

  const fs::path later_backup_ = folder_.path() / "later";
  std::string manifest_, before_, newest_;
};

TEST_F(LostNoteTest, ACopyOfUnknownLengthLeavesTheNewestStepsInDoubt) {
  const fs::path store = NewStore();
  fs::remove(store / "db" / manifest_);
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11, 12));
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_THAT(report->warnings[0],
              ::testing::AllOf(::testing::StartsWith("the newest steps, drops and tags may be"),
                               ::testing::HasSubstr("SYNCED does not say how long " + manifest_),
                               ::testing::HasSubstr("(--from)")));
}

TEST_F(LostNoteTest, TablesThatNoCopyNamesAreEvidence) {
  const fs::path store = NewStore();
  fs::remove(store / "db" / manifest_);
  Overwrite(store / "spare" / manifest_, before_);
  const auto dry = RepairStore(store, {.dry_run = true, .from = {}, .progress = {}});
  ASSERT_TRUE(dry.ok()) << dry.status().ToString();
  EXPECT_THAT(Kept(*dry), ::testing::ElementsAre(10, 11));
  ASSERT_EQ(dry->warnings.size(), 1u);
  EXPECT_THAT(dry->warnings[0],
              ::testing::ContainsRegex("[0-9]+ table files of db/ are not named in it"));
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->warnings, dry->warnings);
  EXPECT_EQ(Kept(*report), Kept(*dry));
}

// Step 12 is not among the steps of the damaged store, and nevertheless it comes back.
TEST_F(LostNoteTest, ABackupBringsBackTheNewestSteps) {
  const fs::path store = NewStore();
  fs::remove(store / "db" / manifest_);
  Overwrite(store / "spare" / manifest_, before_);
  const auto report = RepairStore(store, {.dry_run = false, .from = later_backup_, .progress = {}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11, 12));
  EXPECT_THAT(report->lost, ::testing::IsEmpty());
  for (const auto& step : report->kept) {
    EXPECT_EQ(step.is_from_backup, step.id.step == 12);
    EXPECT_EQ(step.doubts.empty(), !step.is_from_backup);
  }
  const auto reader = Store::OpenForReading(store).value();
  const auto step = ReadStep(*reader, {"main", 12});
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_TRUE(step->data == newest_);
  EXPECT_EQ(reader->FindTag("main", "newest").value(), 12u);
}

// The damaged store shows the save of a step before the one that replaced it.
class ReplacedStepTest : public LostNoteTest {
 protected:
  // A store with steps 10 to 12, and a backup. Step 11 was replaced before the backup, and the
  // store has lost the end of its manifest since then.
  fs::path NewStoreOfReplaced() {
    const fs::path store = NewStore();
    store_ = Store::Open(store).value();
    manifest_ = ManifestOf(store);
    before_ = Slurp(store / "db" / manifest_);
    earlier_ = ReadStep(*store_, {"main", 11}).value().data;
    const std::set<std::string> old_files = FilesOf(store);
    SaveStep("main", 11, OnExisting::kReplace);
    for (const std::string& file : FilesOf(store)) {
      if (!old_files.contains(file)) new_files_.push_back(file);
    }
    replaced_ = ReadStep(*store_, {"main", 11}).value().data;
    EXPECT_FALSE(replaced_ == earlier_);
    VARVE_EXPECT_OK(store_->SetTag({"main", 11}, "newest"));
    VARVE_EXPECT_OK(store_->SetMetrics({"main", 10}, {{"loss", 0.25}}));
    store_.reset();
    fs::remove_all(later_backup_);
    VARVE_EXPECT_OK(BackUp(store, later_backup_).status());
    fs::remove(store / "SYNCED");
    fs::remove(store / "db" / manifest_);
    Overwrite(store / "spare" / manifest_, before_);
    return store;
  }

  static std::set<std::string> FilesOf(const fs::path& store) {
    std::set<std::string> files;
    for (const auto& entry : fs::directory_iterator(store / "db")) {
      if (entry.path().extension() == ".sst") files.insert(entry.path().filename());
    }
    return files;
  }

  std::string earlier_, replaced_;
  std::vector<std::string> new_files_;  // of the save that replaced the other
};

TEST_F(ReplacedStepTest, ABackupBringsBackTheLaterSave) {
  const fs::path store = NewStoreOfReplaced();
  const auto report = RepairStore(store, {.dry_run = false, .from = later_backup_, .progress = {}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11, 12));
  for (const auto& step : report->kept) {
    EXPECT_EQ(step.is_from_backup, step.id.step == 11);
    EXPECT_EQ(step.doubts.empty(), !step.is_from_backup);
  }
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_TRUE(ReadStep(*reader, {"main", 11}).value().data == replaced_);
  EXPECT_EQ(reader->FindTag("main", "newest").value(), 11u);
  EXPECT_THAT(ReadStep(*reader, {"main", 10}).value().facts, ::testing::HasSubstr("loss=0.25"));
}

// The backup has step 12, which was dropped since then. What the store says of other steps is
// newer.
TEST_F(LostNoteTest, AnEarlierBackupBringsNoEarlierTagsAndMetrics) {
  const fs::path store = NewStore();
  store_ = Store::Open(store).value();
  VARVE_ASSERT_OK(DropSteps({12}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  VARVE_ASSERT_OK(store_->SetTag({"main", 10}, "newest"));
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 10}, {{"loss", 0.75}}));
  store_.reset();
  fs::remove(store / "SYNCED");
  fs::remove(store / "db" / ManifestOf(store));
  const auto report = RepairStore(store, {.dry_run = false, .from = later_backup_, .progress = {}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_THAT(report->warnings[0],
              ::testing::StartsWith("the newest steps, drops and tags may be"));
  for (const auto& step : report->kept) EXPECT_EQ(step.is_from_backup, step.id.step == 12);
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_EQ(reader->FindTag("main", "newest").value(), 10u);
  EXPECT_THAT(ReadStep(*reader, {"main", 10}).value().facts, ::testing::HasSubstr("loss=0.75"));
}

TEST_F(ReplacedStepTest, TheEarlierSaveIsKeptIfTheBackupIsDamaged) {
  const fs::path store = NewStoreOfReplaced();
  const auto largest = std::ranges::max_element(new_files_, {}, [&](const std::string& file) {
    const fs::path path = later_backup_ / "db" / file;
    return fs::exists(path) ? fs::file_size(path) : 0;
  });
  ASSERT_NE(largest, new_files_.end());
  Inflict(Damage::kFirstBlock, later_backup_ / "db" / *largest);
  const auto report = RepairStore(store, {.dry_run = false, .from = later_backup_, .progress = {}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11, 12));
  for (const auto& step : report->kept) {
    EXPECT_FALSE(step.is_from_backup);
    if (step.id.step != 11) continue;
    EXPECT_THAT(step.doubts, ::testing::Contains(::testing::HasSubstr("it is an earlier save")));
  }
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_TRUE(ReadStep(*reader, {"main", 11}).value().data == earlier_);
}

// The other way round: the copy shows that the manifest has lost its end.
TEST_F(LostNoteTest, AManifestThatIsShorterThanItsCopyIsDamaged) {
  const fs::path store = NewStore();
  for (const std::string& cut : {before_, before_.substr(0, before_.size() / 2)}) {
    const fs::path copy = store.string() + "-copy";
    fs::remove_all(copy);
    fs::copy(store, copy, fs::copy_options::recursive);
    Overwrite(copy / "db" / manifest_, cut);
    const auto report = RepairStore(copy);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_TRUE(NamesTable(*report, manifest_));
    EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11, 12));
  }
}

// Neither a note nor a copy: what lies before the bad record is kept, and the report warns.
TEST_F(LostNoteTest, ABadRecordWithoutACopyEndsTheManifest) {
  const fs::path store = NewStore();
  fs::remove_all(store / "spare");
  std::string log = Slurp(store / "db" / manifest_);
  log[before_.size() + 20] ^= 1;
  Overwrite(store / "db" / manifest_, log);
  EXPECT_EQ(Store::Open(store).status().code(), StatusCode::kCorruption);
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Kept(*report), ::testing::ElementsAre(10, 11));
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_THAT(report->warnings[0], ::testing::HasSubstr("table files of db/ are not named"));
}

}  // namespace
}  // namespace varve::internal::testing
