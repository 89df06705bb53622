// SPDX-License-Identifier: Apache-2.0
//
// Tests what a check must find: one thing is changed behind the store's back, and one error names
// it.
#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>

#include <filesystem>
#include <fstream>

#include "codec/predict/rounded_copy.h"
#include "store/format/trainer_progress.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;
    const std::string item = "epoch 3, batch 77";
    auto writer = store_->Begin(4).value();
    VARVE_ASSERT_OK(writer->Put(weights_.view()));
    VARVE_ASSERT_OK(writer->PutBytes("loader", std::as_bytes(std::span(item))));
    VARVE_ASSERT_OK(writer->SetTrainerProgress({.global_step = 4}));
    VARVE_ASSERT_OK(writer->SetTopology({.dp = 2}));
    VARVE_ASSERT_OK(writer->AddTag("good"));
    VARVE_ASSERT_OK(writer->Commit().status());
    VARVE_ASSERT_OK(Save(5, {Drifted(weights_, 2)}).status());
    InternalsTest::ExpectSound();
  }

  void ExpectError(const std::string& text) {
    const auto report = store_->Check();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->errors, Contains(HasSubstr(text)));
  }

  // The value with its last byte of `text` changed.
  std::string Damaged(Family family, const std::string& key, std::string_view text) {
    std::string value = Value(family, key);
    const size_t at = value.find(text);
    EXPECT_NE(at, std::string::npos);
    value[at + text.size() - 1] ^= 1;
    return value;
  }

  static constexpr StepKey kStep{1, 4};
  const TestTensor weights_ = NormalTensor("weights", {300000}, 1);
};

TEST_F(CheckTest, ALinkThatAWriterRefuses) {
  store_.reset();
  for (const std::string name : {"db/LOCK", "incoming"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path file = path() / name, aside = folder_.path() / "aside";
    std::filesystem::rename(file, aside);
    std::filesystem::create_symlink(aside, file);
    EXPECT_EQ(Store::Open(path()).status().code(), StatusCode::kCorruption);
    store_ = Store::OpenForReading(path()).value();
    ExpectError(file.string() + " is a link");
    store_.reset();
    std::filesystem::remove(file);
    std::filesystem::rename(aside, file);
  }
  Reopen();
}

TEST_F(CheckTest, WhatIsInTheWayOfAWriter) {
  namespace fs = std::filesystem;
  store_.reset();
  const auto expect = [&](const std::string& text) {
    SCOPED_TRACE(text);
    EXPECT_FALSE(Store::Open(path()).ok());
    store_ = Store::OpenForReading(path()).value();
    ExpectError(text);
    store_.reset();
  };
  fs::create_symlink("nowhere", path() / "db/999999.log");
  expect("999999.log is a link");
  fs::remove(path() / "db/999999.log");
  fs::create_directories(path() / "incoming/folder/more");
  expect("incoming/folder is a folder");
  fs::remove_all(path() / "incoming");
  std::ofstream(path() / "incoming") << "a file";
  expect("incoming is no folder");
  fs::remove(path() / "incoming");
  fs::remove(path() / "RESERVE");
  fs::create_directories(path() / "RESERVE/more");
  expect("RESERVE is a folder");
  fs::remove_all(path() / "RESERVE");
  Reopen();
}

TEST_F(CheckTest, DamagedTagIsNotAbsent) {
  Change(Family::kMeta, keys::Tag(kStep.run, "good"), "x");
  EXPECT_THAT(store_->FindTag("main", "good"),
              FailsWith(StatusCode::kCorruption, "tag good in run main"));
  EXPECT_THAT(store_->FindTag("main", "other"),
              FailsWith(StatusCode::kNotFound, "no tag other in run main"));
}

TEST_F(CheckTest, DamagedItem) {
  const std::string key = keys::Item(kStep, "loader");
  Change(Family::kState, key, Damaged(Family::kState, key, "batch"));
  ExpectError("item loader at step 4 of run main: does not have its digest");
  Change(Family::kState, key, "short");
  ExpectError("item loader at step 4 of run main: item record: not a well-formed flatbuffer");
}

TEST_F(CheckTest, MissingItem) {
  Change(Family::kState, keys::Item(kStep, "loader"), std::nullopt);
  ExpectError("step 4 of run main: has 0 items, expected 1");
}

TEST_F(CheckTest, DamagedTrainerStateAndTopology) {
  Change(Family::kState, keys::TrainerProgress(kStep), "x");
  ExpectError("trainer state at step 4 of run main: ");
  Change(Family::kState, keys::Topology(kStep), "x");
  ExpectError("topology at step 4 of run main: ");
}

TEST_F(CheckTest, StateWithoutAStep) {
  Change(Family::kState, keys::TrainerProgress({1, 6}), EncodeTrainerProgress({}));
  ExpectError("trainer state at step 6 of run main: has no step record");
  Change(Family::kState, keys::Step(kStep) + "\x07", "x");
  ExpectError("family state has a malformed key");
}

TEST_F(CheckTest, TagOfAMissingStep) {
  Change(Family::kMeta, keys::Tag(1, "good"), EncodeNumber(9));
  ExpectError("tag good of run main: names step 9, which does not exist");
  Change(Family::kMeta, keys::Tag(1, "good"), "x");
  ExpectError("tag good of run main: not a number");
}

TEST_F(CheckTest, SaveThatCouldBeUsedTwice) {
  Change(Family::kMeta, std::string(keys::kNextBirth), EncodeNumber(2));
  ExpectError("meta key next_birth: 2, expected more than 2, which is in use");
  Change(Family::kMeta, std::string(keys::kNextBirth), std::nullopt);
  ExpectError("meta key next_birth: 0, expected more than 2");
}

TEST_F(CheckTest, RunIdThatCouldBeUsedTwice) {
  Change(Family::kMeta, std::string(keys::kNextRun), EncodeNumber(1));
  ExpectError("meta key next_run: 1, expected more than 1");
}

TEST_F(CheckTest, MissingStepRecord) {
  Change(Family::kSteps, keys::Step(kStep), std::nullopt);
  ExpectError("step 4 of run main: has tensors but no step record");
}

TEST_F(CheckTest, MissingRunRecord) {
  Change(Family::kMeta, keys::Run("main"), std::nullopt);
  ExpectError("its run does not exist");
}

TEST_F(CheckTest, TensorOfAnotherSave) {
  const std::string key = keys::Tensor({1, 5}, "weights", 0);
  Change(Family::kTensors, key, Value(Family::kTensors, keys::Tensor(kStep, "weights", 0)));
  ExpectError("tensor weights at step 5 of run main: is of save 1, its step of save 2");
}

TEST_F(CheckTest, WrongRootDigest) {
  StepRecord record = DecodeStepRecord(Value(Family::kSteps, keys::Step(kStep))).value();
  record.root.lo ^= 1;
  Change(Family::kSteps, keys::Step(kStep), EncodeStepRecord(record));
  ExpectError("step 4 of run main: its tensors do not have the root digest of its record");
}

TEST_F(CheckTest, WrongContentDigest) {
  std::vector<ChunkRef> refs = DecodeChunkList(Value(Family::kLists, keys::List({1, 0}))).value();
  refs[1].digest.hi ^= 1;
  Change(Family::kLists, keys::List({1, 0}), EncodeChunkList(refs));
  ExpectError("tensor weights at step 4 of run main: its lists do not have the content digest");
}

// The content digest does not tell, as the chunks have the digests that they had.
TEST_F(CheckTest, ChunksOfOtherSizesThanTheTensorHas) {
  const std::string key = keys::List({1, 0});
  const std::string before = Value(Family::kLists, key);
  std::vector<ChunkRef> refs = DecodeChunkList(before).value();
  ASSERT_EQ(refs.size(), 2u);
  refs[1].raw_bytes -= 4;
  Change(Family::kLists, key, EncodeChunkList(refs));
  const std::string wrong = "entry 1 has 151420 raw bytes, expected 151424";
  ExpectError(wrong);
  EXPECT_THAT(store_->Diff({"main", 4}, {"main", 5}, {.values = true}),
              FailsWith(StatusCode::kCorruption, wrong));
  std::vector<std::byte> out(weights_.bytes.size());
  EXPECT_THAT(store_->OpenCheckpoint("main", 4).value()->Read("weights", out),
              FailsWith(StatusCode::kCorruption, wrong));
  Change(Family::kLists, key, before);
}

TEST_F(CheckTest, TensorThatDoesNotFitTheListOfAnother) {
  const std::string key = keys::Tensor({1, 5}, "weights", 0);
  TensorRecord record = DecodeTensorRecord(Value(Family::kTensors, key)).value();
  record.shape = {299999};
  record.lists = {{1, 0}};
  Change(Family::kTensors, key, EncodeTensorRecord(record));
  ExpectError(
      "tensor weights at step 5 of run main: does not fit list 1/0, which is also a list of "
      "another tensor");
}

TEST_F(CheckTest, ListThatNobodyNames) {
  Change(Family::kLists, keys::List({1, 7}), Value(Family::kLists, keys::List({1, 0})));
  ExpectError("list 1/7: no tensor names it");
}

TEST_F(CheckTest, DeadChunkThatIsNamed) {
  Change(Family::kCounts, keys::Counts(1, Counted::kChunk, 0), EncodeCounts({kDeadBit | 100}));
  ExpectError("chunk 1/0: is counted as dead, named");
}

TEST_F(CheckTest, WrongListCount) {
  Change(Family::kCounts, keys::Counts(1, Counted::kList, 0), EncodeCounts({3}));
  ExpectError("list 1/0: is counted 3 times, named 1 times");
}

TEST_F(CheckTest, CountsWithoutASave) {
  Change(Family::kCounts, keys::Counts(77, Counted::kChunk, 0), EncodeCounts({3}));
  ExpectError("save 77 has counts but no record");
}

TEST_F(CheckTest, WrongTotals) {
  SaveRecord record = DecodeSaveRecord(Value(Family::kBirths, keys::Save(1))).value();
  --record.live_chunks;
  Change(Family::kBirths, keys::Save(1), EncodeSaveRecord(record));
  ExpectError("save 1: says 1 live chunks and 1 live lists, found 2 and 1");
}

TEST_F(CheckTest, ChunkInNoFile) {
  Change(Family::kChunks, keys::Chunk({900, 0}), "x");
  ExpectError("is orphaned");
  std::vector<ChunkRef> refs = DecodeChunkList(Value(Family::kLists, keys::List({1, 0}))).value();
  refs[0].address = {800, 0};
  Change(Family::kLists, keys::List({1, 0}), EncodeChunkList(refs));
  ExpectError("chunk 800/0 lies in no file (tensor weights at step 4 of run main, chunk 0)");
  ExpectError("chunk 800/0 was never stored");
}

TEST_F(CheckTest, BaseThatIsNotOlder) {
  const std::string key = keys::SaveBlock(2, 0);
  SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
  ASSERT_FALSE(block.edges.empty());
  block.edges[0].base = {2, block.edges[0].ordinal};
  Change(Family::kBirths, key, EncodeSaveBlock(block));
  ExpectError("has no smaller address");
}

// A drop would take a source that no edge names.
TEST_F(CheckTest, EdgesThatAreNotThoseOfTheFrame) {
  const std::string key = keys::SaveBlock(2, 0);
  SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
  ASSERT_FALSE(block.edges.empty());
  const std::string frame =
      "frame 2/" + std::to_string(block.edges[0].ordinal) + " is predicted from frame 1/";
  const auto errors = [&] {
    Change(Family::kBirths, key, EncodeSaveBlock(block));
    return store_->Check({.read_data = true}).value().errors;
  };
  ++block.edges[0].base_digest.lo;
  EXPECT_THAT(errors(),
              Contains(AllOf(HasSubstr(frame), HasSubstr(", and its save names frame "))));
  block.edges.erase(block.edges.begin());
  EXPECT_THAT(errors(),
              Contains(AllOf(HasSubstr(frame), HasSubstr(", and its save names nothing there"))));
}

// A step may hold the rounded copy of a tensor, and not the tensor.
TEST_F(CheckTest, EdgesOfAFrameThatOnlyARoundedCopyNames) {
  const TestTensor master = Drifted(weights_, 3);
  TestTensor copy{"copy", DType::kBF16, master.shape, {}, master.name};
  copy.bytes.resize(master.bytes.size() / 2);
  MakeRoundedCopy(DType::kBF16, master.bytes, copy.bytes);
  VARVE_ASSERT_OK(Save(6, {master, copy}).status());
  copy.derived_from.clear();
  ASSERT_EQ(Save(7, {copy}).value().new_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({6}));
  EXPECT_THAT(store_->Check({.read_data = true}).value().errors, IsEmpty());

  const std::string key = keys::SaveBlock(3, 0);
  SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
  ASSERT_FALSE(block.edges.empty());
  ++block.edges[0].base_digest.lo;
  Change(Family::kBirths, key, EncodeSaveBlock(block));
  EXPECT_THAT(store_->Check({.read_data = true}).value().errors,
              Contains(AllOf(HasSubstr("tensor copy at step 7 of run main, chunk 0: frame 3/"),
                             HasSubstr(", and its save names frame "))));
}

TEST_F(CheckTest, WrongPlanes) {
  const std::string key = keys::SaveBlock(1, 0);
  SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
  ASSERT_FALSE(block.planes.empty());
  ++block.planes[0].bytes;
  Change(Family::kBirths, key, EncodeSaveBlock(block));
  ExpectError("save 1: says 6 live planes of coder raw in ");
  block.planes[0].bytes = 1 << 20;
  Change(Family::kBirths, key, EncodeSaveBlock(block));
  ExpectError("chunk 1/0: has planes of ");
  Change(Family::kBirths, key, std::nullopt);
  ExpectError("save 1: says 2 live planes of coder ");  // zstd or rans, as the processor has it
  ExpectError("chunk 1/1: has planes of 0 bytes in a frame of ");
}

TEST_F(CheckTest, UnknownPlanesAreNoError) {
  SaveRecord record = DecodeSaveRecord(Value(Family::kBirths, keys::Save(1))).value();
  ASSERT_TRUE(record.live_coders.has_value());
  record.live_coders.reset();  // as an older varve writes it
  Change(Family::kBirths, keys::Save(1), EncodeSaveRecord(record));
  ExpectSound();
  VARVE_ASSERT_OK(DropSteps({4}));
  ExpectSound();
}

// A false count costs no time or memory beyond what is on disk.
TEST_F(CheckTest, CountsThatNothingOnDiskHolds) {
  SaveRecord record = DecodeSaveRecord(Value(Family::kBirths, keys::Save(1))).value();
  const SaveRecord sound = record;
  record.chunks = UINT32_MAX;
  record.stored_bytes = uint64_t{1} << 60;
  Change(Family::kBirths, keys::Save(1), EncodeSaveRecord(record));
  ExpectError("save 1: says 4294967295 chunks and 1 lists, but what is on disk holds at most");
  record = sound;
  record.lists = UINT32_MAX;
  Change(Family::kBirths, keys::Save(1), EncodeSaveRecord(record));
  ExpectError("save 1: says 2 chunks and 4294967295 lists, but what is on disk holds at most");
  Change(Family::kBirths, keys::Save(1), EncodeSaveRecord(sound));
  VARVE_ASSERT_OK(DropSteps({4}));
  ExpectSound();
}

// Bytes of records that a check reads, on this thread.
uint64_t BytesRead(const Store& store, size_t num_errors, const std::string& text) {
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  rocksdb::get_perf_context()->Reset();
  const auto report = store.Check();
  const uint64_t bytes = rocksdb::get_perf_context()->iter_read_bytes;
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  const auto is_text = [&](const std::string& e) { return e.find(text) != std::string::npos; };
  EXPECT_EQ(std::count_if(report->errors.begin(), report->errors.end(), is_text), num_errors);
  return bytes;
}

// The records are read a few times, however many errors there are: each error names its tensor.
TEST_F(CheckTest, ManyErrorsReadNoMoreThanFew) {
  constexpr uint32_t kTensors = 400;
  std::vector<TestTensor> tensors;
  for (uint32_t i = 0; i < kTensors; ++i) {
    tensors.push_back(RandomTensor("t" + std::to_string(1000 + i), DType::kU8, {100}, i));
  }
  VARVE_ASSERT_OK(Save(6, tensors).status());
  const auto lose = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) Change(Family::kLists, keys::List({3, i}), std::nullopt);
  };
  const std::string text = " at step 6 of run main, chunk 0)";
  lose(0, 20);
  const uint64_t few = BytesRead(*store_, 20, text);
  lose(20, 200);
  const uint64_t many = BytesRead(*store_, 200, text);
  EXPECT_GT(few, 0u);
  EXPECT_LE(many, few);  // ten times the errors, and fewer lists
  ExpectError("list 3/7 is missing (tensor t1007 at step 6 of run main, chunk 0)");
}

}  // namespace
}  // namespace varve::internal::testing
