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
  for (const int num_keys : {1, 2000}) {
    for (const bool is_first : {true, false}) {
      SCOPED_TRACE(num_keys);
      CommitBatch batch;
      for (int i = 1000; i < 1000 + num_keys; ++i) {
        batch.Put(Family::kLists, std::to_string(i), Noise(i));
      }
      VARVE_ASSERT_OK(batch.Write(database(), impl()->incoming()));
      const std::filesystem::path table = TheOnlyTable();
      rocksdb::SstFileReader reader(MakeTableOptions());
      ASSERT_TRUE(reader.Open(table.string()).ok());
      EXPECT_EQ(reader.GetTableProperties()->num_data_blocks > 5, num_keys > 1);
      FlipBit(table, is_first ? 20 : reader.GetTableProperties()->data_size - 20);
      EXPECT_THAT(Commit(batch), FailsWith(StatusCode::kIOError, "block checksum mismatch"));
      EXPECT_THAT(Lists(), IsEmpty());
    }
  }
}

// Nothing but deletions has no last key that a reader sees. The ends are read all the same.
TEST_F(CommitBatchTest, DeletionsOfManyBlocksAreCommitted) {
  CommitBatch puts, deletions;
  for (int i = 1000; i < 3000; ++i) {
    puts.Put(Family::kLists, std::to_string(i), "value");
    deletions.Delete(Family::kLists, std::to_string(i));
  }
  VARVE_ASSERT_OK(Commit(puts));
  EXPECT_EQ(Lists().size(), 2000u);
  VARVE_ASSERT_OK(Commit(deletions));
  EXPECT_THAT(Lists(), IsEmpty());
}

}  // namespace
}  // namespace varve::internal::testing
