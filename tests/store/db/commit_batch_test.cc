// SPDX-License-Identifier: Apache-2.0
#include "store/db/commit_batch.h"

#include "tests/store/internals.h"

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

}  // namespace
}  // namespace varve::internal::testing
