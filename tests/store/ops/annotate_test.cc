// SPDX-License-Identifier: Apache-2.0
//
// Tags and metrics that come after the save.
#include <cmath>
#include <limits>

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::Pair;
using testing::RandomTensor;
using ::testing::UnorderedElementsAre;

class AnnotateTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    for (const uint64_t step : {1, 2}) {
      VARVE_ASSERT_OK(Save(step, {RandomTensor("w", DType::kF32, {100}, step)}).status());
    }
  }
  CheckpointInfo Info(uint64_t step) { return (*store_->OpenCheckpoint("main", step))->info(); }
};

TEST_F(AnnotateTest, MetricsAreAddedAndReplaced) {
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 1}, {{"loss", 2.5}, {"accuracy", 0.5}}));
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 1}, {{"loss", 1.5}}));
  EXPECT_THAT(Info(1).metrics, UnorderedElementsAre(Pair("loss", 1.5), Pair("accuracy", 0.5)));
  EXPECT_TRUE(Info(2).metrics.empty());
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 2}, {{"loss", std::nan("")}}));
  Reopen();
  EXPECT_EQ(Info(1).metrics.at("loss"), 1.5);
  EXPECT_TRUE(std::isnan(Info(2).metrics.at("loss")));
}

TEST_F(AnnotateTest, TagsMoveAndGo) {
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "good"));
  EXPECT_EQ(*store_->FindTag("main", "good"), 1);
  VARVE_ASSERT_OK(store_->SetTag({"main", 2}, "good"));
  EXPECT_EQ(*store_->FindTag("main", "good"), 2);
  EXPECT_THAT(Info(2).tags, ElementsAre("good"));
  EXPECT_TRUE(Info(1).tags.empty());
  VARVE_ASSERT_OK(store_->RemoveTag("main", "good"));
  EXPECT_THAT(store_->FindTag("main", "good"), FailsWith(StatusCode::kNotFound, "no tag good"));
  EXPECT_THAT(store_->RemoveTag("main", "good"), FailsWith(StatusCode::kNotFound, "no tag good"));
}

TEST_F(AnnotateTest, RefusesWhatNamesNothing) {
  EXPECT_THAT(store_->SetTag({"main", 3}, "t"),
              FailsWith(StatusCode::kNotFound, "step 3 of run main"));
  EXPECT_THAT(store_->SetMetrics({"other", 1}, {{"x", 1}}),
              FailsWith(StatusCode::kNotFound, "no run other"));
  for (const char* tag : {"7", "latest", "a b", "a@b", "a:b", ""}) {
    EXPECT_THAT(store_->SetTag({"main", 1}, tag), FailsWith(StatusCode::kInvalidArgument, "tag"))
        << tag;
  }
  EXPECT_THAT(store_->SetMetrics({"main", 1}, {{"", 1}}),
              FailsWith(StatusCode::kInvalidArgument, "metric name"));
  const auto reader = Store::OpenForReading(path());
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->SetTag({"main", 1}, "t"),
              FailsWith(StatusCode::kFailedPrecondition, "for reading only"));
}

// The remembered tags of a step follow every change, here and beside the writer.
TEST_F(AnnotateTest, TagsOfAnOpenedStepAreThoseOfNow) {
  const auto reader = Store::OpenForReading(path()).value();
  const auto expect_tags = [&](uint64_t step, const std::vector<std::string>& tags) {
    VARVE_ASSERT_OK(reader->CatchUp());
    EXPECT_EQ((*store_->OpenCheckpoint("main", step))->info().tags, tags);
    EXPECT_EQ((*reader->OpenCheckpoint("main", step))->info().tags, tags);
  };
  expect_tags(1, {});
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "b"));
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "a"));
  expect_tags(1, {"a", "b"});
  VARVE_ASSERT_OK(store_->SetTag({"main", 2}, "a"));
  expect_tags(1, {"b"});
  expect_tags(2, {"a"});
  VARVE_ASSERT_OK(store_->RemoveTag("main", "a"));
  expect_tags(2, {});
  VARVE_ASSERT_OK(store_->Fork("main", "other", 1).status());
  EXPECT_TRUE((*store_->OpenCheckpoint("other", 1))->info().tags.empty());
  expect_tags(1, {"b"});
  const CheckpointId first{"main", 1};
  VARVE_ASSERT_OK(store_->Drop(std::span(&first, 1)).status());
  EXPECT_EQ(store_->FindTag("main", "b").status().code(), StatusCode::kNotFound);
}

}  // namespace

}  // namespace varve::internal
