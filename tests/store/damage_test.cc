// SPDX-License-Identifier: Apache-2.0
//
// Damage on disk is found, named and never passed on as data.
#include <fstream>

#include "store/db/commit_batch.h"
#include "store/db/database.h"
#include "store/db/reference_counts.h"
#include "store/format/record.h"
#include "tests/store/store_fixture.h"
#include "varve/repair.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class DamageTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    expect_damage_ = true;
    VARVE_ASSERT_OK(Save(4, {tensor_}).status());
    store_.reset();
  }

  void FlipByteOfChunk() {
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      if (entry.path().extension() != ".sst" || entry.file_size() < (2u << 20)) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(1500000);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(1500000);
      file.put(byte);
    }
  }

  // Changes records behind the store's back.
  void Change(const std::function<void(const Database&, CommitBatch*)>& change) {
    auto database = Database::OpenForWriting(path()).value();
    CommitBatch batch;
    change(*database, &batch);
    VARVE_ASSERT_OK(batch.Commit(database.get(), path() / "incoming", {}));
  }

  std::string FirstKey(const Database& database, Family family) {
    std::string first;
    const Status scan = database.Scan(family, "", [&](std::string_view key, std::string_view) {
      if (first.empty()) first = key;
      return Status::Ok();
    });
    EXPECT_TRUE(scan.ok());
    return first;
  }

  std::string CheckErrors(bool read_data = false) {
    auto store = Store::Open(path());
    if (!store.ok()) return store.status().ToString();
    const auto report = (*store)->Check({.read_data = read_data});
    if (!report.ok()) return report.status().ToString();
    std::string all;
    for (const std::string& error : report->errors) all += error + "\n";
    return all;
  }

  const TestTensor tensor_ = RandomTensor("layer.weight", DType::kU8, {3 << 20}, 1);
};

TEST_F(DamageTest, FlippedByteOfAChunkIsNamed) {
  FlipByteOfChunk();
  store_ = Store::Open(path()).value();
  const auto reader = store_->OpenCheckpoint("main", 4).value();
  std::vector<std::byte> out(tensor_.bytes.size());
  EXPECT_THAT(
      reader->Read("layer.weight", out),
      FailsWith(StatusCode::kCorruption, "tensor layer.weight at step 4 of run main, chunk 1"));
  store_.reset();
  EXPECT_EQ(CheckErrors(), "");
  EXPECT_THAT(CheckErrors(true),
              ::testing::HasSubstr("layer.weight at step 4 of run main, chunk 1"));
}

// A save compares digests and reads no frame. So it shares a damaged one, until a repair has
// removed the steps that need it.
TEST_F(DamageTest, ADamagedFrameIsSharedUntilARepair) {
  FlipByteOfChunk();
  store_ = Store::Open(path()).value();
  VARVE_ASSERT_OK(Save(5, {tensor_}).status());
  store_.reset();
  const std::string errors = CheckErrors(true);
  for (const char* const step : {"step 4 of run main", "step 5 of run main"}) {
    EXPECT_THAT(errors, ::testing::HasSubstr(step));
  }
  const auto report = RepairStore(path());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->lost.size(), 2u);
  store_ = Store::Open(path()).value();
  VARVE_ASSERT_OK(Save(6, {tensor_}).status());
  const auto reader = store_->OpenCheckpoint("main", 6).value();
  std::vector<std::byte> out(tensor_.bytes.size());
  VARVE_ASSERT_OK(reader->Read("layer.weight", out));
  EXPECT_EQ(out, tensor_.bytes);
  store_.reset();
  EXPECT_EQ(CheckErrors(true), "");
}

// RocksDB does not survive most of these: it reads outside the block, or an assertion ends the
// process.
TEST_F(DamageTest, FlippedBitsBesideAFrameAreNamed) {
  std::map<fs::path, std::string> sound;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < (2u << 20)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    sound[entry.path()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  ASSERT_EQ(sound.size(), 1u);
  const auto& [name, bytes] = *sound.begin();
  const auto reader_of = [&] { return Store::OpenForReading(path()).value(); };
  // The header and the key of the first entry.
  for (size_t at = 0; at < 26; ++at) {
    for (const int bit : {0, 7}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      std::ofstream(name, std::ios::binary) << damaged;
      const auto store = reader_of();
      const auto reader = store->OpenCheckpoint("main", 4).value();
      std::vector<std::byte> out(tensor_.bytes.size());
      EXPECT_THAT(
          reader->Read("layer.weight", out),
          FailsWith(StatusCode::kCorruption, "tensor layer.weight at step 4 of run main, chunk 0"))
          << at << " " << bit;
    }
  }
  std::ofstream(name, std::ios::binary) << bytes;
}

// Small frames share a block, which RocksDB keeps after it was read. If a key became another one,
// RocksDB misses its frame.
TEST_F(DamageTest, AFlippedBitBesideSmallFramesIsNamed) {
  constexpr size_t kBytes = 500;
  store_ = Store::Open(path()).value();
  std::vector<TestTensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back(RandomTensor(name, DType::kU8, {kBytes}, 10 + tensors.size()));
  }
  VARVE_ASSERT_OK(Save(5, tensors).status());
  store_.reset();
  const auto content = [&](size_t i) {
    return std::string_view(reinterpret_cast<const char*>(tensors[i].bytes.data()), kBytes);
  };
  fs::path name;
  std::string sound;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (bytes.find(content(0)) == std::string::npos) continue;
    name = entry.path();
    sound = std::move(bytes);
  }
  ASSERT_FALSE(name.empty());
  // Keys, headers of frames, and at the end offsets of keys, the compression and the checksum.
  std::vector<size_t> places;
  size_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t begin = sound.find(content(i));
    ASSERT_GE(begin, at);
    for (; at < begin; ++at) places.push_back(at);
    at = begin + kBytes;
  }
  for (size_t i = 0; i < 13; ++i) places.push_back(at + i);
  int num_missed = 0;
  for (const size_t place : places) {
    for (const int bit : {0, 4}) {
      std::string damaged = sound;
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << bit));
      std::ofstream(name, std::ios::binary) << damaged;
      const auto store = Store::OpenForReading(path()).value();
      const auto reader = store->OpenCheckpoint("main", 5).value();
      for (const TestTensor& tensor : tensors) {
        std::vector<std::byte> out(kBytes);
        const Status status = reader->Read(tensor.name, out);
        if (status.ok()) {
          EXPECT_EQ(out, tensor.bytes);
          continue;
        }
        ++num_missed;
        const bool is_named = status.message().find(name.filename()) != std::string::npos ||
                              status.message().find(", chunk 0: frame ") != std::string::npos;
        EXPECT_TRUE(status.code() == StatusCode::kCorruption && is_named)
            << place << " " << bit << ": " << status.ToString();
      }
    }
  }
  EXPECT_GT(num_missed, 100);
  std::ofstream(name, std::ios::binary) << sound;
}

TEST_F(DamageTest, MissingOrCutChunkFileIsFound) {
  for (const bool missing : {false, true}) {
    std::string name;
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      if (entry.path().extension() != ".sst" || entry.file_size() < (1u << 20)) continue;
      name = entry.path().filename();
    }
    ASSERT_NE(name, "");
    if (missing) {
      fs::remove(path() / "db" / name);
    } else {
      fs::resize_file(path() / "db" / name, 2 << 20);
    }
    // RocksDB opens every file before anything is read.
    const std::string number = name.substr(0, name.find('.'));
    EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kCorruption, path().string()));
    EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kCorruption, number));
    // Beside a writer a file may have gone for good reasons, so that is found when it is read.
    auto beside = Store::OpenForReading(path()).value();
    const auto reader = beside->OpenCheckpoint("main", 4).value();
    std::vector<std::byte> out(tensor_.bytes.size());
    EXPECT_THAT(reader->Read("layer.weight", out),
                FailsWith(StatusCode::kCorruption, "tensor layer.weight at step 4 of run main"));
    EXPECT_THAT(beside->Check().value().errors,
                ::testing::Contains(::testing::HasSubstr("lies in no file")));
  }
}

TEST_F(DamageTest, MissingListIsNamed) {
  Change([&](const Database& database, CommitBatch* batch) {
    batch->Delete(Family::kLists, FirstKey(database, Family::kLists));
  });
  EXPECT_THAT(CheckErrors(), ::testing::HasSubstr("tensor layer.weight at step 4 of run main"));
  store_ = Store::Open(path()).value();
  const auto reader = store_->OpenCheckpoint("main", 4).value();
  std::vector<std::byte> out(tensor_.bytes.size());
  EXPECT_THAT(reader->Read("layer.weight", out),
              FailsWith(StatusCode::kCorruption, "list 1/0 is missing"));
}

TEST_F(DamageTest, MissingTensorRecordIsFound) {
  Change([&](const Database& database, CommitBatch* batch) {
    batch->Delete(Family::kTensors, FirstKey(database, Family::kTensors));
  });
  EXPECT_THAT(CheckErrors(), ::testing::HasSubstr("step 4 of run main: has no tensors"));
}

TEST_F(DamageTest, WrongCountIsFound) {
  Change([&](const Database& database, CommitBatch* batch) {
    const uint64_t save_id = keys::ParseSave(FirstKey(database, Family::kBirths))->save_id;
    batch->Put(Family::kCounts, keys::Counts(save_id, Counted::kChunk, 0), EncodeCounts({1, 5}));
  });
  EXPECT_THAT(CheckErrors(), ::testing::HasSubstr("/1: is counted 5 times, named 1 times"));
}

TEST_F(DamageTest, MissingSaveIsFound) {
  Change([&](const Database& database, CommitBatch* batch) {
    batch->Delete(Family::kBirths, FirstKey(database, Family::kBirths));
  });
  EXPECT_NE(CheckErrors(), "");
}

TEST_F(DamageTest, EveryFlippedByteOfARecordIsSafe) {
  struct Case {
    Family family;
    std::string key, value;
  };
  std::vector<Case> cases;
  {
    auto database = Database::OpenForReading(path()).value();
    for (const Family family :
         {Family::kSteps, Family::kTensors, Family::kLists, Family::kBirths, Family::kMeta}) {
      VARVE_ASSERT_OK(database->Scan(family, "", [&](std::string_view key, std::string_view value) {
        cases.push_back({family, std::string(key), std::string(value)});
        return Status::Ok();
      }));
    }
  }
  // The decoders alone: hostile bytes give a value or an error, and touch nothing outside.
  for (const Case& c : cases) {
    for (size_t at = 0; at <= c.value.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string bad = c.value.substr(0, at == c.value.size() ? at / 2 : c.value.size());
        if (at < bad.size()) bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
        (void)DecodeStepRecord(bad).ok();
        (void)DecodeTensorRecord(bad).ok();
        (void)DecodeChunkList(bad).ok();
        (void)DecodeSaveRecord(bad).ok();
        (void)DecodeRunRecord(bad).ok();
        (void)DecodeSaveBlock(bad).ok();
        (void)DecodeItemRecord(bad).ok();
        (void)DecodeCounts(bad).ok();
      }
    }
  }
  EXPECT_GE(cases.size(), 5u);
}

}  // namespace
}  // namespace varve::internal::testing
