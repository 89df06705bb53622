// SPDX-License-Identifier: Apache-2.0
#include "store/db/commit_batch.h"

#include <rocksdb/sst_file_reader.h>

#include "store/db/rocksdb_options.h"
#include "tests/store/internals.h"
#include "tests/store/repair_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class CommitBatchTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;  // the records below are none
  }
  std::vector<std::pair<std::string, std::string>> Lists() {
    std::vector<std::pair<std::string, std::string>> found;
    VARVE_EXPECT_OK(
        database()->Scan(Family::kLists, "", [&](std::string_view key, std::string_view value) {
          found.emplace_back(key, value);
          return Status::Ok();
        }));
    return found;
  }
  static std::string Noise(int seed) {
    const TestTensor tensor = RandomTensor("noise", DType::kU8, {50}, static_cast<uint64_t>(seed));
    return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
  }
  std::filesystem::path TheOnlyTable() {
    std::filesystem::directory_iterator files(impl()->incoming());
    std::filesystem::path table = *files++;
    EXPECT_EQ(files, std::filesystem::directory_iterator());
    return table;
  }
  static rocksdb::TableProperties PropertiesOf(const std::filesystem::path& table) {
    rocksdb::SstFileReader reader(MakeTableOptions());
    EXPECT_TRUE(reader.Open(table.string()).ok());
    return *reader.GetTableProperties();
  }
  void DamageTheOnlyTable(bool at_first_block, bool has_many_blocks) {
    const std::filesystem::path table = TheOnlyTable();
    const rocksdb::TableProperties properties = PropertiesOf(table);
    ASSERT_EQ(properties.num_data_blocks > 1, has_many_blocks);
    FlipBit(table, at_first_block ? 20 : properties.data_size - 20);
  }

  static std::string KeyOf(Family family, int i) {
    const auto ordinal = static_cast<uint32_t>(i);
    return family == Family::kChunks ? keys::Chunk({1, ordinal}) : std::to_string(1000 + i);
  }
  static constexpr int kManyKeys = 2000;
  static CommitBatch ManyKeys() {
    CommitBatch batch;
    for (int i = 0; i < kManyKeys; ++i) batch.Put(Family::kLists, KeyOf(Family::kLists, i), "v");
    return batch;
  }
  static CommitBatch DeletionsOfManyKeys() {
    CommitBatch batch;
    for (int i = 0; i < kManyKeys; ++i) batch.Delete(Family::kLists, KeyOf(Family::kLists, i));
    return batch;
  }

  Status Commit(const CommitBatch& batch) {
    return batch.Commit(database(), impl()->incoming(), {});
  }
};

TEST_F(CommitBatchTest, SortedEntriesComeBetweenTheHeldOnes) {
  Change(Family::kLists, "b", "old");
  Change(Family::kLists, "d", "old");
  CommitBatch batch;
  for (const char* key : {"a", "e", "g"}) batch.Put(Family::kLists, key, "held");
  batch.Delete(Family::kLists, "b");
  batch.Delete(Family::kLists, "d");
  batch.PutSorted(Family::kLists, [](const CommitBatch::Emit& emit) {
    for (const char* key : {"c", "d", "e", "f"}) VARVE_RETURN_IF_ERROR(emit(key, "sorted"));
    return Status::Ok();
  });
  EXPECT_FALSE(batch.empty());
  VARVE_ASSERT_OK(Commit(batch));
  EXPECT_THAT(Lists(), ElementsAre(Pair("a", "held"), Pair("c", "sorted"), Pair("d", "sorted"),
                                   Pair("e", "sorted"), Pair("f", "sorted"), Pair("g", "held")));
}

TEST_F(CommitBatchTest, WhatCannotBeMadeLeavesNothing) {
  CommitBatch batch;
  batch.Put(Family::kMeta, "m", "held");
  batch.PutSorted(Family::kLists, [](const CommitBatch::Emit& emit) {
    VARVE_RETURN_IF_ERROR(emit("a", "sorted"));
    return Status::Aborted("no more");
  });
  EXPECT_THAT(Commit(batch), FailsWith(StatusCode::kAborted, "no more"));
  EXPECT_THAT(Lists(), IsEmpty());
  EXPECT_EQ(database()->Get(Family::kMeta, "m").value(), std::nullopt);
  EXPECT_TRUE(std::filesystem::is_empty(impl()->incoming()));
}

TEST_F(CommitBatchTest, EntriesThatDoNotRiseAreRefused) {
  CommitBatch batch;
  batch.PutSorted(Family::kLists, [](const CommitBatch::Emit& emit) {
    VARVE_RETURN_IF_ERROR(emit("b", "sorted"));
    return emit("a", "sorted");
  });
  EXPECT_FALSE(Commit(batch).ok());
  EXPECT_THAT(Lists(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(impl()->incoming()));
}

// RocksDB does not look at errors there. It would hide the keys of the table, or end the process.
TEST_F(CommitBatchTest, ATableWhoseFirstOrLastBlockIsDamagedIsRefused) {
  for (const Family family : {Family::kLists, Family::kChunks}) {
    for (const int num_keys : {1, 2000}) {
      for (const bool is_first : {true, false}) {
        SCOPED_TRACE(num_keys);
        CommitBatch batch;
        for (int i = 0; i < num_keys; ++i) batch.Put(family, KeyOf(family, i), Noise(i));
        VARVE_ASSERT_OK(batch.Write(database(), impl()->incoming()));
        ASSERT_NO_FATAL_FAILURE(DamageTheOnlyTable(is_first, num_keys > 1));
        EXPECT_THAT(Commit(batch), FailsWith(StatusCode::kIOError, "block checksum mismatch"));
        EXPECT_EQ(CountKeys(family), 0u);
      }
    }
  }
}

// Nothing but deletions has no last key that a reader sees. The ends are read all the same.
TEST_F(CommitBatchTest, DeletionsOfManyBlocksAreCommitted) {
  VARVE_ASSERT_OK(Commit(ManyKeys()));
  EXPECT_EQ(CountKeys(Family::kLists), uint64_t{kManyKeys});
  CommitBatch deletions = DeletionsOfManyKeys();
  VARVE_ASSERT_OK(deletions.Write(database(), impl()->incoming()));
  EXPECT_GT(PropertiesOf(TheOnlyTable()).num_data_blocks, 1u);
  VARVE_ASSERT_OK(Commit(deletions));
  EXPECT_THAT(Lists(), IsEmpty());
}

TEST_F(CommitBatchTest, DeletionsWhoseFirstOrLastBlockIsDamagedAreRefused) {
  VARVE_ASSERT_OK(Commit(ManyKeys()));
  for (const bool is_first : {true, false}) {
    CommitBatch deletions = DeletionsOfManyKeys();
    VARVE_ASSERT_OK(deletions.Write(database(), impl()->incoming()));
    ASSERT_NO_FATAL_FAILURE(DamageTheOnlyTable(is_first, /*has_many_blocks=*/true));
    EXPECT_FALSE(Commit(deletions).ok());
    EXPECT_EQ(CountKeys(Family::kLists), uint64_t{kManyKeys});
  }
}

}  // namespace
}  // namespace varve::internal::testing
