// SPDX-License-Identifier: Apache-2.0
//
// What can be read of a lost step is kept in another run, when that is asked for.
#include <functional>

#include "codec/predict/rounded_copy.h"
#include "tests/store/repair_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDamagedRun[] = "main~damaged";

class PartialRepairTest : public RepairTest {
 protected:
  // A copy of the store without the table of the chunks of its newest step, which is main@4. Of
  // that step only "same" can be read, because the first step stored its chunks.
  fs::path NewDamaged() {
    const fs::path store = NewCopy();
    fs::remove(store / "db" / NewestChunks());
    return store;
  }

  // Saves step 10 of "main", and returns a copy of the store with a flipped bit in the first frame
  // of that save.
  fs::path SaveAndDamage(const std::function<void(CheckpointWriter&)>& put) {
    Reopen();
    auto writer = store_->Begin(10).value();
    put(*writer);
    VARVE_EXPECT_OK(writer->Commit().status());
    store_.reset();
    const fs::path store = NewCopy();
    FlipBit(store / "db" / NewestChunks(), 1000);
    return store;
  }

  // The name of the newest table file of a family.
  std::string NewestTable(Family family) {
    Reopen();
    std::string newest;
    for (const TableFile& file : FilesOf(family)) {
      newest = std::max(newest, file.path.filename().string());
    }
    store_.reset();
    return newest;
  }

  // Repairs the store, which then checks clean and can be written. A dry run has found the same.
  RepairReport Repair(const fs::path& store, RepairOptions options = {.keep_partial = true}) {
    options.dry_run = true;
    const auto dry = RepairStore(store, options);
    EXPECT_TRUE(dry.ok()) << dry.status().ToString();
    options.dry_run = false;
    const auto report = RepairStore(store, options);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    if (!dry.ok() || !report.ok()) return {};
    EXPECT_EQ(dry->lost.size(), report->lost.size());
    EXPECT_EQ(dry->warnings, report->warnings);
    EXPECT_EQ(dry->partial.size(), report->partial.size());
    for (size_t i = 0; i < std::min(dry->partial.size(), report->partial.size()); ++i) {
      EXPECT_EQ(dry->partial[i].id, report->partial[i].id);
      EXPECT_EQ(dry->partial[i].run, report->partial[i].run);
      EXPECT_EQ(dry->partial[i].kept_tensors, report->partial[i].kept_tensors);
      EXPECT_EQ(dry->partial[i].lost_tensors, report->partial[i].lost_tensors);
      EXPECT_EQ(dry->partial[i].other_losses, report->partial[i].other_losses);
    }
    ExpectSound(store, options.key, report->kept.size() + report->partial.size());
    return *report;
  }

  static void ExpectSound(const fs::path& store, const std::string& key, uint64_t num_steps) {
    const auto opened = Store::Open(store, {.key = key});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    const auto check = (*opened)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, IsEmpty());
    EXPECT_EQ(check->num_steps, num_steps);
    auto writer = (*opened)->Begin(1000, {.run = kDamagedRun});
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    const TestTensor tensor = RandomTensor("new", DType::kU8, {3000}, 1);
    VARVE_ASSERT_OK((*writer)->Put(tensor.view()));
    VARVE_EXPECT_OK((*writer)->Commit().status());
  }

  // Step 10 was kept in part, with these tensors.
  static void ExpectKept(const fs::path& store, const RepairReport& report,
                         const std::vector<std::string>& kept,
                         const std::vector<std::string>& lost) {
    ASSERT_EQ(report.partial.size(), 1u);
    EXPECT_EQ(report.partial[0].id, (CheckpointId{"main", 10}));
    EXPECT_EQ(report.partial[0].run, kDamagedRun);
    EXPECT_EQ(report.partial[0].kept_tensors, kept);
    EXPECT_EQ(report.partial[0].lost_tensors, lost);
    const auto reader = Store::OpenForReading(store).value();
    EXPECT_EQ(reader->OpenCheckpoint("main", 10).status().code(), StatusCode::kNotFound);
    const auto part = reader->OpenCheckpoint(kDamagedRun, 10);
    ASSERT_TRUE(part.ok()) << part.status().ToString();
    std::vector<std::string> names;
    for (const TensorInfo& tensor : (*part)->List().value()) names.push_back(tensor.name);
    EXPECT_EQ(names, kept);
  }
};

TEST_F(PartialRepairTest, WhatCanBeReadOfALostStepIsKeptInAnotherRun) {
  const fs::path store = NewDamaged();
  const RepairReport report = Repair(store);
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_EQ(report.lost[0].id, (CheckpointId{"main", 4}));
  EXPECT_EQ(report.kept.size(), whole_.size() - 1);
  ASSERT_EQ(report.partial.size(), 1u);
  const RepairReport::PartialStep& part = report.partial[0];
  EXPECT_EQ(part.id, (CheckpointId{"main", 4}));
  EXPECT_EQ(part.run, kDamagedRun);
  EXPECT_THAT(part.kept_tensors, ElementsAre("same"));
  EXPECT_THAT(part.lost_tensors, ElementsAre("noise", "w"));
  EXPECT_THAT(part.other_losses, IsEmpty());
  EXPECT_THAT(part.doubts, IsEmpty());
  EXPECT_FALSE(part.is_from_backup);

  const auto reader = Store::OpenForReading(store).value();
  EXPECT_EQ(reader->OpenCheckpoint("main", 4).status().code(), StatusCode::kNotFound);
  const auto text = ReadStep(*reader, {kDamagedRun, 4});
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const StepText& whole = whole_.at({"main", 4});
  const TestTensor same = RandomTensor("same", DType::kU8, {40000}, 77);
  EXPECT_TRUE(text->data == "same:" + std::string(AsString(same.bytes)) + "note:note 4");
  // The time, the parent, the metrics, the progress and the topology are those of the lost step.
  const auto without_bytes = [](const std::string& facts) {
    const size_t at = facts.find(' ');
    return facts.substr(0, at) + facts.substr(facts.find(' ', at + 1));
  };
  EXPECT_EQ(without_bytes(text->facts), without_bytes(whole.facts));
}

TEST_F(PartialRepairTest, WithoutTheOptionNothingIsKeptInPart) {
  const fs::path store = NewDamaged();
  const RepairReport report = Repair(store, {});
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_TRUE(report.lost[0].has_readable_tensors);
  EXPECT_THAT(report.partial, IsEmpty());
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_EQ(reader->OpenCheckpoint(kDamagedRun, 4).status().code(), StatusCode::kNotFound);
}

TEST_F(PartialRepairTest, NamesThatAreTakenAreNotUsed) {
  Reopen();
  VARVE_ASSERT_OK(store_->Fork("main", kDamagedRun, 1).status());
  store_.reset();
  const fs::path store = NewDamaged();
  const RepairReport report = Repair(store);
  ASSERT_EQ(report.partial.size(), 1u);
  EXPECT_EQ(report.partial[0].run, "main~damaged2");
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_TRUE(reader->OpenCheckpoint("main~damaged2", 4).ok());
  EXPECT_TRUE(reader->OpenCheckpoint(kDamagedRun, 1).ok());
}

// The names of two runs differ only at their ends, and the ends are cut off.
TEST_F(PartialRepairTest, LongNamesAreCut) {
  const std::string start = std::string(1011, 'r') + "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4";
  const auto before = DbFiles();
  for (const uint64_t step : {7, 8}) {
    Reopen();
    SaveStep(start + std::to_string(step), step);
  }
  store_.reset();
  const fs::path store = NewCopy();
  for (const std::string& file : DbFiles()) {
    const bool is_new = file.ends_with(".sst") && std::ranges::count(before, file) == 0;
    if (is_new && fs::file_size(store / "db" / file) > 10000) fs::remove(store / "db" / file);
  }
  const RepairReport report = Repair(store);
  ASSERT_EQ(report.partial.size(), 2u);
  EXPECT_EQ(report.partial[0].run, start.substr(0, 1015) + "~damaged");
  EXPECT_EQ(report.partial[1].run, start.substr(0, 1015) + "~damaged2");
}

TEST_F(PartialRepairTest, AShardedTensorIsKeptOnlyWhole) {
  const TestTensor rows[] = {RandomTensor("rows", DType::kU8, {200000}, 1),
                             RandomTensor("rows", DType::kU8, {200000}, 2)};
  const TestTensor parts[] = {RandomTensor("parts", DType::kU8, {200000}, 3),
                              RandomTensor("parts", DType::kU8, {200000}, 4)};
  const auto put = [&](CheckpointWriter& writer) {
    for (const auto* const tensors : {rows, parts}) {
      for (uint32_t shard = 0; shard < 2; ++shard) {
        ShardLayout layout = ShardLayout::Whole({400000});
        layout.axes[0] = {{200000 * static_cast<int64_t>(shard), 200000}};
        TensorView view = tensors[shard].view();
        view.shard = shard;
        view.layout = &layout;
        VARVE_EXPECT_OK(writer.Put(view));
      }
    }
  };
  const fs::path store = SaveAndDamage(put);
  const RepairReport report = Repair(store);
  ExpectKept(store, report, {"parts"}, {"rows"});
  const auto reader = Store::OpenForReading(store).value();
  const auto part = reader->OpenCheckpoint(kDamagedRun, 10).value();
  std::vector<std::byte> out(400000);
  VARVE_ASSERT_OK(part->Read("parts", out));
  EXPECT_TRUE(AsString(out) ==
              std::string(AsString(parts[0].bytes)) + std::string(AsString(parts[1].bytes)));
  EXPECT_EQ(part->ListShards().value().size(), 2u);
}

// All chunks of the tensors are there.
TEST_F(PartialRepairTest, AShardWhoseRecordIsLostTakesItsTensor) {
  const TestTensor half = RandomTensor("rows", DType::kU8, {3000}, 1);
  Reopen();
  auto writer = store_->Begin(10).value();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    ShardLayout layout = ShardLayout::Whole({6000});
    layout.axes[0] = {{3000 * static_cast<int64_t>(shard), 3000}};
    TensorView view = half.view();
    view.shard = shard;
    view.layout = &layout;
    VARVE_ASSERT_OK(writer->Put(view));
  }
  const TestTensor other = RandomTensor("other", DType::kU8, {3000}, 2);
  VARVE_ASSERT_OK(writer->Put(other.view()));
  VARVE_ASSERT_OK(writer->Commit().status());
  const RunId run = impl()->FindRun("main").value().id;
  Change(Family::kTensors, keys::Tensor({run, 10}, "rows", 1), std::nullopt);
  store_.reset();
  const fs::path store = NewCopy();
  const RepairReport report = Repair(store);
  ExpectKept(store, report, {"other"}, {"rows"});
  EXPECT_THAT(report.partial[0].other_losses,
              ElementsAre("the records of 1 of 3 tensors and shards"));
}

// A rounded copy is made of its master when it is read. One that is no rounded copy stands alone.
TEST_F(PartialRepairTest, WhatIsMadeOfALostMasterIsLostWithIt) {
  const TestTensor master = RandomTensor("master", DType::kF32, {100000}, 5);
  TestTensor rounded{"model", DType::kBF16, {100000}, {}, "master"};
  rounded.bytes.resize(200000);
  MakeRoundedCopy(DType::kBF16, master.bytes, rounded.bytes);
  TestTensor other = RandomTensor("other", DType::kBF16, {100000}, 6);
  other.derived_from = "master";
  const auto put = [&](CheckpointWriter& writer) {
    VARVE_EXPECT_OK(writer.Put(master.view()));
    VARVE_EXPECT_OK(writer.Put(rounded.view()));
    VARVE_EXPECT_OK(writer.Put(other.view()));
  };
  const fs::path store = SaveAndDamage(put);
  const RepairReport report = Repair(store);
  ExpectKept(store, report, {"other"}, {"master", "model"});
  const auto reader = Store::OpenForReading(store).value();
  std::vector<std::byte> out(200000);
  VARVE_ASSERT_OK(reader->OpenCheckpoint(kDamagedRun, 10).value()->Read("other", out));
  EXPECT_TRUE(out == other.bytes);
}

// A block of records cannot be read. What lies before and behind it is kept.
TEST_F(PartialRepairTest, ABlockOfRecordsTakesOnlyItsOwnTensors) {
  constexpr int kTensors = 400;
  const auto name = [](int i) { return "tensor." + std::to_string(1000 + i); };
  std::vector<TestTensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back(RandomTensor(name(i), DType::kU8, {64}, static_cast<uint64_t>(i)));
  }
  Reopen();
  VARVE_ASSERT_OK(Save(9, tensors).status());
  VARVE_ASSERT_OK(Save(10, tensors).status());
  store_.reset();
  const std::string table = NewestTable(Family::kTensors);
  const fs::path store = NewCopy(), damaged = store / "db" / table;
  FlipBit(damaged, fs::file_size(damaged) / 2);
  const RepairReport report = Repair(store);
  ASSERT_EQ(report.partial.size(), 1u);
  const RepairReport::PartialStep& part = report.partial[0];
  EXPECT_THAT(part.kept_tensors, ::testing::Contains(name(0)));
  EXPECT_THAT(part.kept_tensors, ::testing::Contains(name(kTensors - 1)));
  EXPECT_EQ(part.kept_tensors.size() + part.lost_tensors.size(), size_t{kTensors});
  EXPECT_THAT(part.lost_tensors, ::testing::SizeIs(::testing::Gt(0u)));
  EXPECT_THAT(part.other_losses, ElementsAre(HasSubstr(" of 400 tensors and shards")));
  const auto reader = Store::OpenForReading(store).value();
  const auto kept = reader->OpenCheckpoint(kDamagedRun, 10).value();
  EXPECT_EQ(kept->List().value().size(), part.kept_tensors.size());
  EXPECT_TRUE(reader->OpenCheckpoint("main", 9).ok());
}

// All tensors can be read, and an item cannot.
TEST_F(PartialRepairTest, ALostItemLeavesTheTensors) {
  const std::string table = NewestTable(Family::kState);
  const fs::path store = NewCopy();
  fs::remove(store / "db" / table);
  const RepairReport report = Repair(store);
  ASSERT_EQ(report.partial.size(), 1u);
  const RepairReport::PartialStep& part = report.partial[0];
  EXPECT_THAT(part.kept_tensors, ElementsAre("noise", "same", "w"));
  EXPECT_THAT(part.lost_tensors, IsEmpty());
  EXPECT_THAT(part.other_losses, ElementsAre("1 of 1 items"));
  EXPECT_THAT(part.doubts, ElementsAre(HasSubstr("its trainer progress and topology")));
}

class LostStateTest : public PartialRepairTest {
 protected:
  // A copy of the store without the table of the trainer progress of step 10, which has no item.
  fs::path NewStore() {
    Reopen();
    weights_ = Drifted(weights_, 10);
    auto writer = store_->Begin(10).value();
    VARVE_EXPECT_OK(writer->Put(weights_.view()));
    TrainerProgress progress;
    progress.consumed_samples = 1234;
    VARVE_EXPECT_OK(writer->SetTrainerProgress(progress));
    VARVE_EXPECT_OK(writer->Commit().status());
    facts_ = ReadStep(*store_, {"main", 10}).value().facts;
    store_.reset();
    table_ = NewestTable(Family::kState);
    fs::remove_all(later_);
    VARVE_EXPECT_OK(BackUp(path(), later_).status());
    const fs::path store = NewCopy();
    fs::remove(store / "db" / table_);
    return store;
  }

  const fs::path later_ = folder_.path() / "later";
  std::string table_, facts_;
};

TEST_F(LostStateTest, ABackupGivesTheStateOfTheSameSave) {
  const fs::path store = NewStore();
  const RepairReport report = Repair(store, {.from = later_.string()});
  EXPECT_THAT(report.lost, IsEmpty());
  ASSERT_EQ(report.kept.size(), whole_.size() + 1);
  for (const auto& step : report.kept) {
    EXPECT_EQ(step.is_from_backup, step.id == (CheckpointId{"main", 10}));
    EXPECT_THAT(step.doubts, IsEmpty());
  }
  const auto reader = Store::OpenForReading(store).value();
  EXPECT_EQ(ReadStep(*reader, {"main", 10}).value().facts, facts_);
}

// The backup has the save of step 10 before the one whose state is lost.
TEST_F(LostStateTest, AnEarlierSaveOfABackupIsNotTaken) {
  NewStore();
  Reopen();
  weights_ = Drifted(weights_, 11);
  auto writer = store_->Begin(10, {.on_existing = OnExisting::kReplace}).value();
  VARVE_ASSERT_OK(writer->Put(weights_.view()));
  VARVE_ASSERT_OK(writer->SetTrainerProgress({}));
  VARVE_ASSERT_OK(writer->Commit().status());
  store_.reset();
  const std::string table = NewestTable(Family::kState);
  ASSERT_NE(table, table_);
  const fs::path store = NewCopy();
  fs::remove(store / "db" / table);
  const RepairReport report = Repair(store, {.from = later_.string()});
  EXPECT_EQ(report.kept.size() + report.lost.size(), whole_.size() + 1);
  for (const auto& step : report.kept) {
    EXPECT_FALSE(step.is_from_backup && step.id == (CheckpointId{"main", 10}));
  }
}

// So the view is the best that there is.
TEST_F(LostStateTest, ADamagedBackupLeavesTheStepInDoubt) {
  const fs::path store = NewStore();
  for (const auto& entry : fs::directory_iterator(later_ / "db")) {
    const bool has_chunks = entry.path().extension() == ".sst" && entry.file_size() > 10000;
    if (has_chunks) fs::remove(entry.path());
  }
  const RepairReport report = Repair(store, {.from = later_.string()});
  EXPECT_THAT(report.lost, IsEmpty());
  ASSERT_EQ(report.kept.size(), whole_.size() + 1);
  for (const auto& step : report.kept) {
    EXPECT_FALSE(step.is_from_backup);
    if (step.id == (CheckpointId{"main", 10})) {
      EXPECT_THAT(step.doubts, ElementsAre(HasSubstr("its trainer progress and topology")));
    }
  }
}

// Nothing says which tensors a step had whose record is lost, or all of whose tensors are.
TEST_F(PartialRepairTest, AStepWithoutReadableTensorsIsNotKept) {
  for (const Family family : {Family::kSteps, Family::kTensors}) {
    Reopen();
    const auto tables = FilesOf(family);
    store_.reset();
    const fs::path store = NewCopy();
    for (const TableFile& table : tables) fs::remove(store / "db" / table.path.filename());
    const RepairReport report = Repair(store);
    ASSERT_FALSE(report.lost.empty());
    for (const auto& lost : report.lost) EXPECT_FALSE(lost.has_readable_tensors);
    EXPECT_THAT(report.partial, IsEmpty());
  }
}

// The backup has the lost step, so nothing of it is kept in part.
TEST_F(PartialRepairTest, AWholeStepOfABackupComesFirst) {
  const fs::path store = NewDamaged();
  const RepairReport report = Repair(store, {.keep_partial = true, .from = backup_.string()});
  EXPECT_THAT(report.lost, IsEmpty());
  EXPECT_THAT(report.partial, IsEmpty());
}

// The damaged store has nothing of the step, and the backup has a part of it.
TEST_F(PartialRepairTest, APartOfABackupIsKept) {
  const std::string table = NewestTable(Family::kTensors);
  const fs::path store = NewCopy(), damaged_backup = folder_.path() / "cases" / "backup";
  fs::copy(backup_, damaged_backup, fs::copy_options::recursive);
  fs::remove(damaged_backup / "db" / NewestChunks());
  fs::remove(store / "db" / table);
  const RepairReport report =
      Repair(store, {.keep_partial = true, .from = damaged_backup.string()});
  ASSERT_EQ(report.partial.size(), 1u);
  EXPECT_TRUE(report.partial[0].is_from_backup);
  EXPECT_THAT(report.partial[0].kept_tensors, ElementsAre("same"));
}

TEST_F(PartialRepairTest, APartOfASealedStoreIsSealed) {
  const std::string key(32, 'k');
  Reset({.store = {.key = key}});
  SaveStep("main", 9);
  SaveStep("main", 10);
  store_.reset();
  const fs::path store = NewCopy();
  FlipBit(store / "db" / NewestChunks(), 1000);
  const RepairReport report = Repair(store, {.keep_partial = true, .key = key});
  ExpectKept(store, report, {"same"}, {"noise", "w"});
  const auto sealed = Store::OpenForReading(store, {.key = key}).value()->Check({});
  ASSERT_TRUE(sealed.ok()) << sealed.status().ToString();
  EXPECT_TRUE(sealed->is_sealed);
}

}  // namespace
}  // namespace varve::internal::testing
