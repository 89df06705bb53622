// SPDX-License-Identifier: Apache-2.0
//
// A file of the database is lost or cut: an answer is complete, or an error that names the file,
// and a check finds whatever would keep a writer out.
#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "base/util.h"
#include "store/db/manifest_log.h"
#include "tests/store/internals.h"
#include "tests/support/comes_true.h"
#include "varve/repair.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// One line for each question: what it asks for, and the answer.
using Answers = std::map<std::string, Result<std::string>>;

Result<std::string> DescribeRuns(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  std::ostringstream text;
  for (const RunInfo& run : runs) text << run.name << " " << run.num_steps << "\n";
  return text.str();
}

Result<std::string> DescribeSteps(const Store& store, const std::string& run) {
  VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run));
  std::ostringstream text;
  for (const CheckpointInfo& step : steps) {
    text << step.id.step << " " << step.num_tensors << " " << step.stored_bytes;
    for (const auto& [name, value] : step.metrics) text << " " << name << "=" << value;
    for (const std::string& tag : step.tags) text << " " << tag;
    text << "\n";
  }
  VARVE_ASSIGN_OR_RETURN(const auto latest, store.LatestStep(run));
  text << "latest " << latest.value_or(0);
  return text.str();
}

Result<std::string> DescribeStats(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const StoreStats stats, store.Stats());
  if (!stats.warnings.empty()) return Status::Corruption(stats.warnings.front());
  std::ostringstream text;
  text << stats.num_runs << " " << stats.num_steps << " " << stats.num_chunks << " "
       << stats.logical_bytes << " " << stats.stored_bytes << " " << stats.pending_bytes;
  return text.str();
}

Result<std::string> DescribeTensors(const Store& store, const std::string& run, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run, step));
  VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
  std::ostringstream text;
  for (const TensorInfo& tensor : list) text << tensor.name << " " << tensor.logical_bytes << "\n";
  VARVE_ASSIGN_OR_RETURN(const auto items, reader->ListBytes());
  for (const std::string& item : items) text << item << "\n";
  return text.str();
}

Result<std::string> ReadAll(const Store& store, const std::string& run, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run, step));
  VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
  std::string all;
  for (const TensorInfo& tensor : list) {
    std::vector<std::byte> out(tensor.logical_bytes);
    VARVE_RETURN_IF_ERROR(reader->Read(tensor.name, out));
    all.append(reinterpret_cast<const char*>(out.data()), out.size());
  }
  VARVE_ASSIGN_OR_RETURN(const auto item, reader->ReadBytes("note"));
  all.append(reinterpret_cast<const char*>(item.data()), item.size());
  return all;
}

Result<std::string> DescribeLog(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const auto changes, store.Log("main", "w"));
  std::ostringstream text;
  for (const TensorChange& change : changes) text << change.changed_bytes << "\n";
  return text.str();
}

Result<std::string> DescribeForecast(const Store& store) {
  std::vector<CheckpointId> ids;
  for (const std::string run : {"main", "fork"}) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run));
    for (const CheckpointInfo& step : steps) ids.push_back(step.id);
  }
  VARVE_ASSIGN_OR_RETURN(const DropForecast forecast, store.ForecastDrop(ids));
  if (!forecast.warnings.empty()) return Status::Corruption(forecast.warnings.front());
  return std::to_string(forecast.freed_now) + " " + std::to_string(forecast.freed_later);
}

Answers Ask(const Store& store) {
  Answers answers;
  answers.emplace("runs", DescribeRuns(store));
  answers.emplace("stats", DescribeStats(store));
  answers.emplace("log", DescribeLog(store));
  answers.emplace("forecast", DescribeForecast(store));
  for (const std::string run : {"main", "fork"}) {
    answers.emplace("steps of " + run, DescribeSteps(store, run));
    for (const uint64_t step : {1, 2, 3}) {
      const std::string name = std::to_string(step) + " of " + run;
      answers.emplace("tensors of " + name, DescribeTensors(store, run, step));
      answers.emplace("bytes of " + name, ReadAll(store, run, step));
    }
  }
  return answers;
}

enum class Damage { kRemoved, kHalf, kZeros, kFirstByte };

void Inflict(Damage damage, const fs::path& file) {
  const uint64_t size = fs::file_size(file);
  if (damage == Damage::kRemoved) fs::remove(file);
  if (damage == Damage::kFirstByte) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const int first = stream.get();
    stream.seekp(0).put(static_cast<char>(first ^ 1));
  }
  if (damage == Damage::kHalf) fs::resize_file(file, size / 2);
  if (damage == Damage::kZeros) std::ofstream(file, std::ios::binary) << std::string(size, '\0');
}

class LostTablesTest : public InternalsTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    expect_damage_ = true;
    SaveStep(1);
    Reopen();  // the save ids go on in another block, as another file
    SaveStep(2);
    SaveStep(3);
    VARVE_ASSERT_OK(store_->SetTag({"main", 2}, "good"));
    VARVE_ASSERT_OK(store_->SetMetrics({"main", 3}, {{"loss", 0.5}}));
    VARVE_ASSERT_OK(store_->Fork("main", "fork", 2).status());
    const auto files = FilesOf(Family::kChunks);
    ASSERT_EQ(files.size(), 3u);
    store_.reset();
    auto reader = Store::OpenForReading(path());
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    whole_ = Ask(**reader);
    for (const std::string question : {"forecast", "bytes of 3 of main"}) {
      VARVE_ASSERT_OK(whole_.at(question).status());
    }
    ASSERT_FALSE(whole_.at("forecast")->starts_with("0 ")) << *whole_.at("forecast");
  }

  void SaveStep(uint64_t step) { SaveStep(step, step); }
  void SaveStep(uint64_t step, uint64_t seed) {
    const TestTensor changes = RandomTensor("w", DType::kU8, {40000}, seed);
    const TestTensor same = RandomTensor("same", DType::kU8, {40000}, 77);
    auto writer = store_->Begin(step, {}).value();
    VARVE_ASSERT_OK(writer->Put(changes.view()));
    VARVE_ASSERT_OK(writer->Put(same.view()));
    VARVE_ASSERT_OK(writer->PutBytes("note", AsBytes("note " + std::to_string(step))));
    VARVE_ASSERT_OK(writer->Commit().status());
  }

  // The tables of a family, in the order of the saves.
  std::vector<fs::path> TablesOfSteps(Family family) {
    Reopen();
    std::vector<fs::path> tables;
    for (const TableFile& file : FilesOf(family)) tables.push_back(file.path);
    store_.reset();
    std::ranges::sort(tables);
    EXPECT_GE(tables.size(), 3u);
    return tables;
  }

  std::vector<std::string> DbFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      files.push_back(entry.path().filename());
    }
    return files;
  }

  // Damages a file of the database while it lives.
  class Damaged {
   public:
    Damaged(fs::path file, Damage damage)
        : file_(std::move(file)), saved_(file_.string() + ".saved") {
      fs::rename(file_, saved_);
      fs::copy(saved_, file_);
      Inflict(damage, file_);
    }
    ~Damaged() { fs::rename(saved_, file_); }

   private:
    const fs::path file_, saved_;
  };

  static bool Names(const Status& status, const std::string& file) {
    return status.code() == StatusCode::kCorruption &&
           status.ToString().find(file) != std::string::npos;
  }

  Answers whole_;
};

TEST_F(LostTablesTest, AnAnswerIsWholeOrNamesTheFile) {
  int with_errors = 0, tables = 0;
  for (const std::string& file : DbFiles()) {
    if (!file.ends_with(".sst")) continue;
    ++tables;
    for (const Damage damage : {Damage::kRemoved, Damage::kHalf, Damage::kZeros}) {
      const std::string where = file + " damage " + std::to_string(static_cast<int>(damage));
      const Damaged damaged(path() / "db" / file, damage);
      {
        const auto reader = Store::OpenForReading(path());
        ASSERT_TRUE(reader.ok()) << where << ": " << reader.status().ToString();
        int errors = 0;
        for (const auto& [question, answer] : Ask(**reader)) {
          if (answer.ok()) {
            EXPECT_TRUE(whole_.at(question).ok()) << where << ": " << question;
            if (whole_.at(question).ok()) {
              EXPECT_EQ(*answer, *whole_.at(question)) << where << ": " << question;
            }
          } else if (whole_.at(question).ok()) {
            EXPECT_TRUE(Names(answer.status(), file))
                << where << ": " << question << ": " << answer.status().ToString();
            ++errors;
          }
        }
        if (errors > 0) ++with_errors;
        const auto check = (*reader)->Check({});
        ASSERT_TRUE(check.ok()) << where << ": " << check.status().ToString();
        EXPECT_THAT(check->errors, ::testing::Contains(::testing::HasSubstr(file))) << where;
      }
      EXPECT_EQ(Store::Open(path()).status().code(), StatusCode::kCorruption) << where;
    }
  }
  EXPECT_GE(tables, 15);
  EXPECT_GT(with_errors, tables);
}

TEST_F(LostTablesTest, StepsThatDoNotNeedTheFileAreRead) {
  store_ = Store::Open(path()).value();
  auto files = FilesOf(Family::kChunks);
  store_.reset();
  // Sorts by number, so in the order of the steps.
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  const Damaged damaged(files[1].path, Damage::kRemoved);
  const auto reader = Store::OpenForReading(path()).value();
  const Answers answers = Ask(*reader);
  for (const std::string question : {"bytes of 1 of main", "bytes of 3 of main", "steps of main",
                                     "tensors of 2 of main", "log"}) {
    EXPECT_TRUE(answers.at(question).ok()) << answers.at(question).status().ToString();
  }
  for (const std::string question : {"bytes of 2 of main", "stats"}) {
    const Status status = answers.at(question).status();
    EXPECT_TRUE(Names(status, files[1].path.filename())) << question << ": " << status.ToString();
  }
  const CheckReport check = reader->Check({}).value();
  int chunks = 0;
  for (const std::string& error : check.errors)
    chunks += error.find("lies in no file (") != std::string::npos;
  EXPECT_EQ(chunks, 1);
  EXPECT_EQ(check.damaged_steps, (std::vector<CheckpointId>{{"main", 2}, {"fork", 2}}));
}

// Also where the table lies in level 0, which RocksDB opens whole for every scan.
TEST_F(LostTablesTest, StepsWhoseRecordsLieElsewhereAreRead) {
  for (const Family family : {Family::kTensors, Family::kState}) {
    const std::vector<fs::path> files = TablesOfSteps(family);
    const Damaged damaged(files[1], Damage::kRemoved);
    const auto reader = Store::OpenForReading(path()).value();
    const Answers answers = Ask(*reader);
    for (const std::string question : {"bytes of 1 of main", "bytes of 3 of main",
                                       "tensors of 1 of main", "tensors of 3 of main"}) {
      ASSERT_TRUE(answers.at(question).ok()) << answers.at(question).status().ToString();
      EXPECT_EQ(*answers.at(question), *whole_.at(question));
    }
    const Status status = answers.at("tensors of 2 of main").status();
    EXPECT_TRUE(Names(status, files[1].filename())) << status.ToString();
    const CheckReport check = reader->Check({}).value();
    EXPECT_EQ(check.damaged_steps, (std::vector<CheckpointId>{{"main", 2}}));
  }
}

// A table of the same name and size that another copy of the store has written opens, and all of
// its blocks have their checksums.
TEST_F(LostTablesTest, ATableOfAnotherStoreIsNamed) {
  const fs::path other = folder_.path() / "other";
  fs::copy(path(), other, fs::copy_options::recursive);
  Reopen();
  SaveStep(4);
  store_ = Store::Open(other).value();
  SaveStep(4, /*seed=*/44);
  store_.reset();
  const Answers whole = Ask(*Store::OpenForReading(path()).value());
  const auto bytes_of = [](const fs::path& file) {
    return ReadSmallFile(file, fs::file_size(file)).value();
  };
  int exchanged = 0;
  for (const std::string& file : DbFiles()) {
    const fs::path here = path() / "db" / file, there = other / "db" / file;
    if (!file.ends_with(".sst") || !fs::exists(there)) continue;
    const std::string own = bytes_of(here), foreign = bytes_of(there);
    if (own.size() != foreign.size() || own == foreign) continue;
    SCOPED_TRACE(file);
    ++exchanged;
    fs::remove(here);
    std::ofstream(here, std::ios::binary) << foreign;
    {
      const auto reader = Store::OpenForReading(path());
      ASSERT_TRUE(reader.ok()) << reader.status().ToString();
      for (const auto& [question, answer] : Ask(**reader)) {
        if (!whole.at(question).ok()) continue;
        if (answer.ok()) {
          EXPECT_EQ(*answer, *whole.at(question)) << question;
        } else {
          EXPECT_TRUE(Names(answer.status(), file)) << answer.status().ToString();
        }
      }
      EXPECT_THAT((*reader)->Check({})->errors,
                  ::testing::Contains(::testing::HasSubstr(file + " of family ")));
    }
    EXPECT_TRUE(Names(Store::Open(path()).status(), file));
    const auto plan = RepairStore(path(), {.dry_run = true});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_THAT(plan->damage, ::testing::Contains(::testing::HasSubstr(file)));
    fs::remove(here);
    std::ofstream(here, std::ios::binary) << own;
  }
  EXPECT_GE(exchanged, 3);
}

// What ListCheckpoints does not answer is listed as far as it is known.
TEST_F(LostTablesTest, TheOtherStepsAreListed) {
  {
    const KnownCheckpoints known =
        Store::OpenForReading(path()).value()->ListKnownCheckpoints().value();
    EXPECT_EQ(known.checkpoints.size(), 4u);  // and one of the fork
    EXPECT_TRUE(known.errors.empty());
  }
  for (const Damage damage : {Damage::kRemoved, Damage::kHalf, Damage::kFirstByte}) {
    SCOPED_TRACE(static_cast<int>(damage));
    const std::vector<fs::path> files = TablesOfSteps(Family::kSteps);
    const Damaged damaged(files[1], damage);
    const auto reader = Store::OpenForReading(path()).value();
    EXPECT_EQ(reader->ListCheckpoints("main").status().code(), StatusCode::kCorruption);
    const KnownCheckpoints known = reader->ListKnownCheckpoints().value();
    std::vector<std::string> names;
    for (const CheckpointInfo& info : known.checkpoints) {
      names.push_back(StepName(info.id.run, info.id.step));
    }
    EXPECT_THAT(names, ::testing::Contains(StepName("main", 1)));
    EXPECT_THAT(names, ::testing::Contains(StepName("fork", 2)));
    EXPECT_THAT(names, ::testing::Not(::testing::Contains(StepName("main", 2))));
    EXPECT_THAT(known.errors, ::testing::Contains(::testing::AllOf(
                                  ::testing::HasSubstr(StepName("main", 2)),
                                  ::testing::HasSubstr(files[1].filename().string()))));
  }
}

// One is cut, and opens no more. Of the other one a block is damaged.
TEST_F(LostTablesTest, EachOfTwoDamagedTablesIsNamedWhereItIsNeeded) {
  const std::vector<fs::path> files = TablesOfSteps(Family::kTensors);
  const Damaged cut(files[0], Damage::kHalf);
  const Damaged flipped(files[1], Damage::kFirstByte);
  const auto reader = Store::OpenForReading(path()).value();
  const Answers answers = Ask(*reader);
  ASSERT_TRUE(answers.at("bytes of 3 of main").ok())
      << answers.at("bytes of 3 of main").status().ToString();
  EXPECT_EQ(*answers.at("bytes of 3 of main"), *whole_.at("bytes of 3 of main"));
  for (const uint64_t step : {1, 2}) {
    const Status status = answers.at("tensors of " + std::to_string(step) + " of main").status();
    EXPECT_EQ(status.code(), StatusCode::kCorruption);
    EXPECT_THAT(status.message(), ::testing::HasSubstr(files[step - 1].filename()));
    EXPECT_THAT(status.message(), ::testing::Not(::testing::HasSubstr(files[2 - step].filename())));
  }
}

// The manifest then ends with some of the records of a commit.
TEST_F(LostTablesTest, OtherStepsAreReadAndKeptAlsoAfterACrashInACommit) {
  const std::vector<fs::path> files = TablesOfSteps(Family::kTensors);
  std::string name;
  std::ifstream(path() / "db" / "CURRENT") >> name;
  const fs::path manifest = path() / "db" / name;
  std::string log = ReadSmallFile(manifest, fs::file_size(manifest)).value();
  AppendLogRecord("\xac\x02\x01", &log);  // kInAtomicGroup (300): one more record comes
  std::ofstream(manifest, std::ios::binary) << log;
  fs::remove(files[1]);
  const auto bytes = ReadAll(*Store::OpenForReading(path()).value(), "main", 3);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_EQ(*bytes, *whole_.at("bytes of 3 of main"));
  const auto report = RepairStore(path());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->lost.size(), 1u);
  EXPECT_EQ(*ReadAll(*Store::Open(path()).value(), "main", 3), *whole_.at("bytes of 3 of main"));
}

// The record that says so is lost, and so is the chunk that it names.
TEST_F(LostTablesTest, AStepWhoseBaseIsLostIsDamagedAlsoWhereNoRecordSaysWhatItsBaseIs) {
  fs::remove_all(path());
  store_ = Store::Create(path()).value();
  const TestTensor weights = NormalTensor("w", {60000}, 1);
  VARVE_ASSERT_OK(Save(1, {weights}).status());
  VARVE_ASSERT_OK(Save(2, {Drifted(weights, 2)}).status());
  VARVE_ASSERT_OK(Save(3, {RandomTensor("other", DType::kU8, {40000}, 3)}).status());
  const fs::path chunks = TablesOfSteps(Family::kChunks)[0];
  const fs::path births = TablesOfSteps(Family::kBirths)[1];
  const Damaged lost(chunks, Damage::kRemoved);
  for (const bool has_record : {true, false}) {
    std::optional<Damaged> unknown;
    if (!has_record) unknown.emplace(births, Damage::kRemoved);
    const auto reader = Store::OpenForReading(path()).value();
    EXPECT_EQ(reader->Check({}).value().damaged_steps,
              (std::vector<CheckpointId>{{"main", 1}, {"main", 2}}));
  }
}

// RocksDB looks into each table of a family that has one level and three tables or fewer.
TEST_F(LostTablesTest, KeysOfOtherTablesAreReadAlsoWhereTablesAreFew) {
  fs::remove_all(path());
  store_ = Store::Create(path()).value();
  SaveStep(1);
  SaveStep(2);
  auto tables = FilesOf(Family::kState);
  ASSERT_EQ(tables.size(), 2u);
  store_.reset();
  std::sort(tables.begin(), tables.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  const Damaged damaged(tables[1].path, Damage::kRemoved);
  const auto reader = Store::OpenForReading(path()).value();
  const auto first = ReadAll(*reader, "main", 1);
  EXPECT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_TRUE(Names(ReadAll(*reader, "main", 2).status(), tables[1].path.filename()));
}

TEST_F(LostTablesTest, OtherFilesThatAreLostHideNothing) {
  for (const std::string& file : DbFiles()) {
    if (file.ends_with(".sst")) continue;
    const Damaged damaged(path() / "db" / file, Damage::kRemoved);
    const auto reader = Store::OpenForReading(path());
    if (!reader.ok()) {
      EXPECT_THAT(reader.status().ToString(), ::testing::HasSubstr(file));
      continue;
    }
    for (const auto& [question, answer] : Ask(**reader)) {
      if (!whole_.at(question).ok()) continue;
      ASSERT_TRUE(answer.ok()) << file << ": " << question << ": " << answer.status().ToString();
      EXPECT_EQ(*answer, *whole_.at(question)) << file << ": " << question;
    }
  }
}

TEST_F(LostTablesTest, WhatIsLostWhileAReaderIsOpenIsAnError) {
  const auto reader = Store::OpenForReading(path()).value();
  const auto names = [&] {
    std::vector<std::string> files = DbFiles();
    return std::set<std::string>(files.begin(), files.end());
  };
  store_ = Store::Open(path()).value();
  const std::set<std::string> before = names();
  SaveStep(4);
  std::string lost;
  for (const auto& file : FilesOf(Family::kSteps)) {
    const std::string name = file.path.filename();
    if (!before.contains(name)) lost = name;
  }
  ASSERT_NE(lost, "");
  fs::remove(path() / "db" / lost);
  reader->CatchUp().IgnoreError();
  const auto steps = reader->ListCheckpoints("main");
  EXPECT_TRUE(Names(steps.status(), lost)) << steps.status().ToString();
  store_.reset();
}

// RocksDB holds a family back that lacks a table, also from tables that are there.
TEST_F(LostTablesTest, ATableThatIsLostWhileAReaderIsOpenFailsItsFamilyOnly) {
  const auto reader = Store::OpenForReading(path()).value();
  store_ = Store::Open(path()).value();
  SaveStep(4);
  fs::path lost;
  for (const auto& file : FilesOf(Family::kChunks)) lost = std::max(lost, file.path);
  fs::remove(lost);
  for (const uint64_t newest : {5, 6}) {
    SaveStep(newest);
    VARVE_EXPECT_OK(reader->CatchUp());
    const auto steps = reader->ListCheckpoints("main");
    VARVE_ASSERT_OK(steps.status());
    EXPECT_EQ(steps->size(), newest);
    for (uint64_t step = 1; step <= newest; ++step) {
      VARVE_EXPECT_OK(DescribeTensors(*reader, "main", step).status());
      const auto bytes = ReadAll(*reader, "main", step);
      if (step < 4) {
        VARVE_ASSERT_OK(bytes.status());
        EXPECT_EQ(*bytes, *whole_.at("bytes of " + std::to_string(step) + " of main"));
      } else {
        EXPECT_TRUE(Names(bytes.status(), lost.filename())) << bytes.status().ToString();
      }
    }
  }
  store_.reset();
}

// The reader has the table open, but RocksDB looks for it again when it comes to a new manifest.
TEST_F(LostTablesTest, ATableThatIsLostBeforeANewManifestFailsItsFamilyOnly) {
  const auto reader = Store::OpenForReading(path()).value();
  store_ = Store::Open(path()).value();
  const fs::path lost = FilesOf(Family::kChunks).front().path;
  const auto bytes_of_4 = [&] { return ReadAll(*reader, "main", 4); };
  {
    const Damaged damaged(lost, Damage::kRemoved);
    for (int round = 0; round < 2; ++round) {
      if (round == 1) SaveStep(4);
      VARVE_EXPECT_OK(reader->CatchUp());
      const auto steps = reader->ListCheckpoints("main");
      VARVE_ASSERT_OK(steps.status());
      EXPECT_EQ(steps->size(), round == 0 ? 3u : 4u);
      for (const uint64_t step : {1, 2, 3}) {
        VARVE_EXPECT_OK(DescribeTensors(*reader, "main", step).status());
        const auto bytes = ReadAll(*reader, "main", step);
        if (bytes.ok()) {
          EXPECT_EQ(*bytes, *whole_.at("bytes of " + std::to_string(step) + " of main"));
        } else {
          EXPECT_TRUE(Names(bytes.status(), lost.filename())) << bytes.status().ToString();
        }
      }
    }
    EXPECT_TRUE(Names(bytes_of_4().status(), lost.filename())) << bytes_of_4().status().ToString();
  }
  // Once it is back, the reader finds it by itself.
  EXPECT_TRUE(ComesTrue([&] { return bytes_of_4().ok(); })) << bytes_of_4().status().ToString();
  store_.reset();
}

// It does not know what has been committed since.
TEST_F(LostTablesTest, AReaderThatCannotFollowTheWriterGivesNoOlderAnswer) {
  const auto reader = Store::OpenForReading(path()).value();
  store_ = Store::Open(path()).value();
  SaveStep(4);
  store_.reset();
  for (const Damage damage : {Damage::kRemoved, Damage::kHalf, Damage::kZeros}) {
    const Damaged damaged(path() / "db" / "CURRENT", damage);
    EXPECT_FALSE(reader->CatchUp().ok());
    for (const auto& [question, answer] : Ask(*reader)) {
      EXPECT_FALSE(answer.ok()) << question;
      EXPECT_NE(answer.status().code(), StatusCode::kNotFound) << answer.status().ToString();
    }
    const CheckpointId id{"main", 3};
    EXPECT_FALSE(reader->OpenCheckpoint("main", 4).ok());
    EXPECT_FALSE(reader->BytesFreedByDrop({&id, 1}).ok());
    EXPECT_FALSE(reader->ForecastDrop({&id, 1}).ok());
    EXPECT_FALSE(reader->Check({}).ok());
  }
  EXPECT_EQ(reader->LatestStep("main").value(), 4u);
}

}  // namespace
}  // namespace varve::internal::testing
