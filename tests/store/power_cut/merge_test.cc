// SPDX-License-Identifier: Apache-2.0
//
// Power cuts while the writer merges small files in the background and the trainer goes on saving.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <set>
#include <string>
#include <thread>

#include "tests/store/power_cut/driver.h"
#include "tests/store/power_cut/judge.h"
#include "tests/store/save/trained_steps.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

// A merge makes a table in the database. That of a commit comes there as a link.
bool IsMerged(const DiskOp& op) {
  return op.path.starts_with("store/db/") && op.path.ends_with(".sst");
}

class MergeWorkload {
 public:
  explicit MergeWorkload(const fs::path& root) : path_(root / "store"), root_(root) {}

  Recorded Run(const fs::path& image) {
    Fill();
    rocksdb::DB* const db = static_cast<StoreImpl*>(store_.get())->database()->rocksdb();
    VARVE_EXPECT_OK(FromRocksDb(db->PauseBackgroundWork(), "waiting for merges of records"));
    Recorder recorder(root_);  // notes what is there, which nobody may change meanwhile
    VARVE_EXPECT_OK(FromRocksDb(db->ContinueBackgroundWork(), "going on"));
    recorder.Run(
        "start", [] { return Status::Ok(); }, [&] { recorder.now = filled_; });
    // The merge begins after one of the saves that follow the end of the other one.
    for (uint64_t step = 100; step < 100 + kMostSaves && !HasMerged(); ++step) {
      if (step == 102) open_.reset();
      recorder.Run(
          "save " + std::to_string(step), [&] { return Save(step); },
          [&] {
            recorder.now.Put({"main", step}, ContentOf(step));
          });
      const size_t next = kNumTrained + step - 100;
      if (step >= 100 + kNumTrained) continue;
      recorder.Run(
          "save trained " + std::to_string(next), [&] { return trained_.Save(store_.get(), next); },
          [&] { recorder.now.Put(trained_.IdOf(next), trained_.TensorsOf(next)); });
    }
    for (int i = 0; i < kMostWaits && !HasMerged(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(HasMerged());
    EXPECT_TRUE(HasReplays(*store_).value());
    store_.reset();
    return recorder.Finish(image);
  }

 private:
  static constexpr uint64_t kNumFiles = 16;   // so many small ones are merged
  static constexpr uint64_t kNumTrained = 6;  // steps of an optimizer before, and as many later
  static constexpr uint64_t kMostSaves = 60;
  static constexpr int kMostWaits = 6000;  // of 10 ms

  static std::vector<TestTensor> ContentOf(uint64_t step) {
    return {RandomTensor("w", DType::kU8, {700}, step), RandomTensor("same", DType::kU8, {300}, 7)};
  }
  Status Save(uint64_t step) { return SaveTestTensors(store_.get(), step, ContentOf(step)); }

  // Small files that nothing merges yet, because a save that began before theirs is in progress.
  void Fill() {
    store_ = Store::Create(path_, {.digest_seed = 1}).value();
    open_ = store_->Begin(1000).value();
    filled_.exists = true;
    for (uint64_t step = 1; step <= kNumFiles; ++step) {
      VARVE_ASSERT_OK(Save(step));
      filled_.Put({"main", step}, ContentOf(step));
    }
    FillTrained();
    filled_files_ = ChunkFiles();
    EXPECT_GE(filled_files_.size(), kNumFiles);
  }

  // What the last of these steps is predicted from outlives the others.
  void FillTrained() {
    for (size_t i = 0; i < kNumTrained; ++i) VARVE_ASSERT_OK(trained_.Save(store_.get(), i));
    std::vector<CheckpointId> dropped;
    for (size_t i = 0; i + 1 < kNumTrained; ++i) dropped.push_back(trained_.IdOf(i));
    VARVE_ASSERT_OK(store_->Drop(dropped, {.reclaim = false}).status());
    filled_.Put(trained_.IdOf(kNumTrained - 1), trained_.TensorsOf(kNumTrained - 1));
  }

  std::set<std::string> ChunkFiles() const {
    std::set<std::string> names;
    for (const auto& file :
         static_cast<StoreImpl*>(store_.get())->database()->FilesOf(Family::kChunks)) {
      names.insert(file.name);
    }
    return names;
  }
  bool HasMerged() const { return !std::ranges::includes(ChunkFiles(), filled_files_); }

  const fs::path path_, root_;
  const TrainedSteps trained_{300, 2 * kNumTrained};
  std::unique_ptr<Store> store_;
  std::unique_ptr<CheckpointWriter> open_;  // goes before its store
  State filled_;
  std::set<std::string> filled_files_;
};

class MergePowerCutTest : public PowerCutTest {
 protected:
  // A merge has a low priority. On a busy machine it may begin after the last save.
  void SetUp() override {
    constexpr int kMostTries = 10;
    for (int tries = 0; tries < kMostTries && NumOverlaps() == 0; ++tries) Record<MergeWorkload>();
  }

  Judge judge() {
    return [this](const fs::path& folder, const Moment& moment) -> std::string {
      if (moment.num_done == 0) return "";
      return JudgeStore(folder / "store", AllowedStates(recorded_.states, moment), moment.seed);
    };
  }

  // Operations of merges between the mark of a save and its return, and of the save after the
  // first of those.
  size_t NumOverlaps() const {
    size_t overlaps = 0;
    bool is_saving = false, is_merging = false;
    for (size_t i = recorded_.first; i < recorded_.ops.size(); ++i) {
      const DiskOp& op = recorded_.ops[i];
      if (op.kind == Kind::kMark) is_saving = op.at % 2 == 0;
      if (op.kind == Kind::kMark || !is_saving) is_merging = false;
      if (is_saving && op.kind != Kind::kMark && IsMerged(op)) is_merging = true;
      overlaps += is_merging && op.path.starts_with("store/incoming/");
    }
    return overlaps;
  }
};

TEST_F(MergePowerCutTest, NothingIsLost) {
  std::cout << NumOverlaps() << " operations of saves come while files are merged\n";
  EXPECT_GT(NumOverlaps(), 0u);
  ExpectNoFaults(recorded_, judge(), 17);
}

TEST_F(MergePowerCutTest, PlantedMistakesAreFound) {
  ExpectFound(recorded_, judge(), "merged tables are not synced", WithoutSyncs(IsMerged));
}

}  // namespace
}  // namespace varve::internal::testing
