// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "tests/support/temp_folder.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StepExprTest, ReadsEveryForm) {
  EXPECT_EQ(ParseStep("100").value(), (StepExpr{"main", uint64_t{100}}));
  EXPECT_EQ(ParseStep("007").value(), (StepExpr{"main", uint64_t{7}}));
  EXPECT_EQ(ParseStep("18446744073709551615").value(), (StepExpr{"main", UINT64_MAX}));
  EXPECT_EQ(ParseStep("latest").value(), (StepExpr{"main", LatestStep{}}));
  EXPECT_EQ(ParseStep("best:loss").value(), (StepExpr{"main", BestStep{"loss", false}}));
  EXPECT_EQ(ParseStep("best:loss:min").value(), (StepExpr{"main", BestStep{"loss", false}}));
  EXPECT_EQ(ParseStep("best:acc:max").value(), (StepExpr{"main", BestStep{"acc", true}}));
  EXPECT_EQ(ParseStep("best:max").value(), (StepExpr{"main", BestStep{"max", false}}));
  EXPECT_EQ(ParseStep("best:a:b:max").value(), (StepExpr{"main", BestStep{"a:b", true}}));
  EXPECT_EQ(ParseStep("v1.0").value(), (StepExpr{"main", TaggedStep{"v1.0"}}));
}

TEST(StepExprTest, ReadsEveryFormInARun) {
  EXPECT_EQ(ParseStep("exp@100").value(), (StepExpr{"exp", uint64_t{100}}));
  EXPECT_EQ(ParseStep("exp@latest").value(), (StepExpr{"exp", LatestStep{}}));
  EXPECT_EQ(ParseStep("exp~1@best:x:max").value(), (StepExpr{"exp~1", BestStep{"x", true}}));
  EXPECT_EQ(ParseStep("100@v1").value(), (StepExpr{"100", TaggedStep{"v1"}}));
}

TEST(StepExprTest, RejectsWhatNamesNoStep) {
  for (const char* text : {"", "@", "@5", "exp@", "a@b@c", "best:", "exp@best:", "a b", "x:y", "-1",
                           "18446744073709551616", "main@", "best"}) {
    const Result<StepExpr> expr = ParseStep(text);
    EXPECT_EQ(expr.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(expr.status().message(),
                HasSubstr("\"" + std::string(text) + "\" names no step: "));
  }
}

TEST(StepExprTest, ReadsAStepOfARun) {
  EXPECT_EQ(ParseStepOfRun("exp", "5").value(), (StepExpr{"exp", uint64_t{5}}));
  EXPECT_EQ(ParseStepOfRun("exp", "exp@best:x").value(), (StepExpr{"exp", BestStep{"x", false}}));
  EXPECT_EQ(ParseStepOfRun("main", "main@v1").value(), (StepExpr{"main", TaggedStep{"v1"}}));
  EXPECT_THAT(ParseStepOfRun("exp", "main@5").status().message(),
              HasSubstr("\"main@5\" is not of run \"exp\""));
  for (const char* run : {"", "a@b", "a b"}) {
    EXPECT_EQ(ParseStepOfRun(run, "5").status().code(), StatusCode::kInvalidArgument) << run;
  }
}

class ResolveStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Store>> store = Store::Create(folder_.path() / "store");
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
    Save("main", 10, 3.0, "first");
    Save("main", 20, 1.0, "");
    Save("main", 30, NAN, "last");
    Save("exp", 5, 0.5, "first");
  }

  void TearDown() override {
    const Result<CheckReport> report = store_->Check({.read_data = true});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->errors, ElementsAre());
  }

  void Save(const std::string& run, uint64_t step, double loss, const std::string& tag) {
    SaveOptions options;
    options.run = run;
    const auto writer = store_->Begin(step, options);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    ASSERT_TRUE((*writer)->SetMetric("loss", loss).ok());
    if (!tag.empty()) {
      ASSERT_TRUE((*writer)->AddTag(tag).ok());
    }
    const auto report = (*writer)->Commit();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }

  CheckpointId Resolve(std::string_view text) {
    const Result<CheckpointId> id = store_->Resolve(text);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? *id : CheckpointId{};
  }

  testing::TempFolder folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(ResolveStepTest, FindsEveryForm) {
  EXPECT_EQ(Resolve("latest"), (CheckpointId{"main", 30}));
  EXPECT_EQ(Resolve("best:loss"), (CheckpointId{"main", 20}));
  EXPECT_EQ(Resolve("best:loss:max"), (CheckpointId{"main", 10}));
  EXPECT_EQ(Resolve("first"), (CheckpointId{"main", 10}));
  EXPECT_EQ(Resolve("exp@first"), (CheckpointId{"exp", 5}));
  EXPECT_EQ(Resolve("exp@latest"), (CheckpointId{"exp", 5}));
  EXPECT_EQ(Resolve("77"), (CheckpointId{"main", 77}));
}

TEST_F(ResolveStepTest, LooksInTheRunGiven) {
  EXPECT_EQ(ResolveStepOfRun(*store_, "exp", "first").value(), (CheckpointId{"exp", 5}));
  EXPECT_EQ(ResolveStepOfRun(*store_, "exp", "latest").value(), (CheckpointId{"exp", 5}));
  EXPECT_EQ(ResolveStepOfRun(*store_, "exp", "last").status().code(), StatusCode::kNotFound);
}

TEST_F(ResolveStepTest, NamesWhatIsMissing) {
  for (const char* text : {"gone@latest", "no-such-tag", "best:accuracy", "gone@best:loss"}) {
    EXPECT_EQ(store_->Resolve(text).status().code(), StatusCode::kNotFound) << text;
  }
  EXPECT_THAT(store_->Resolve("best:accuracy").status().message(),
              HasSubstr("run \"main\" has no step with a number for the metric \"accuracy\""));
}

TEST_F(ResolveStepTest, ResolvesSeveralWithoutRepetition) {
  const std::string texts[] = {"latest", "10", "first", "30"};
  EXPECT_THAT(ResolveSteps(*store_, texts).value(),
              ElementsAre(CheckpointId{"main", 30}, CheckpointId{"main", 10}));
}

}  // namespace

}  // namespace varve::internal
