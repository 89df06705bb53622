// SPDX-License-Identifier: Apache-2.0
//
// Tables that are written as their changes come, and what a commit makes of them.
#include "store/db/table_stream.h"

#include "tests/store/internals.h"

namespace varve::internal {

namespace {

using testing::FailsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TableStreamTest : public testing::InternalsTest {
 protected:
  std::unique_ptr<TableStream> NewStream(size_t max_changes = TableStream::kMaxChanges) {
    return std::make_unique<TableStream>(database(), impl()->incoming(), Family::kIndex,
                                         max_changes);
  }
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(impl()->incoming())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  // The hints of the index decide nothing, so a full check lets any be there.
  static std::string Key(int i) { return keys::Index({static_cast<uint64_t>(i), 0}); }
  static std::string Value(uint32_t i) { return EncodeAddress({uint64_t{1} << 40, i}); }
  std::optional<std::string> Get(int i) { return *database()->Get(Family::kIndex, Key(i)); }
};

TEST_F(TableStreamTest, ManyTablesAreOneCommit) {
  auto stream = NewStream(3);
  for (int i = 0; i < 10; ++i) VARVE_ASSERT_OK(stream->Put(Key(i), Value(1)));
  VARVE_ASSERT_OK(stream->Finish());
  EXPECT_THAT(stream->paths(), SizeIs(4));
  CommitBatch batch;
  batch.Add(std::move(stream));
  EXPECT_FALSE(batch.empty());
  EXPECT_EQ(batch.num_bytes(), 0u);
  EXPECT_EQ(Get(0), std::nullopt);
  VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get(i), Value(1));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(TableStreamTest, LaterStreamsAndTheBatchWin) {
  auto first = NewStream(2), second = NewStream(2);
  for (int i = 0; i < 6; ++i) VARVE_ASSERT_OK(first->Put(Key(i), Value(1)));
  VARVE_ASSERT_OK(second->Delete(Key(2)));
  VARVE_ASSERT_OK(second->Put(Key(3), Value(2)));
  VARVE_ASSERT_OK(second->Delete(Key(5)));
  CommitBatch batch;
  batch.Put(Family::kIndex, Key(5), Value(3));
  batch.Delete(Family::kIndex, Key(0));
  for (auto* stream : {&first, &second}) {
    VARVE_ASSERT_OK((*stream)->Finish());
    batch.Add(std::move(*stream));
  }
  VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
  EXPECT_EQ(Get(0), std::nullopt);
  EXPECT_EQ(Get(1), Value(1));
  EXPECT_EQ(Get(2), std::nullopt);
  EXPECT_EQ(Get(3), Value(2));
  EXPECT_EQ(Get(5), Value(3));
}

TEST_F(TableStreamTest, WithoutACommitNothingStays) {
  {
    auto finished = NewStream(2), open = NewStream(2);
    for (int i = 0; i < 5; ++i) {
      VARVE_ASSERT_OK(finished->Put(Key(i), Value(1)));
      VARVE_ASSERT_OK(open->Put(Key(i), Value(1)));
    }
    VARVE_ASSERT_OK(finished->Finish());
    EXPECT_THAT(Files(), SizeIs(6));
  }
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(Get(0), std::nullopt);
}

TEST_F(TableStreamTest, AStreamWithoutAChangeIsNoCommit) {
  auto stream = NewStream();
  VARVE_ASSERT_OK(stream->Finish());
  CommitBatch batch;
  batch.Add(std::move(stream));
  EXPECT_TRUE(batch.empty());
}

TEST_F(TableStreamTest, KeysMustRise) {
  auto stream = NewStream();
  VARVE_ASSERT_OK(stream->Put(Key(2), Value(1)));
  EXPECT_THAT(stream->Put(Key(1), Value(1)), FailsWith(StatusCode::kIOError, "commit-"));
}

}  // namespace

}  // namespace varve::internal
