// SPDX-License-Identifier: Apache-2.0
//
// The traps of this RocksDB (docs/durability.md), each held by a test.
#include <sys/resource.h>

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using TrapsTest = StoreTest;

// In a database that only ever ingested, a snapshot at sequence number 0 makes a compaction drop
// live keys. Create writes through the log first, so no snapshot can be that old.
TEST_F(TrapsTest, SnapshotBeforeTheFirstIngestLosesNothing) {
  store_.reset();
  auto database = Database::OpenForWriting(path()).value();
  EXPECT_GT(database->rocksdb()->GetLatestSequenceNumber(), 0u);
}

// The whole trap: a reader's snapshot is taken early, everything after it is ingested and
// compacted.
TEST_F(TrapsTest, CompactionUnderAnEarlySnapshotLosesNothing) {
  auto* db = static_cast<StoreImpl*>(store_.get())->database()->rocksdb();
  const rocksdb::Snapshot* snapshot = db->GetSnapshot();
  std::vector<TestTensor> tensors;
  for (uint64_t step = 1; step <= 20; ++step) {
    tensors = {RandomTensor("t", DType::kU8, {3000}, step)};
    VARVE_ASSERT_OK(Save(step, tensors).status());
  }
  for (int i = 0; i < kNumFamilies; ++i) {
    auto* handle =
        static_cast<StoreImpl*>(store_.get())->database()->handle(static_cast<Family>(i));
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    ASSERT_TRUE(db->CompactRange(all, handle, nullptr, nullptr).ok());
  }
  db->ReleaseSnapshot(snapshot);
  for (uint64_t step = 1; step <= 20; ++step) {
    ExpectHolds(step, {RandomTensor("t", DType::kU8, {3000}, step)});
  }
}

TEST_F(TrapsTest, RocksDbWritesNoLogOfItsOwn) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {1000}, 1)}).status());
  for (int i = 0; i < 5; ++i) Reopen();
  int logs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    EXPECT_EQ(entry.path().filename().string().rfind("LOG", 0), std::string::npos) << entry.path();
    logs += entry.path().extension() == ".log" ? 1 : 0;
  }
  EXPECT_LE(logs, 2);  // empty write-ahead logs do not pile up
}

TEST_F(TrapsTest, ManySmallSavesStayFewFiles) {
  TestTensor t = RandomTensor("t", DType::kU8, {3000}, 1);
  for (uint64_t step = 0; step < 300; ++step) {
    t.bytes[step] ^= std::byte{1};
    VARVE_ASSERT_OK(Save(step, {t}).status());
  }
  EXPECT_LE(GetStats().num_files, 200u);
  ExpectHolds(299, {t});
}

TEST_F(TrapsTest, ChunksHoldNoTombstones) {
  for (uint64_t step = 0; step < 40; ++step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {3000}, step)}).status());
  }
  std::vector<uint64_t> odd;
  for (uint64_t step = 1; step < 40; step += 2) odd.push_back(step);
  VARVE_ASSERT_OK(DropSteps(odd));
  store_.reset();
  auto database = Database::OpenForReading(path()).value();
  rocksdb::ColumnFamilyMetaData files;
  database->rocksdb()->GetColumnFamilyMetaData(database->handle(Family::kChunks), &files);
  for (const auto& level : files.levels) {
    for (const auto& file : level.files) EXPECT_EQ(file.num_deletions, 0u) << file.name;
  }
}

TEST_F(TrapsTest, ReserveIsThere) {
  EXPECT_GE(fs::file_size(path() / "RESERVE"), uint64_t{8} << 20);
  store_.reset();
  fs::remove(path() / "RESERVE");
  Reopen();
  EXPECT_GE(fs::file_size(path() / "RESERVE"), uint64_t{8} << 20);
}

TEST_F(TrapsTest, DescriptorLimitIsRaised) {
  struct rlimit limit {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace varve::internal::testing
