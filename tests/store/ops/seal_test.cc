// SPDX-License-Identifier: Apache-2.0
//
// A check with the key of a sealed store finds whatever somebody without the key has changed, and
// never accuses a writer who has it.
#include "varve/seal.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/db/manifest_log.h"
#include "store/db/sealed_manifest.h"
#include "store/format/format_file.h"
#include "tests/store/internals.h"
#include "tests/store/repair_fixture.h"
#include "varve/backup.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

const std::string kKey(32, 'k');

class SealTest : public InternalsTest {
 protected:
  void SetUp() override {
    closing_options_.key = kKey;  // so TearDown verifies the seal, too
    Reset({.digest_seed = 7, .store = {.key = kKey}});
  }

  // What a check with the key says.
  static CheckReport CheckOf(const fs::path& store) {
    const auto reader = Store::OpenForReading(store, {.key = kKey});
    if (!reader.ok()) return {.errors = {reader.status().ToString()}};
    const auto report = (*reader)->Check({.read_data = true});
    return report.ok() ? *report : CheckReport{.errors = {report.status().ToString()}};
  }
  void ExpectSealed(const fs::path& store) {
    store_.reset();
    const CheckReport report = CheckOf(store);
    EXPECT_THAT(report.errors, ::testing::IsEmpty());
    EXPECT_TRUE(report.is_sealed);
    EXPECT_GT(report.num_sealed_files, 0u);
  }
  void SaveSteps(uint64_t last) {
    for (uint64_t step = 1; step <= last; ++step) {
      VARVE_ASSERT_OK(Save(step, {RandomTensor("w", DType::kU8, {30000}, step)}).status());
    }
  }
  fs::path Manifest() const {
    std::string name;
    std::ifstream(path() / "db" / "CURRENT") >> name;
    return path() / "db" / name;
  }
  std::vector<fs::path> Tables() const {
    std::vector<fs::path> tables;
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      if (entry.path().extension() == ".sst") tables.push_back(entry.path());
    }
    return tables;
  }
  std::vector<fs::path> TablesOf(Family family) {
    std::vector<fs::path> tables;
    for (const TableFile& file : FilesOf(family)) tables.push_back(file.path);
    std::ranges::sort(tables);
    return tables;
  }
  // Changes a byte of the first frame of a file of chunks, and the checksum of its block, as
  // RocksDB computes it (ComputeBuiltinChecksumWithLastByte). So RocksDB finds nothing wrong.
  static void ForgeChunk(const fs::path& table) {
    std::string bytes = Slurp(table);
    const auto checksum = [&](size_t size) {
      const auto hash = static_cast<uint32_t>(XXH3_64bits(bytes.data(), size));
      return hash ^ (static_cast<unsigned char>(bytes[size]) * 0x6b9083d9u);
    };
    size_t size =
        30000;  // of the block: the frame and a little more. A type and the checksum follow
    uint32_t stored = 0;
    do {
      ASSERT_LT(++size, 30300u);
      std::memcpy(&stored, &bytes[size + 1], sizeof(stored));
    } while (stored != checksum(size));
    bytes[15000] ^= 1;
    stored = checksum(size);
    std::memcpy(&bytes[size + 1], &stored, sizeof(stored));
    std::ofstream(table, std::ios::binary) << bytes;  // RocksDB has the file open
  }
};

TEST_F(SealTest, SavesReadsAndReclaimsAsAnyStore) {
  SaveSteps(12);
  ExpectHolds(3, {RandomTensor("w", DType::kU8, {30000}, 3)});
  VARVE_ASSERT_OK(DropSteps({1, 2, 5}, {.reclaim = false}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  VARVE_ASSERT_OK(store_->Fork("main", "other", 4).status());
  ExpectSound();
  Reopen({.key = kKey});
  VARVE_ASSERT_OK(Save(20, {RandomTensor("w", DType::kU8, {30000}, 20)}).status());
  ExpectSealed(path());
}

TEST_F(SealTest, OnlyAWriterNeedsTheKey) {
  SaveSteps(1);
  EXPECT_THAT(Store::Create(folder_.path() / "short", {.store = {.key = "fifteen bytes.."}}),
              FailsWith(StatusCode::kInvalidArgument, "has 15 bytes, expected 16 to 1024"));
  store_.reset();
  EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kFailedPrecondition, "no key was given"));
  EXPECT_THAT(Store::Open(path(), {.key = std::string(32, 'x')}),
              FailsWith(StatusCode::kFailedPrecondition, "was sealed with the key"));
  const auto reader = Store::OpenForReading(path());
  VARVE_ASSERT_OK(reader.status());
  ExpectHolds(**reader, 1, {RandomTensor("w", DType::kU8, {30000}, 1)});
  const auto report = (*reader)->Check({});
  VARVE_ASSERT_OK(report.status());
  EXPECT_TRUE(report->is_sealed);
  EXPECT_EQ(report->num_sealed_files, 0u);
  const auto other = Store::OpenForReading(path(), {.key = std::string(32, 'x')});
  VARVE_ASSERT_OK(other.status());
  EXPECT_THAT((*other)->Check({}), FailsWith(StatusCode::kFailedPrecondition, "given key is"));
  VARVE_ASSERT_OK(Store::Create(folder_.path() / "plain", {}).status());
  EXPECT_THAT(Store::Open(folder_.path() / "plain", {.key = kKey}),
              FailsWith(StatusCode::kFailedPrecondition, "is not sealed"));
}

// Somebody may compute RocksDB's checksums and ours, but no tags.
TEST_F(SealTest, AForgedTableIsFound) {
  SaveSteps(3);
  for (const Family family : {Family::kSteps, Family::kTensors, Family::kChunks}) {
    const fs::path table = TablesOf(family).front();
    const std::string before = Slurp(table);
    family == Family::kChunks ? ForgeChunk(table) : FlipBit(table, 17);
    EXPECT_THAT(CheckOf(path()).errors, ::testing::Contains(::testing::HasSubstr(
                                            table.filename().string() + " does not have its tag")));
    std::ofstream(table, std::ios::binary) << before;
    EXPECT_THAT(CheckOf(path()).errors, ::testing::IsEmpty());
  }
}

// A whole commit of somebody without the key, who says in FORMAT that the store is not sealed.
TEST_F(SealTest, AForgedCommitIsFound) {
  SaveSteps(3);
  store_.reset();
  const std::string format = Slurp(path() / "FORMAT");
  FormatFile plain = ReadFormatFile(path(), /*for_writing=*/true).value();
  plain.read_compatible = 0;
  VARVE_ASSERT_OK(WriteFormatFile(path(), plain));
  Reopen();
  VARVE_ASSERT_OK(Save(4, {RandomTensor("w", DType::kU8, {30000}, 4)}).status());
  store_.reset();
  std::ofstream(path() / "FORMAT", std::ios::binary) << format;
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(Store::Open(path(), {.key = kKey}), FailsWith(StatusCode::kCorruption, ""));
  expect_damage_ = true;
}

// Somebody appends a whole change, and says in the other slot that it was being written. The tag of
// that slot cannot be right, and nobody can compare it with a manifest that is not there yet.
TEST_F(SealTest, AForgedChangeBehindTheSealIsFound) {
  SaveSteps(2);
  store_.reset();
  fs::remove(path() / "SYNCED");
  const auto seals = ReadSeals(SealOfManifest(Manifest())).value();
  std::string log = Slurp(Manifest());
  AppendLogRecord("\x03\x7f", &log);  // a number of RocksDB's, which changes nothing
  std::ofstream(Manifest(), std::ios::binary) << log;
  SealFile forged(SealOfManifest(Manifest()));
  VARVE_ASSERT_OK(forged.Write(std::ranges::max(seals, {}, &Seal::bytes)));
  Seal other = seals[0];
  other.bytes = log.size() + 1000;
  VARVE_ASSERT_OK(forged.Write(other));
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Contains(::testing::HasSubstr("its seal")));
  EXPECT_THAT(Store::Open(path(), {.key = kKey}), FailsWith(StatusCode::kCorruption, "its seal"));
  expect_damage_ = true;
}

// A writer would copy what it reads there into tables with new tags.
TEST_F(SealTest, AWriterOpensNoForgedTableOfRecords) {
  SaveSteps(3);
  for (const Family family : {Family::kMeta, Family::kSteps, Family::kTensors}) {
    const fs::path table = TablesOf(family).front();
    store_.reset();
    FlipBit(table, 17);  // RocksDB reads no data as it opens a table
    EXPECT_THAT(Store::Open(path(), {.key = kKey}),
                FailsWith(StatusCode::kCorruption, "does not have its tag"));
    FlipBit(table, 17);
    Reopen({.key = kKey});
  }
}

// RocksDB takes NUMBER.ldb where there is no NUMBER.sst.
TEST_F(SealTest, ATableUnderAnotherNameIsNotOpened) {
  SaveSteps(2);
  const fs::path table = TablesOf(Family::kSteps).front();
  store_.reset();
  fs::path other = table;
  fs::rename(table, other.replace_extension(".ldb"));
  EXPECT_FALSE(Store::Open(path(), {.key = kKey}).ok());
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Not(::testing::IsEmpty()));
  fs::rename(other, table);
}

// A power cut may leave the first of several changes that were synced together.
TEST_F(SealTest, EachChangeHasASealOfItsOwn) {
  SaveSteps(2);
  std::string log, changes;
  AppendLogRecord("\x03\x7e", &log);  // a number of RocksDB's
  const fs::path manifest = path() / "db" / "MANIFEST-999999";
  const auto sealer =
      Sealer::Make(kKey, ReadFormatFile(path(), /*for_writing=*/true).value()).value();
  std::unique_ptr<rocksdb::FSWritableFile> file;
  ASSERT_TRUE(rocksdb::FileSystem::Default()->NewWritableFile(manifest, {}, &file, nullptr).ok());
  SealedManifest sealed(sealer, manifest, std::move(file));
  ASSERT_TRUE(sealed.Append(log, {}, nullptr).ok());
  ASSERT_TRUE(sealed.Sync({}, nullptr).ok());
  std::string both = log;
  AppendLogRecord("\x03\x7e", &both);
  const size_t first = both.size();
  AppendLogRecord("\x03\x7f", &both);
  ASSERT_TRUE(sealed.Append(both.substr(log.size()), {}, nullptr).ok());
  ASSERT_TRUE(sealed.Sync({}, nullptr).ok());
  std::set<uint64_t> about;
  for (const Seal& seal : ReadSeals(SealOfManifest(manifest)).value()) about.insert(seal.bytes);
  EXPECT_EQ(about, (std::set<uint64_t>{first, both.size()}));
  EXPECT_EQ(Slurp(manifest), both);
  fs::remove(manifest);
}

TEST_F(SealTest, ATornEndIsSealedWithoutIt) {
  SaveSteps(3);
  store_.reset();
  fs::remove(path() / "SYNCED");
  fs::remove_all(path() / "spare");
  fs::resize_file(Manifest(), fs::file_size(Manifest()) - 40);
  VARVE_ASSERT_OK(SealStore(path(), kKey).status());  // there is a seal, and it stays
  ExpectSealed(path());
  std::ofstream(Manifest(), std::ios::binary | std::ios::app) << "torn";
  fs::remove_all(path() / "seal");
  VARVE_ASSERT_OK(SealStore(path(), kKey).status());
  ExpectSealed(path());
  Reopen({.key = kKey});
  ExpectHolds(2, {RandomTensor("w", DType::kU8, {30000}, 2)});
}

TEST_F(SealTest, ASecondWriterIsLockedOut) {
  SaveSteps(1);
  EXPECT_THAT(Store::Open(path(), {.key = kKey}), FailsWith(StatusCode::kLocked, ""));
}

TEST_F(SealTest, LinksAreNotFollowed) {
  SaveSteps(1);
  const fs::path copy = folder_.path() / "copy", other = folder_.path() / "other";
  VARVE_ASSERT_OK(BackUp(path(), copy).status());
  fs::create_directory(other);
  for (const char* name : {"mine", "MANIFEST-000001"}) std::ofstream(other / name) << "text";
  fs::remove_all(copy / "seal");
  fs::create_directory_symlink(other, copy / "seal");
  VARVE_ASSERT_OK(Save(2, {RandomTensor("w", DType::kU8, {30000}, 2)}).status());
  EXPECT_THAT(BackUp(path(), copy), FailsWith(StatusCode::kCorruption, "is a link"));
  store_.reset();
  fs::remove_all(path() / "spare");
  fs::create_directory_symlink(other, path() / "spare");
  fs::remove(path() / "SYNCED");
  fs::create_symlink(other / "mine", path() / "SYNCED");
  fs::remove(path() / "RESERVE");
  fs::create_symlink(other / "mine", path() / "RESERVE");
  Reopen({.key = kKey});
  VARVE_ASSERT_OK(Save(3, {RandomTensor("w", DType::kU8, {30000}, 3)}).status());
  EXPECT_EQ(Slurp(other / "mine"), "text");
  EXPECT_TRUE(fs::exists(other / "mine"));
  EXPECT_TRUE(fs::exists(other / "MANIFEST-000001"));
}

TEST_F(SealTest, AGroupFileDoesNotHideTheStore) {
  SaveSteps(1);
  const fs::path root = folder_.path() / "root";
  VARVE_ASSERT_OK(Group::StartEpoch(root, 1).status());
  fs::copy(root / "GROUP", path() / "GROUP");
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Contains(::testing::HasSubstr("has FORMAT")));
  fs::remove(path() / "GROUP");
  const CheckReport empty = CheckOf(root);
  EXPECT_THAT(empty.errors, ::testing::Contains(::testing::HasSubstr("no member could be")));
}

TEST_F(SealTest, AnyByteOfTheManifestCounts) {
  SaveSteps(2);
  store_.reset();
  const FormatFile format = ReadFormatFile(path(), /*for_writing=*/true).value();
  const auto sealer = Sealer::Make(kKey, format).value();
  const std::string manifest = Slurp(Manifest());
  for (size_t at = 0; at < manifest.size(); at += 13) {
    std::string changed = manifest;
    changed[at] ^= 0x40;
    std::ofstream(Manifest(), std::ios::binary) << changed;
    EXPECT_THAT(ReadSealedState(path(), *sealer),
                FailsWith(StatusCode::kCorruption, "does not have its seal"))
        << at;
  }
  std::ofstream(Manifest(), std::ios::binary) << manifest;
}

// It would come to light as an answer, and a writer would take it for what was saved.
TEST_F(SealTest, ALogOfRocksDbIsNotTaken) {
  SaveSteps(2);
  store_.reset();
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() == ".log") std::ofstream(entry.path()) << "a record";
  }
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Contains(::testing::HasSubstr("writes no log")));
  EXPECT_THAT(Store::Open(path(), {.key = kKey}),
              FailsWith(StatusCode::kCorruption, "writes no log"));
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() == ".log") fs::remove(entry.path());
  }
}

// Tables that RocksDB merges get new tags. So none of them may be a forged one. A merge does not
// read the end of a table that is open.
TEST_F(SealTest, AForgedTableGetsNoNewTag) {
  SaveSteps(6);
  const fs::path table = TablesOf(Family::kSteps).front();
  FlipBit(table, fs::file_size(table) - 100);
  VARVE_ASSERT_OK(DropSteps({1, 2}, {.reclaim = false}));
  EXPECT_THAT(store_->Reclaim({.all = true}), FailsWith(StatusCode::kCorruption, "its tag"));
  EXPECT_FALSE(Save(9, {RandomTensor("w", DType::kU8, {30000}, 9)}).ok());
  store_.reset();
  EXPECT_THAT(CheckOf(path()).errors,
              ::testing::Contains(::testing::HasSubstr("does not have its tag")));
  expect_damage_ = true;
}

// A file of chunks is written anew without its dead chunks.
TEST_F(SealTest, AForgedChunkFileGetsNoNewTag) {
  const TestTensor kept = RandomTensor("a", DType::kU8, {30000}, 50);
  for (const uint64_t step : {1, 2}) {
    VARVE_ASSERT_OK(Save(step, {kept, RandomTensor("w", DType::kU8, {30000}, step)}).status());
  }
  const fs::path table = TablesOf(Family::kChunks).front();
  ForgeChunk(table);
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  EXPECT_THAT(store_->Reclaim({.all = true}), FailsWith(StatusCode::kCorruption, "its tag"));
  store_.reset();
  EXPECT_THAT(CheckOf(path()).errors,
              ::testing::Contains(::testing::HasSubstr("does not have its tag")));
  expect_damage_ = true;
}

// What a power cut leaves between the seal and the manifest.
TEST_F(SealTest, AManifestThatIsShorterThanItsNewestSealIsTheStateBefore) {
  SaveSteps(3);
  store_.reset();
  const auto seals = ReadSeals(SealOfManifest(Manifest())).value();
  ASSERT_EQ(seals.size(), 2u);
  const uint64_t before = std::min(seals[0].bytes, seals[1].bytes);
  fs::remove(path() / "SYNCED");
  fs::remove_all(path() / "spare");
  fs::resize_file(Manifest(), before + 10);
  Reopen({.key = kKey});
  EXPECT_THAT(store_->OpenCheckpoint("main", 3), FailsWith(StatusCode::kNotFound, "3"));
  ExpectHolds(2, {RandomTensor("w", DType::kU8, {30000}, 2)});
}

TEST_F(SealTest, ABackupIsSealed) {
  SaveSteps(3);
  const fs::path copy = folder_.path() / "copy";
  VARVE_ASSERT_OK(BackUp(path(), copy).status());
  ExpectSealed(copy);
  Reopen({.key = kKey});
  VARVE_ASSERT_OK(Save(4, {RandomTensor("w", DType::kU8, {30000}, 4)}).status());
  VARVE_ASSERT_OK(BackUp(path(), copy).status());
  ExpectSealed(copy);
  VARVE_EXPECT_OK(Store::Open(copy, {.key = kKey}).status());
  ExpectSealed(copy);
}

TEST_F(SealTest, ALostSealIsMadeAnewIfEveryTableHasItsTag) {
  SaveSteps(3);
  store_.reset();
  fs::remove_all(path() / "seal");
  EXPECT_THAT(Store::Open(path(), {.key = kKey}),
              FailsWith(StatusCode::kCorruption, "the seal of the store, is missing"));
  EXPECT_THAT(CheckOf(path()).errors, ::testing::Contains(::testing::HasSubstr("is missing")));
  const fs::path table = Tables().front();
  FlipBit(table, 100);
  EXPECT_THAT(SealStore(path(), kKey), FailsWith(StatusCode::kCorruption, "its tag"));
  FlipBit(table, 100);
  EXPECT_THAT(SealStore(path(), std::string(32, 'x')), FailsWith(StatusCode::kCorruption, "tag"));
  const auto report = SealStore(path(), kKey);
  VARVE_ASSERT_OK(report.status());
  EXPECT_EQ(report->num_files, Tables().size());
  const fs::path plain = folder_.path() / "plain";
  VARVE_ASSERT_OK(Store::Create(plain, {}).status());
  EXPECT_THAT(SealStore(plain, kKey),
              FailsWith(StatusCode::kFailedPrecondition, "was not made with a key"));
}

TEST_F(SealTest, ARepairKeepsNothingOfAForgedTable) {
  SaveSteps(3);
  ASSERT_EQ(TablesOf(Family::kChunks).size(), 3u);
  ForgeChunk(TablesOf(Family::kChunks).front());
  store_.reset();
  EXPECT_THAT(RepairStore(path()), FailsWith(StatusCode::kFailedPrecondition, "no key was given"));
  const auto report = RepairStore(path(), {.key = kKey});
  VARVE_ASSERT_OK(report.status());
  EXPECT_EQ(report->lost.size(), 1u);
  EXPECT_EQ(report->kept.size(), 2u);
  ExpectSealed(path());
}

// Whoever forges a block can damage another one, so that the file does not open as a sound one
// does.
TEST_F(SealTest, ARepairKeepsNothingOfAForgedTableWithADamagedBlock) {
  const TestTensor small = RandomTensor("b", DType::kU8, {30000}, 5);
  VARVE_ASSERT_OK(Save(1, {RandomTensor("a", DType::kU8, {30000}, 4)}).status());
  VARVE_ASSERT_OK(Save(2, {RandomTensor("c", DType::kU8, {90000}, 6), small}).status());
  VARVE_ASSERT_OK(Save(3, {small}).status());
  const auto tables = TablesOf(Family::kChunks);
  store_.reset();
  ASSERT_EQ(tables.size(), 2u);
  FlipBit(tables.back(), 1000);  // the chunk of c
  const auto report = RepairStore(path(), {.keep_partial = true, .key = kKey});
  VARVE_ASSERT_OK(report.status());
  ASSERT_EQ(report->kept.size(), 1u);
  EXPECT_EQ(report->kept[0].id.step, 1u);
  EXPECT_THAT(report->partial, ::testing::IsEmpty());
  ExpectSealed(path());
}

TEST_F(SealTest, ARepairWithoutASealSaysThatStepsMayBeMissing) {
  SaveSteps(3);
  store_.reset();
  fs::remove_all(path() / "seal");
  const auto report = RepairStore(path(), {.key = kKey});
  VARVE_ASSERT_OK(report.status());
  EXPECT_EQ(report->kept.size(), 3u);
  EXPECT_THAT(report->warnings, ::testing::Contains(::testing::HasSubstr("no seal says")));
  ExpectSealed(path());
}

// The writer seals and grows the manifest, replaces it, and removes tables meanwhile.
TEST_F(SealTest, ACheckBesideAWriterAccusesNobody) {
  SaveSteps(2);
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (uint64_t step = 3; step < 120 && !HasFailure(); ++step) {
      VARVE_EXPECT_OK(Save(step, {RandomTensor("w", DType::kU8, {3000}, step)}).status());
      if (step % 3 == 0) VARVE_EXPECT_OK(DropSteps({step - 2}));
      if (step % 30 != 0) continue;
      store_.reset();
      Reopen({.key = kKey});
    }
    done = true;
  });
  uint64_t checks = 0;
  do {
    const CheckReport report = CheckOf(path());
    EXPECT_THAT(report.errors, ::testing::IsEmpty());
    ++checks;
  } while (!done && !HasFailure());
  EXPECT_GT(checks, 1u);
}

TEST_F(SealTest, MembersOfAGroupAreSealed) {
  const fs::path root = folder_.path() / "root";
  const auto epoch = Group::StartEpoch(root, 1);
  VARVE_ASSERT_OK(epoch.status());
  {
    auto joined = Group::Join(root, {.rank = 0, .epoch = *epoch, .store = {.key = kKey}});
    VARVE_ASSERT_OK(joined.status());
    auto writer = (*joined)->Begin(1, {});
    VARVE_ASSERT_OK(writer.status());
    const TestTensor tensor = RandomTensor("w", DType::kU8, {3000}, 1);
    VARVE_ASSERT_OK((*writer)->Put(tensor.view()));
    VARVE_ASSERT_OK((*writer)->Commit().status());
  }
  const CheckReport report = CheckOf(root);
  EXPECT_THAT(report.errors, ::testing::IsEmpty());
  EXPECT_TRUE(report.is_sealed);
  EXPECT_GT(report.num_sealed_files, 0u);
}

TEST(ReadKeyFileTest, TakesAllBytes) {
  const TempFolder folder;
  const fs::path file = folder.path() / "key";
  EXPECT_THAT(ReadKeyFile(file), FailsWith(StatusCode::kNotFound, "key"));
  std::ofstream(file) << "short";
  EXPECT_THAT(ReadKeyFile(file), FailsWith(StatusCode::kInvalidArgument, "has 5 bytes"));
  std::ofstream(file) << std::string(1025, 'k');
  EXPECT_THAT(ReadKeyFile(file), FailsWith(StatusCode::kInvalidArgument, "more than 1024 bytes"));
  const std::string bytes("\0\n key of 20 bytes \n", 20);
  std::ofstream(file) << bytes;
  EXPECT_EQ(ReadKeyFile(file).value(), bytes);
}

}  // namespace
}  // namespace varve::internal::testing
