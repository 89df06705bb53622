// SPDX-License-Identifier: Apache-2.0
//
// A store with damage to repair, and what must be there afterwards.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/util.h"
#include "tests/store/internals.h"
#include "varve/repair.h"

namespace varve::internal::testing {

inline std::string Slurp(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The bytes of all files below a folder, but for the lock of the database, which is empty.
inline std::map<std::string, std::string> Contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "LOCK") continue;
    contents[std::filesystem::relative(entry.path(), folder)] = Slurp(entry.path());
  }
  return contents;
}

enum class Damage { kRemoved, kHalf, kZeros, kFirstBlock, kMiddle, kTail, kEmpty };
inline constexpr Damage kDamages[] = {Damage::kRemoved,    Damage::kHalf,   Damage::kZeros,
                                      Damage::kFirstBlock, Damage::kMiddle, Damage::kTail,
                                      Damage::kEmpty};

inline void FlipBit(const std::filesystem::path& file, uint64_t at) {
  std::string bytes = Slurp(file);
  if (bytes.empty()) return;
  bytes[std::min<uint64_t>(at, bytes.size() - 1)] ^= 0x10;
  std::ofstream(file, std::ios::binary) << bytes;
}

inline void Inflict(Damage damage, const std::filesystem::path& file) {
  const uint64_t size = std::filesystem::file_size(file);
  switch (damage) {
    case Damage::kRemoved:
      std::filesystem::remove(file);
      break;
    case Damage::kHalf:
      std::filesystem::resize_file(file, size / 2);
      break;
    case Damage::kZeros: {
      const uint64_t kept = size > 4096 ? size - 4096 : 0;
      std::filesystem::resize_file(file, kept);
      std::filesystem::resize_file(file, size);
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
      std::filesystem::resize_file(file, 0);
      break;
  }
}

// This process has no rights of root until this goes.
class AsNobody {
 public:
  static constexpr uid_t kNobody = 65534;

  AsNobody() {
    if (is_root_) {
      EXPECT_EQ(::seteuid(kNobody), 0);
    }
  }
  ~AsNobody() {
    if (is_root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }

 private:
  const bool is_root_ = ::geteuid() == 0;
};

inline void GiveTo(uid_t user, const std::filesystem::path& folder) {
  ASSERT_EQ(::chown(folder.c_str(), user, user), 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    ASSERT_EQ(::chown(entry.path().c_str(), user, user), 0);
  }
}

inline void GiveToNobody(const std::filesystem::path& folder) {
  if (::geteuid() == 0) GiveTo(AsNobody::kNobody, folder);
}

// All of a step that no digest covers, then all that one does.
struct StepText {
  std::string facts;
  std::string data;
  bool operator==(const StepText&) const = default;
};

inline Result<StepText> ReadStep(const Store& store, const CheckpointId& id) {
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
    std::filesystem::remove(path() / "RESERVE");  // it would only be copied
    VARVE_ASSERT_OK(BackUp(path(), backup_).status());
    const auto reader = Store::OpenForReading(path()).value();
    for (const RunInfo& run : reader->ListRuns().value()) {
      for (const CheckpointInfo& info : reader->ListCheckpoints(run.name).value()) {
        whole_[{info.id.run, info.id.step}] = ReadStep(*reader, info.id).value();
      }
    }
    ASSERT_EQ(whole_.size(), 6u);
  }

  // The cases damage the table file of one save, which a merge would take away.
  void Reopen() {
    StoreTest::Reopen();
    HoldMerges();
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
  std::filesystem::path NewCopy() {
    const std::filesystem::path cases = folder_.path() / "cases";
    std::filesystem::remove_all(cases);
    std::filesystem::create_directory(cases);
    std::filesystem::copy(path(), cases / "store", std::filesystem::copy_options::recursive);
    return cases / "store";
  }

  std::vector<std::string> DbFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path() / "db")) {
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
      return file.ends_with(".sst") ? std::filesystem::file_size(path() / "db" / file) : 0;
    });
  }

  // The table of the chunks of the last save, on which no other step depends.
  std::string NewestChunks() const {
    constexpr uint64_t kMoreThanRecords = 10000;
    std::string newest;
    for (const std::string& file : DbFiles()) {
      if (!file.ends_with(".sst")) continue;
      if (std::filesystem::file_size(path() / "db" / file) > kMoreThanRecords) newest = file;
    }
    return newest;
  }

  // Steps that a reader of the store can read whole.
  Steps ReadAll(const std::filesystem::path& store) const {
    Steps steps;
    const auto reader = Store::OpenForReading(store);
    if (!reader.ok()) return steps;
    for (const auto& [id, text] : whole_) {
      const auto step = ReadStep(**reader, {id.first, id.second});
      if (step.ok()) steps[id] = *step;
    }
    return steps;
  }

  static std::string ManifestOf(const std::filesystem::path& store) {
    const std::string current = Slurp(store / "db" / "CURRENT");
    return current.substr(0, current.find('\n'));
  }

  static bool NamesTable(const RepairReport& report, const std::string& file) {
    return std::ranges::any_of(report.damage, [&](const std::string& text) {
      return text.find(file) != std::string::npos;
    });
  }

  // The repaired store is sound and can be written, and holds what the report says.
  void ExpectRepaired(const std::filesystem::path& store, const RepairReport& report) {
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

  const std::filesystem::path backup_ = folder_.path() / "backup";
  TestTensor weights_;
  Steps whole_;
};

}  // namespace varve::internal::testing
