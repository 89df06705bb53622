// SPDX-License-Identifier: Apache-2.0
//
// Mistakes that are planted in a sound store, a few for each invariant of docs/durability.md. Each
// is what a store would hold if varve broke the invariant. The full check that ends every store
// test must find it. Where a read meets it, the read fails, and gives no other bytes.
#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "codec/predict/rounded_copy.h"
#include "store/db/spare_files.h"
#include "store/format/format_file.h"
#include "tests/store/internals.h"
#include "tests/store/save/trained_steps.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Records = std::map<std::string, std::string>;

constexpr Family kFamilies[] = {Family::kSteps,  Family::kState,  Family::kTensors, Family::kLists,
                                Family::kChunks, Family::kBirths, Family::kCounts};

class PlantedInvariantsTest : public InternalsTest {
 protected:
  // Save 1 is step 4: two tensors of one chunk, and a rounded copy of the first. Save 2 is step 5:
  // a delta of each chunk. Save 3 is step 6, whose tensors have the lists of step 5.
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;
    copy_.bytes.resize(2 * kElements);
    MakeRoundedCopy(DType::kBF16, a_.bytes, copy_.bytes);
    SaveWithItem(4, {a_, b_, copy_});
    SaveWithItem(5, {Drifted(a_, 2), Drifted(b_, 3)});
    SaveWithItem(6, {Drifted(a_, 2), Drifted(b_, 3)});
    ExpectSound();
  }

  void SaveWithItem(uint64_t step, const std::vector<TestTensor>& tensors) {
    const std::string item = "batch 7";
    auto writer = store_->Begin(step).value();
    for (const TestTensor& tensor : tensors) VARVE_ASSERT_OK(writer->Put(tensor.view()));
    VARVE_ASSERT_OK(writer->PutBytes("loader", std::as_bytes(std::span(item))));
    VARVE_ASSERT_OK(writer->Commit().status());
  }

  std::vector<std::string> FullCheck() {
    const auto report = store_->Check({.read_data = true});
    return report.ok() ? report->errors : std::vector{report.status().ToString()};
  }
  void ExpectFound(const std::string& text) { EXPECT_THAT(FullCheck(), Contains(HasSubstr(text))); }
  void ExpectUnreadable(uint64_t step, const TestTensor& tensor, const std::string& text) {
    std::vector<std::byte> out(tensor.bytes.size());
    const auto reader = store_->OpenCheckpoint("main", step);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_THAT((*reader)->Read(tensor.name, out), FailsWith(StatusCode::kCorruption, text));
  }

  std::map<Family, Records> AllRecords() {
    std::map<Family, Records> all;
    for (const Family family : kFamilies) {
      Records& records = all[family];
      VARVE_EXPECT_OK(database()->Scan(family, "", [&](std::string_view key, std::string_view v) {
        records.emplace(key, v);
        return Status::Ok();
      }));
    }
    return all;
  }
  // Makes the records of a family those of `to`.
  void Replace(Family family, const Records& from, const Records& to) {
    CommitBatch batch;
    for (const auto& [key, value] : from) {
      if (!to.contains(key)) batch.Delete(family, key);
    }
    for (const auto& [key, value] : to) {
      const auto it = from.find(key);
      if (it == from.end() || it->second != value) batch.Put(family, key, value);
    }
    VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
  }

  ListAddress ListOf(uint64_t step, const std::string& tensor) {
    const std::string value = Value(Family::kTensors, keys::Tensor({1, step}, tensor, 0));
    return DecodeTensorRecord(value).value().lists.at(0);
  }
  // The only chunk of a tensor.
  ChunkRef RefOf(uint64_t step, const std::string& tensor) {
    return DecodeChunkList(Value(Family::kLists, keys::List(ListOf(step, tensor)))).value().at(0);
  }
  ChunkAddress AddressOf(uint64_t step, const std::string& tensor) {
    return RefOf(step, tensor).address;
  }
  std::string FrameOf(uint64_t step, const std::string& tensor) {
    return Value(Family::kChunks, keys::Chunk(AddressOf(step, tensor)));
  }

  // Changes what the records say of the base of the delta of "a".
  void ChangeBase(const ChunkAddress& base) {
    const ChunkAddress delta = AddressOf(5, "a");
    const std::string key = keys::SaveBlock(delta.save_id, 0);
    SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
    const auto edge = std::find_if(block.edges.begin(), block.edges.end(),
                                   [&](const auto& each) { return each.ordinal == delta.ordinal; });
    ASSERT_NE(edge, block.edges.end());
    edge->base = base;
    Change(Family::kBirths, key, EncodeSaveBlock(block));
  }
  // Chunks of save 1, and lists of save 2, are named more than once.
  static std::string KeyOf(Counted kind) {
    return keys::Counts(kind == Counted::kChunk ? 1 : 2, kind, 0);
  }
  std::vector<uint32_t> Counts(Counted kind) {
    return DecodeCounts(Value(Family::kCounts, KeyOf(kind))).value();
  }
  void ChangeCounts(Counted kind, const std::vector<uint32_t>& counts) {
    Change(Family::kCounts, KeyOf(kind), EncodeCounts(counts));
  }

  static constexpr int64_t kElements = 100'000;
  const TestTensor a_ = NormalTensor("a", {kElements}, 1);
  const TestTensor b_ = NormalTensor("b", {kElements}, 2);
  TestTensor copy_{"copy", DType::kBF16, {kElements}, {}, "a"};
};

// Invariant 1: everything that is referred to exists.
TEST_F(PlantedInvariantsTest, AReferenceToNothingIsFound) {
  ChunkRef ref = RefOf(4, "copy");
  ASSERT_EQ(ref.kind, ChunkKind::kDerived);
  ref.address = {1, 77};
  Change(Family::kLists, keys::List(ListOf(4, "copy")), EncodeChunkList({ref}));
  ExpectFound("chunk 1/77 was never stored (tensor copy at step ");
}

TEST_F(PlantedInvariantsTest, ABaseThatIsMissingIsFound) {
  ChangeBase({1, 77});
  ExpectFound("chunk 1/77 was never stored (tensor a at step 5 of run main, chunk 0)");
}

TEST_F(PlantedInvariantsTest, AFrameThatIsMissingIsFound) {
  Change(Family::kChunks, keys::Chunk(AddressOf(4, "a")), std::nullopt);
  ExpectFound("tensor a at step 4 of run main, chunk 0");
  ExpectUnreadable(5, a_, "tensor a at step 5 of run main, chunk 0");
}

TEST_F(PlantedInvariantsTest, AStepBeforeItsDataIsFound) {
  Change(Family::kSteps, keys::Step({1, 7}), Value(Family::kSteps, keys::Step({1, 4})));
  ExpectFound("step 7 of run main: has no tensors, expected 3");
}

// Invariant 2: counts are never too low.
TEST_F(PlantedInvariantsTest, ACountThatIsTooLowIsFound) {
  const std::vector<uint32_t> chunks = Counts(Counted::kChunk), lists = Counts(Counted::kList);
  const uint32_t chunk = AddressOf(4, "a").ordinal, list = ListOf(5, "a").number;
  ASSERT_EQ(chunks.at(chunk), 3u);  // its list, that of the rounded copy, and a delta
  ASSERT_EQ(lists.at(list), 2u);    // steps 5 and 6
  std::vector<uint32_t> low = chunks;
  --low[chunk];
  ChangeCounts(Counted::kChunk, low);
  ExpectFound("chunk 1/" + std::to_string(chunk) + ": is counted 2 times, named 3 times");
  ChangeCounts(Counted::kChunk, chunks);
  ExpectSound();
  low = lists;
  --low[list];
  ChangeCounts(Counted::kList, low);
  ExpectFound("list 2/" + std::to_string(list) + ": is counted 1 times, named 2 times");
}

TEST_F(PlantedInvariantsTest, CountsThatAreMissingAreFound) {
  for (const Counted kind : {Counted::kChunk, Counted::kList}) {
    const std::vector<uint32_t> counts = Counts(kind);
    Change(Family::kCounts, KeyOf(kind), std::nullopt);
    EXPECT_THAT(FullCheck(), Not(IsEmpty()));
    ChangeCounts(kind, counts);
    ExpectSound();
  }
}

// What a count that is too low does: after a drop, a reclaim takes a frame that another step needs.
TEST_F(PlantedInvariantsTest, WhatIsFreedTooEarlyIsFound) {
  std::vector<uint32_t> low = Counts(Counted::kChunk);
  --low.at(AddressOf(4, "a").ordinal);
  ChangeCounts(Counted::kChunk, low);
  VARVE_ASSERT_OK(DropSteps({4}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_THAT(FullCheck(), Not(IsEmpty()));
}

// Invariant 3: a save id is persisted before it is used.
TEST_F(PlantedInvariantsTest, ASaveIdThatIsUsedTwiceIsFound) {
  Change(Family::kMeta, std::string(keys::kNextBirth), EncodeNumber(1));
  ExpectFound("meta key next_birth: 1, expected more than 3, which is in use");
  Reopen();
  const TestTensor other = NormalTensor("other", {kElements}, 9);
  VARVE_ASSERT_OK(Save(7, {other}).status());
  EXPECT_THAT(FullCheck(), Not(IsEmpty()));
}

TEST_F(PlantedInvariantsTest, ABirthThatIsMissingIsFound) {
  Change(Family::kBirths, keys::Save(1), std::nullopt);
  ExpectFound("save 1 has no record, but its lists or chunks are still in use");
}

// Invariant 4: frames and lists never change. What takes their place here is sound by itself.
TEST_F(PlantedInvariantsTest, AFrameThatChangesIsFound) {
  Change(Family::kChunks, keys::Chunk(AddressOf(4, "a")), FrameOf(4, "b"));
  ExpectFound("tensor a at step 4 of run main, chunk 0");
  ExpectUnreadable(4, a_, "tensor a at step 4 of run main, chunk 0");
}

TEST_F(PlantedInvariantsTest, AListThatChangesIsFound) {
  Change(Family::kLists, keys::List(ListOf(4, "a")),
         Value(Family::kLists, keys::List(ListOf(4, "b"))));
  ExpectFound("its lists do not have the content digest of its record");
}

// Invariant 5: a frame's base has a smaller address. Here a delta lies where its own base should.
TEST_F(PlantedInvariantsTest, AFrameThatIsItsOwnBaseIsFound) {
  Change(Family::kChunks, keys::Chunk(AddressOf(4, "a")), FrameOf(5, "a"));
  ExpectFound("has no smaller address");
  ExpectUnreadable(4, a_, "has no smaller address");
}

// Invariant 6: a change is one ingest over all families. Each family in turn misses its part of a
// save.
TEST_F(PlantedInvariantsTest, HalfAChangeIsFound) {
  const auto before = AllRecords();
  SaveWithItem(7, {NormalTensor("new", {kElements}, 5), Drifted(b_, 6)});
  ExpectSound();
  const auto after = AllRecords();
  for (const Family family : kFamilies) {
    SCOPED_TRACE(kFamilyNames[static_cast<int>(family)]);
    ASSERT_NE(before.at(family), after.at(family));
    Replace(family, after.at(family), before.at(family));
    EXPECT_THAT(FullCheck(), Not(IsEmpty()));
    Replace(family, before.at(family), after.at(family));
    ExpectSound();
  }
}

// Invariant 7: no file is opened over an existing name. Here a leftover of an earlier writer has
// the name of the next file, and is a link to a committed file.
TEST_F(PlantedInvariantsTest, AFileThatIsOpenedOverALeftoverIsFound) {
  const std::vector<TableFile> chunks = FilesOf(Family::kChunks);
  ASSERT_FALSE(chunks.empty());
  for (uint64_t save_id = 4; save_id < 20; ++save_id) {
    fs::create_hard_link(chunks[0].path,
                         path() / "incoming" / ("birth-" + std::to_string(save_id) + "-0.sst"));
  }
  const auto size = fs::file_size(chunks[0].path);
  const TestTensor other = RandomTensor("other", DType::kU8, {1 << 20}, 9);
  Save(7, {other}).status().IgnoreError();
  ASSERT_NE(fs::file_size(chunks[0].path), size);  // the mistake is made
  store_.reset();
  const auto opened = Store::Open(path());
  if (opened.ok()) {
    EXPECT_THAT((*opened)->Check({.read_data = true}).value().errors, Not(IsEmpty()));
  } else {
    EXPECT_EQ(opened.status().code(), StatusCode::kCorruption) << opened.status().ToString();
  }
}

// Frames that are predicted from three others, in run "trained". The last step holds one of each
// target. Each of their sources takes a turn.
class PlantedSourcesTest : public PlantedInvariantsTest {
 protected:
  struct Replayed {
    std::string tensor;
    ChunkAddress address;
    FrameInfo info;
  };

  void SetUp() override {
    PlantedInvariantsTest::SetUp();
    for (const size_t i : {0, 1, 2}) VARVE_ASSERT_OK(steps_.Save(store_.get(), i));
    ExpectSound();
    VARVE_ASSERT_OK(
        database()->Scan(Family::kChunks, "", [&](std::string_view key, std::string_view value) {
          const FrameInfo info = ParseFrame(AsBytes(value)).value();
          const auto address = keys::ParseChunk(key);
          if (!info.replay.has_value()) return Status::Ok();
          const bool is_weight = info.replay->target == ReplayTarget::kWeight;
          replays_[is_weight ? 1 : 0] = {is_weight ? "master.p0" : "exp_avg_sq.p0", *address, info};
          return Status::Ok();
        }));
    for (const Replayed& each : replays_) ASSERT_EQ(each.info.sources().size(), 3u);
    store_.reset();
    fs::copy(path(), sound_path(), fs::copy_options::recursive);
    Reopen();
  }
  fs::path sound_path() const { return folder_.path() / "sound"; }

  // Plants something for each source, each time in a sound store.
  void ForEachSource(
      const std::function<void(const Replayed& user, const ChunkAddress& source)>& plant) {
    for (const Replayed& user : replays_) {
      for (const FrameSource& source : user.info.sources()) {
        SCOPED_TRACE(user.tensor + " and its source " + std::to_string(source.address.save_id) +
                     "/" + std::to_string(source.address.ordinal));
        plant(user, source.address);
        store_.reset();
        fs::remove_all(path());
        fs::copy(sound_path(), path(), fs::copy_options::recursive);
        Reopen();
        ExpectSound();
      }
    }
  }
  std::string NameOf(const Replayed& user) const {
    return "tensor " + user.tensor + " at step " + std::to_string(steps_.IdOf(2).step) +
           " of run trained, chunk 0";
  }
  void ExpectNotReplayed(const Replayed& user, const std::string& text) {
    const CheckpointId id = steps_.IdOf(2);
    const auto reader = store_->OpenCheckpoint(id.run, id.step);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    std::vector<std::byte> out(user.info.raw_bytes);
    EXPECT_THAT((*reader)->Read(user.tensor, out), FailsWith(StatusCode::kCorruption, text));
  }
  void ChangeBlockOf(const Replayed& user, const std::function<void(SaveBlock*)>& change) {
    const std::string key = keys::SaveBlock(user.address.save_id, 0);
    SaveBlock block = DecodeSaveBlock(Value(Family::kBirths, key)).value();
    change(&block);
    Change(Family::kBirths, key, EncodeSaveBlock(block));
  }

  const TrainedSteps steps_{5000, 3};
  std::array<Replayed, 2> replays_;  // of the second moment, and of the weight
};

// Invariant 1: everything that is referred to exists.
TEST_F(PlantedSourcesTest, ASourceThatIsMissingIsFound) {
  ForEachSource([&](const Replayed& user, const ChunkAddress& source) {
    Change(Family::kChunks, keys::Chunk(source), std::nullopt);
    ExpectFound(NameOf(user));
    ExpectNotReplayed(user, NameOf(user));
  });
}

// Then counts follow fewer sources than readers.
TEST_F(PlantedSourcesTest, ASourceThatNoRecordNamesIsFound) {
  ForEachSource([&](const Replayed& user, const ChunkAddress& source) {
    ChangeBlockOf(user, [&](SaveBlock* block) {
      const auto is_of_source = [&](const BaseEdge& edge) {
        return edge.ordinal == user.address.ordinal && edge.base == source;
      };
      EXPECT_EQ(std::erase_if(block->edges, is_of_source), 1u);
    });
    ExpectFound(NameOf(user));
  });
}

TEST_F(PlantedSourcesTest, ASourceThatWasNeverStoredIsFound) {
  ForEachSource([&](const Replayed& user, const ChunkAddress& source) {
    ChangeBlockOf(user, [&](SaveBlock* block) {
      for (BaseEdge& edge : block->edges) {
        if (edge.ordinal == user.address.ordinal && edge.base == source) edge.base = {1, 77};
      }
    });
    ExpectFound("chunk 1/77 was never stored (" + NameOf(user) + ")");
  });
}

// Invariant 2: counts are never too low.
TEST_F(PlantedSourcesTest, ACountOfASourceThatIsTooLowIsFound) {
  ForEachSource([&](const Replayed&, const ChunkAddress& source) {
    const std::string key = keys::Counts(source.save_id, Counted::kChunk, 0);
    std::vector<uint32_t> low = DecodeCounts(Value(Family::kCounts, key)).value();
    const uint32_t count = low.at(source.ordinal)--;
    Change(Family::kCounts, key, EncodeCounts(low));
    ExpectFound("chunk " + std::to_string(source.save_id) + "/" + std::to_string(source.ordinal) +
                ": is counted " + std::to_string(count - 1) + " times, named " +
                std::to_string(count) + " times");
  });
}

// What that does: a reclaim takes what the last step is predicted from.
TEST_F(PlantedSourcesTest, ASourceThatIsFreedTooEarlyIsFound) {
  const ChunkAddress source = replays_[0].info.sources()[2].address;  // the second moment before
  const std::string key = keys::Counts(source.save_id, Counted::kChunk, 0);
  std::vector<uint32_t> low = DecodeCounts(Value(Family::kCounts, key)).value();
  low.at(source.ordinal) = 1;  // its list, and nothing that is predicted from it
  Change(Family::kCounts, key, EncodeCounts(low));
  const std::vector<CheckpointId> dropped = {steps_.IdOf(0), steps_.IdOf(1)};
  VARVE_ASSERT_OK(store_->Drop(dropped).status());
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_THAT(FullCheck(), Contains(HasSubstr(NameOf(replays_[0]))));
  ExpectNotReplayed(replays_[0], NameOf(replays_[0]));
}

// Invariant 5: sources have smaller addresses. Here a frame lies where its own source should.
TEST_F(PlantedSourcesTest, AFrameThatIsItsOwnSourceIsFound) {
  ForEachSource([&](const Replayed& user, const ChunkAddress& source) {
    const std::string frame = Value(Family::kChunks, keys::Chunk(user.address));
    Change(Family::kChunks, keys::Chunk(source), frame);
    ExpectFound("has no smaller address");
    ExpectNotReplayed(user, NameOf(user));
  });
}

// Invariant 8: the seed never changes. This FORMAT is sound by itself.
TEST_F(PlantedInvariantsTest, AnotherSeedIsFound) {
  store_.reset();
  FormatFile format = ReadFormatFile(path(), /*for_writing=*/true).value();
  ++format.digest_seed;
  VARVE_ASSERT_OK(WriteFormatFile(path(), format));
  EXPECT_THAT(Store::OpenForReading(path()),
              FailsWith(StatusCode::kCorruption, "is of another store than"));
  std::filesystem::remove(SpareFolder(path()) / "FORMAT");  // nothing but the digests tells now
  const auto opened = Store::OpenForReading(path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const auto report = (*opened)->Check({.read_data = true}).value();
  EXPECT_THAT(report.errors, Contains(HasSubstr("tensor a at step 4 of run main")));
  std::vector<std::byte> out(a_.bytes.size());
  EXPECT_THAT((*opened)->OpenCheckpoint("main", 4).value()->Read("a", out),
              FailsWith(StatusCode::kCorruption, "tensor a at step 4 of run main, chunk 0"));
}

}  // namespace
}  // namespace varve::internal::testing
