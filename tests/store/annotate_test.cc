// SPDX-License-Identifier: Apache-2.0
//
// Tags and metrics that come after the save.
#include <cmath>
#include <limits>

#include "tests/store/store_fixture.h"

namespace varve {
namespace {

using testing::FailsWith;
using testing::RandomTensor;
using ::testing::ElementsAre;
using ::testing::Pair;
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
  EXPECT_THAT(store_->SetTag({"main", 3}, "t"), FailsWith(StatusCode::kNotFound, "step 3 of run main"));
  EXPECT_THAT(store_->SetMetrics({"other", 1}, {{"x", 1}}),
              FailsWith(StatusCode::kNotFound, "no run other"));
  for (const char* tag : {"7", "latest", "a b", "a@b", "a:b", ""}) {
    EXPECT_THAT(store_->SetTag({"main", 1}, tag), FailsWith(StatusCode::kInvalidArgument, "tag")) << tag;
  }
  EXPECT_THAT(store_->SetMetrics({"main", 1}, {{"", 1}}),
              FailsWith(StatusCode::kInvalidArgument, "metric name"));
  const auto reader = Store::OpenForReading(path());
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->SetTag({"main", 1}, "t"),
              FailsWith(StatusCode::kFailedPrecondition, "for reading only"));
}

}  // namespace
}  // namespace varve
