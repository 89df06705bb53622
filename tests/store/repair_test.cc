// SPDX-License-Identifier: Apache-2.0
//
// A damaged store is repaired: every step that the damaged store can still read is kept bit for
// bit, what is lost is named, and the damaged store stays as it was. A repair that is killed leaves
// the store as it was, or repaired.
#include "varve/repair.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "base/util.h"
#include "store/db/salvage_view.h"
#include "store/format/format_file.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kChildVariable[] = "VARVE_TEST_REPAIR";

std::string Slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The bytes of all files below a folder, but for the lock of the database, which is empty.
std::map<std::string, std::string> Contents(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "LOCK") continue;
    contents[fs::relative(entry.path(), folder)] = Slurp(entry.path());
  }
  return contents;
}

enum class Damage { kRemoved, kHalf, kZeros, kFirstBlock, kMiddle, kTail, kEmpty };
constexpr Damage kDamages[] = {Damage::kRemoved, Damage::kHalf, Damage::kZeros, Damage::kFirstBlock,
                               Damage::kMiddle,  Damage::kTail, Damage::kEmpty};

void FlipBit(const fs::path& file, uint64_t at) {
  std::string bytes = Slurp(file);
  if (bytes.empty()) return;
  bytes[std::min<uint64_t>(at, bytes.size() - 1)] ^= 0x10;
  std::ofstream(file, std::ios::binary) << bytes;
}

void Inflict(Damage damage, const fs::path& file) {
  const uint64_t size = fs::file_size(file);
  switch (damage) {
    case Damage::kRemoved:
      fs::remove(file);
      break;
    case Damage::kHalf:
      fs::resize_file(file, size / 2);
      break;
    case Damage::kZeros: {
      const uint64_t kept = size > 4096 ? size - 4096 : 0;
      fs::resize_file(file, kept);
      fs::resize_file(file, size);
      break;
    }
    case Damage::kFirstBlock:
      FlipBit(file, 17);
      break;
    case Damage::kMiddle:
      FlipBit(file, size / 2);
      break;
    case Damage::kTail:
      FlipBit(file, size - std::min<uint64_t>(size, 220));
      break;
    case Damage::kEmpty:
      fs::resize_file(file, 0);
      break;
  }
}

// All of a step that no digest covers, then all that one does.
struct StepText {
  std::string facts;
  std::string data;
  bool operator==(const StepText&) const = default;
};

Result<StepText> ReadStep(const Store& store, const CheckpointId& id) {
  StepText step;
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
  std::ostringstream facts;
  const CheckpointInfo& info = reader->info();
  facts << info.created.time_since_epoch().count() << " " << info.logical_bytes;
  if (info.parent.has_value()) facts << " of " << info.parent->run << "@" << info.parent->step;
  for (const auto& [name, value] : info.metrics) facts << " " << name << "=" << value;
  for (const std::string& tag : info.tags) facts << " " << tag;
  VARVE_ASSIGN_OR_RETURN(const auto progress, reader->ReadTrainerProgress());
  facts << " progress " << (progress.has_value() ? progress->consumed_samples : -1);
  VARVE_ASSIGN_OR_RETURN(const auto topology, reader->ReadTopology());
  facts << " dp " << (topology.has_value() ? topology->dp : 0);
  step.facts = facts.str();
  VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
  for (const TensorInfo& tensor : list) {
    std::vector<std::byte> out(tensor.logical_bytes);
    VARVE_RETURN_IF_ERROR(reader->Read(tensor.name, out));
    step.data += tensor.name + ":";
    step.data += AsString(out);
  }
  VARVE_ASSIGN_OR_RETURN(const auto items, reader->ListBytes());
  for (const std::string& item : items) {
    VARVE_ASSIGN_OR_RETURN(const auto bytes, reader->ReadBytes(item));
    step.data += item + ":";
    step.data += AsString(bytes);
  }
  return step;
}

using Steps = std::map<std::pair<std::string, uint64_t>, StepText>;

class RepairTest : public InternalsTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    expect_damage_ = true;
    weights_ = NormalTensor("w", {60000}, 1);
    SaveStep("main", 1);
    SaveStep("main", 2);
    VARVE_ASSERT_OK(store_->Fork("main", "fork", 2).status());
    Reopen();  // the save ids go on in another block, as another file
    SaveStep("main", 3);
    SaveStep("fork", 3);
    SaveStep("main", 4);
    VARVE_ASSERT_OK(store_->SetTag({"main", 2}, "good"));
    VARVE_ASSERT_OK(store_->SetMetrics({"main", 3}, {{"loss", 0.5}}));
    store_.reset();
    fs::remove(path() / "RESERVE");  // it would only be copied
    VARVE_ASSERT_OK(BackUp(path(), backup_).status());
    const auto reader = Store::OpenForReading(path()).value();
    for (const RunInfo& run : reader->ListRuns().value()) {
      for (const CheckpointInfo& info : reader->ListCheckpoints(run.name).value()) {
        whole_[{info.id.run, info.id.step}] = ReadStep(*reader, info.id).value();
      }
    }
    ASSERT_EQ(whole_.size(), 6u);
  }

  void SaveStep(const std::string& run, uint64_t step,
                OnExisting on_existing = OnExisting::kError) {
    weights_ = Drifted(weights_, step);
    const TestTensor noise = RandomTensor("noise", DType::kU8, {3000}, step);
    const TestTensor same = RandomTensor("same", DType::kU8, {40000}, 77);
    auto writer = store_->Begin(step, {.run = run, .on_existing = on_existing}).value();
    VARVE_ASSERT_OK(writer->Put(weights_.view()));
    VARVE_ASSERT_OK(writer->Put(noise.view()));
    VARVE_ASSERT_OK(writer->Put(same.view()));
    VARVE_ASSERT_OK(writer->PutBytes("note", AsBytes("note " + std::to_string(step))));
    TrainerProgress progress;
    progress.consumed_samples = static_cast<int64_t>(step) * 100;
    VARVE_ASSERT_OK(writer->SetTrainerProgress(progress));
    Topology topology;
    topology.dp = 2;
    VARVE_ASSERT_OK(writer->SetTopology(topology));
    VARVE_ASSERT_OK(writer->SetMetric("step", static_cast<double>(step)));
    VARVE_ASSERT_OK(writer->Commit().status());
  }

  // A copy of the store for one case, with nothing of the last case beside it.
  fs::path NewCopy() {
    const fs::path cases = folder_.path() / "cases";
    fs::remove_all(cases);
    fs::create_directory(cases);
    fs::copy(path(), cases / "store", fs::copy_options::recursive);
    return cases / "store";
  }

  std::vector<std::string> DbFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      files.push_back(entry.path().filename());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  // One damage of a table, and all of CURRENT and the manifest. All are tried on some table.
  std::vector<Damage> DamagesOf(size_t i) const {
    const std::string file = DbFiles()[i];
    if (file == "CURRENT" || file.starts_with("MANIFEST-")) {
      return {std::begin(kDamages), std::end(kDamages)};
    }
    return {kDamages[i % std::size(kDamages)]};
  }

  // The one of the most chunks.
  std::string LargestTable() const {
    const auto files = DbFiles();
    return *std::ranges::max_element(files, {}, [&](const std::string& file) {
      return file.ends_with(".sst") ? fs::file_size(path() / "db" / file) : 0;
    });
  }

  // The table of the chunks of the last save, on which no other step depends.
  std::string NewestChunks() const {
    constexpr uint64_t kMoreThanRecords = 10000;
    std::string newest;
    for (const std::string& file : DbFiles()) {
      if (!file.ends_with(".sst")) continue;
      if (fs::file_size(path() / "db" / file) > kMoreThanRecords) newest = file;
    }
    return newest;
  }

  // Steps that a reader of the store can read whole.
  Steps ReadAll(const fs::path& store) const {
    Steps steps;
    const auto reader = Store::OpenForReading(store);
    if (!reader.ok()) return steps;
    for (const auto& [id, text] : whole_) {
      const auto step = ReadStep(**reader, {id.first, id.second});
      if (step.ok()) steps[id] = *step;
    }
    return steps;
  }

  static std::string ManifestOf(const fs::path& store) {
    const std::string current = Slurp(store / "db" / "CURRENT");
    return current.substr(0, current.find('\n'));
  }

  static bool NamesTable(const RepairReport& report, const std::string& file) {
    return std::ranges::any_of(report.damage, [&](const std::string& text) {
      return text.find(file) != std::string::npos;
    });
  }

  // The repaired store is sound and can be written, and holds what the report says.
  void ExpectRepaired(const fs::path& store, const RepairReport& report) {
    const auto warns = [&](std::string_view start) {
      return std::ranges::any_of(report.warnings,
                                 [&](const std::string& text) { return text.starts_with(start); });
    };
    const bool lost_names = warns("the name of run"), lost_tags = warns("names of runs");
    auto opened = Store::Open(store);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    const auto check = (*opened)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    EXPECT_EQ(check->num_steps, report.kept.size());
    for (const RepairReport::KeptStep& step : report.kept) {
      const auto text = ReadStep(**opened, step.id);
      ASSERT_TRUE(text.ok()) << text.status().ToString();
      if (lost_names) continue;  // which run is which is not known
      const StepText& whole = whole_.at({step.id.run, step.id.step});
      EXPECT_EQ(text->data == whole.data, true) << StepName(step.id.run, step.id.step);
      if (step.doubts.empty() && !lost_tags) {
        EXPECT_EQ(text->facts, whole.facts) << StepName(step.id.run, step.id.step);
      }
    }
    auto writer = (*opened)->Begin(1000, {.run = "main"});
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    VARVE_ASSERT_OK((*writer)->Put(weights_.view()));
    VARVE_EXPECT_OK((*writer)->Commit().status());
  }

  const fs::path backup_ = folder_.path() / "backup";
  TestTensor weights_;
  Steps whole_;
};

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
  EXPECT_TRUE(RepairStore(store).ok());
}

TEST_F(RepairTest, KilledAtAnyMomentItLeavesTheStoreAsItWasOrRepaired) {
  const std::string table = NewestChunks();
  int killed = 0, finished = 0;
  for (int delay_ms = 1; finished < 2 && delay_ms < 20000; delay_ms += 1 + delay_ms) {
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
    const auto again = RepairStore(store);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->damage.empty(), !is_untouched);
    EXPECT_FALSE(fs::exists(store.string() + "~repair"));
    EXPECT_TRUE(Contents(store.string() + "~damaged") == before);
    const auto repaired = Store::OpenForReading(store);
    ASSERT_TRUE(repaired.ok()) << repaired.status().ToString();
    const auto check = (*repaired)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    EXPECT_GT(check->num_steps, 0u);
  }
  EXPECT_GT(killed, 0);
  EXPECT_GT(finished, 0);
}

// A crash may leave part of a record at the end of a manifest, and a block may have no room for the
// header of the next record.
TEST(ManifestTest, TablesAreTakenOutBehindTheLastWholeRecord) {
  DamagedTable table;
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
  const std::vector<DamagedTable> tables(8000, table);
  const std::string many = WithoutTables("", tables);
  ASSERT_GT(many.size(), size_t{3} * 32768);
  EXPECT_EQ(WithoutTables(many, {}), many);  // every record of three blocks is whole
}

}  // namespace
}  // namespace varve::internal::testing
