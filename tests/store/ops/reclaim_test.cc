// SPDX-License-Identifier: Apache-2.0
//
// Tests which files reclaiming and merging touch, and what a save in progress may rely on
// meanwhile.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/save/save_pipeline.h"
#include "tests/store/internals.h"
#include "tests/support/comes_true.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ReclaimTest = InternalsTest;

// A trainer may wait for a save while small files are merged.
TEST_F(ReclaimTest, MergesGiveWay) {
  const int own = getpriority(PRIO_PROCESS, 0);
  const auto gives_way = [own](const fs::path& thread) {
    return getpriority(PRIO_PROCESS, static_cast<id_t>(std::stoul(thread.filename()))) > own;
  };
  if (own >= 10) GTEST_SKIP() << "this process has as low a priority as merges have";
  EXPECT_TRUE(ComesTrue([&] {
    const fs::directory_iterator threads("/proc/self/task");
    return std::any_of(begin(threads), end(threads), gives_way);
  }));
}

TestTensor Small(uint64_t seed) { return RandomTensor("t", DType::kU8, {3000}, seed); }

// A save starts first and commits long after its neighbours, when those would have been merged. A
// file that lies within the range of another cannot be deleted as a whole.
class LateSaveTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    VARVE_ASSERT_OK(Save(1, {Small(1)}).status());
    auto late = store_->Begin(2).value();
    for (uint64_t step = 3; step < 50; ++step) VARVE_ASSERT_OK(Save(step, {Small(step)}).status());
    VARVE_ASSERT_OK(late->Put(late_.view()));
    VARVE_ASSERT_OK(late->Commit().status());
    for (const TableFile& file : FilesOf(Family::kChunks)) EXPECT_EQ(file.level, 1) << file.path;
    for (uint64_t step = 50; step < 60; ++step) VARVE_ASSERT_OK(Save(step, {Small(step)}).status());
    ASSERT_NO_FATAL_FAILURE(WaitForMerge());
  }

  void WaitForMerge() {
    ASSERT_TRUE(ComesTrue([&] { return FilesOf(Family::kChunks).size() <= 40; }));
  }

  const TestTensor late_ = Small(2);
};

TEST_F(LateSaveTest, IsSoundAndReadable) {
  ExpectSound();
  ExpectHolds(2, {late_});
  for (uint64_t step = 3; step < 60; ++step) ExpectHolds(step, {Small(step)});
}

TEST_F(LateSaveTest, GoesFromTheDiskWhenItIsDropped) {
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectSound();
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_EQ(GetStats().pending_bytes, 0u);
  EXPECT_EQ(CountKeys(Family::kChunks), 58u);
}

TEST_F(LateSaveTest, StaysWhenAllAroundItGo) {
  std::vector<uint64_t> others = {1};
  for (uint64_t step = 3; step < 60; ++step) others.push_back(step);
  VARVE_ASSERT_OK(DropSteps(others));
  ExpectSound();
  ExpectHolds(2, {late_});
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_EQ(CountKeys(Family::kChunks), 1u);
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectNoKeys();
}

// A pipeline that has found what it shares, between its run and its commit.
class HeldSave {
 public:
  HeldSave(StoreImpl* store, uint64_t save_id, const TestTensor& tensor)
      : pipeline_(store, save_id, SaveOptions{}) {
    SaveTensor* const save = tensors_.Add(tensor.view());
    save->data = tensor.bytes.data();
    SaveTensor* const tensors[] = {save};
    VARVE_EXPECT_OK(pipeline_.Run(tensors, &tensors_));
  }
  const std::vector<ChunkRef>& refs() const { return pipeline_.old_refs(); }
  uint64_t new_chunks() const { return pipeline_.totals().chunks; }

 private:
  SavePipeline pipeline_;
  SaveTensors tensors_;
};

// Does to the counts what the commit of a HeldSave does.
Status CountAgain(const HeldSave& save, ReferenceCounts* counts) {
  for (const ChunkRef& ref : save.refs()) VARVE_RETURN_IF_ERROR(counts->AddChunk(ref));
  return Status::Ok();
}

TEST_F(ReclaimTest, AHitThatDiesIsNotReclaimedAndComesBackToLife) {
  const TestTensor t = RandomTensor("t", DType::kF32, {262144}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  {
    HeldSave held(impl(), impl()->NewSaveId().value(), t);
    ASSERT_EQ(held.new_chunks(), 0u);
    VARVE_ASSERT_OK(DropSteps({1}));
    EXPECT_GT(GetStats().pending_bytes, 0u);  // dead, pinned and on disk
    ReferenceCounts counts(database());
    VARVE_EXPECT_OK(CountAgain(held, &counts));
  }
  VARVE_ASSERT_OK(store_->Reclaim().status());
  ExpectNoKeys();
}

TEST_F(ReclaimTest, AHitPinsTheBasesOfItsFrame) {
  const TestTensor a = NormalTensor("t", {262144}, 1);
  const TestTensor b = Drifted(a, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  const SaveReport second = Save(2, {b}).value();
  ASSERT_EQ(second.by_codec.size(), 1u);
  ASSERT_EQ(second.by_codec[0].codec, "delta");
  {
    HeldSave held(impl(), impl()->NewSaveId().value(), b);
    ASSERT_EQ(held.new_chunks(), 0u);
    VARVE_ASSERT_OK(DropSteps({1, 2}));
    ReferenceCounts counts(database());
    VARVE_EXPECT_OK(CountAgain(held, &counts));
    std::vector<std::byte> out(b.bytes.size());
    ChunkScratch scratch;
    VARVE_EXPECT_OK(impl()->chunk_reader().Read(held.refs()[0], DType::kF32, out, &scratch));
  }
  VARVE_ASSERT_OK(store_->Reclaim().status());
  ExpectNoKeys();
}

TEST_F(ReclaimTest, TheIndexKeepsNothingOfADerivedSource) {
  const TestTensor master = NormalTensor("a.master", {262144}, 1);
  TestTensor model{"b.model", DType::kBF16, {262144}, {}, "a.master"};
  model.bytes.resize(master.bytes.size() / 2);
  for (size_t i = 0; i < 262144; ++i) {  // round to nearest even
    uint32_t bits;
    std::memcpy(&bits, &master.bytes[4 * i], 4);
    const auto half = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(&model.bytes[2 * i], &half, 2);
  }
  EXPECT_EQ(Save(1, {master, model}).value().new_bytes, master.bytes.size());
  EXPECT_EQ(Save(2, {model}).value().new_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(2, {model});
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectNoKeys();
}

TEST_F(ReclaimTest, EverythingThatWasKeptForDeltasGoes) {
  TestTensor t = NormalTensor("t", {300000}, 1);
  for (uint64_t step = 1; step <= 12; ++step) {
    t = Drifted(t, step);
    VARVE_ASSERT_OK(Save(step, {t}).status());
  }
  VARVE_ASSERT_OK(DropSteps({1, 2, 3, 5, 7, 11}));
  ExpectSound();
  VARVE_ASSERT_OK(DropSteps({12, 10, 4, 6, 9, 8}));
  ExpectNoKeys();
  EXPECT_TRUE(FilesOf(Family::kChunks).empty());
}

TEST_F(ReclaimTest, ProgressSaysHowMuchThereIsToCopy) {
  const TestTensor kept = RandomTensor("kept", DType::kU8, {4 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {kept, RandomTensor("lost", DType::kU8, {1 << 20}, 2)}).status());
  VARVE_ASSERT_OK(Save(2, {kept}).status());
  VARVE_ASSERT_OK(
      store_->Drop(std::vector<CheckpointId>{{"main", 1}}, {.reclaim = false}).status());
  std::vector<std::pair<uint64_t, uint64_t>> calls;
  const auto note = [&](uint64_t done, uint64_t total) { calls.emplace_back(done, total); };
  const auto report = store_->Reclaim({.all = true, .progress = note});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(report->rewritten_bytes, 4 << 20);
  ASSERT_GE(calls.size(), 2u);
  EXPECT_EQ(calls.front().first, 0u);
  for (const auto& [done, total] : calls) EXPECT_EQ(total, report->rewritten_bytes);
  EXPECT_EQ(calls.back().first, report->rewritten_bytes);
}

// The speed of background merging decides whether there are many small files or few large ones. It
// must not decide what a drop leaves.
class MergedOrNotTest : public InternalsTest {
 protected:
  // Saves steps as if the background never came to merge their files: what lies behind the save of
  // a save in progress is left alone.
  void SaveUnmerged(uint64_t begin, uint64_t end) {
    const auto in_progress = store_->Begin(1000).value();
    for (uint64_t step = begin; step < end; ++step) {
      VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {64 << 10}, step)}).status());
    }
    EXPECT_GE(FilesOf(Family::kChunks).size(), end - begin);
  }
  ReclaimReport Drop(uint64_t begin, uint64_t end) {
    std::vector<CheckpointId> ids;
    for (uint64_t step = begin; step < end; ++step) ids.push_back({"main", step});
    return store_->Drop(ids).value().reclaim;
  }
};

TEST_F(MergedOrNotTest, ADropMergesWhatTheBackgroundHasNot) {
  ASSERT_NO_FATAL_FAILURE(SaveUnmerged(1, 65));
  Drop(1, 2);
  EXPECT_EQ(FilesOf(Family::kChunks).size(), 1u);
}

TEST_F(MergedOrNotTest, WhatIsFreedPaysForFilesThatAreLessThanHalfDead) {
  const auto in_progress = store_->Begin(1000).value();  // nothing is merged but by this test
  std::set<std::filesystem::path> merged;
  for (const uint64_t first : {1, 33}) {
    ASSERT_NO_FATAL_FAILURE(SaveUnmerged(first, first + 32));
    std::vector<std::string> names;
    for (const TableFile& file : FilesOf(Family::kChunks)) {
      if (!merged.contains(file.path)) names.push_back("/" + file.path.filename().string());
    }
    ASSERT_EQ(names.size(), 32u);
    rocksdb::CompactionOptions options;
    options.compression = rocksdb::kNoCompression;
    auto* const chunks = database()->handle(Family::kChunks);
    ASSERT_TRUE(database()->rocksdb()->CompactFiles(options, chunks, names, 1).ok());
    for (const TableFile& file : FilesOf(Family::kChunks)) merged.insert(file.path);
  }
  ASSERT_EQ(FilesOf(Family::kChunks).size(), 2u);
  const ReclaimReport report = Drop(1, 46);  // all of one file, and 13 of 32 steps of the other
  EXPECT_EQ(report.pending_bytes, 0u);
  EXPECT_GE(report.freed_bytes, uint64_t{45} << 16);
  EXPECT_LE(report.rewritten_bytes, report.freed_bytes);
  EXPECT_EQ(Drop(46, 48).rewritten_bytes, 0u);  // less than an eighth of the file
  EXPECT_GT(GetStats().pending_bytes, 0u);
}

// Half of what is left is dead, a little less than would pay for the rest: it goes all the same.
TEST_F(MergedOrNotTest, AStoreThatIsSmallKeepsNoHalfOfItAsGarbage) {
  const auto in_progress = store_->Begin(1000).value();  // nothing is merged but by this test
  ASSERT_NO_FATAL_FAILURE(SaveUnmerged(1, 65));
  std::vector<std::string> names;
  for (const TableFile& file : FilesOf(Family::kChunks)) {
    names.push_back("/" + file.path.filename().string());
  }
  rocksdb::CompactionOptions options;
  options.compression = rocksdb::kNoCompression;
  auto* const chunks = database()->handle(Family::kChunks);
  ASSERT_TRUE(database()->rocksdb()->CompactFiles(options, chunks, names, 1).ok());
  const ReclaimReport report = Drop(1, 32);
  EXPECT_EQ(report.pending_bytes, 0u);
  EXPECT_GE(report.freed_bytes, uint64_t{31} << 16);
}

}  // namespace
}  // namespace varve::internal::testing
