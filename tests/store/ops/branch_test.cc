// SPDX-License-Identifier: Apache-2.0
//
// Forks and rewinds.
#include <thread>

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;
using testing::NormalTensor;
using testing::RandomTensor;
using testing::TestTensor;

// The bf16 copy of an fp32 tensor, rounded to the nearest even.
TestTensor Rounded(const TestTensor& master, std::string name) {
  TestTensor tensor{std::move(name), DType::kBF16, master.shape, {}, master.name};
  for (size_t i = 0; i < master.bytes.size(); i += 4) {
    uint32_t bits = 0;
    std::memcpy(&bits, &master.bytes[i], 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    tensor.bytes.push_back(static_cast<std::byte>(rounded));
    tensor.bytes.push_back(static_cast<std::byte>(rounded >> 8));
  }
  return tensor;
}

class BranchTest : public testing::StoreTest {
 protected:
  // Returns what step `step` holds: a part that changes, one that does not, and a derived tensor.
  static std::vector<TestTensor> State(uint64_t step) {
    const TestTensor master = NormalTensor("master", {300000}, step);
    return {master, Rounded(master, "model"), RandomTensor("frozen", DType::kF32, {70000}, 1)};
  }
  std::vector<uint64_t> StepsOf(const std::string& run) {
    std::vector<uint64_t> steps;
    const auto infos = store_->ListCheckpoints(run);
    EXPECT_TRUE(infos.ok()) << infos.status().ToString();
    for (const CheckpointInfo& info : *infos) steps.push_back(info.id.step);
    return steps;
  }
  std::vector<std::string> Runs() {
    std::vector<std::string> names;
    const auto runs = store_->ListRuns();
    for (const RunInfo& run : *runs) names.push_back(run.name);
    return names;
  }
};

TEST_F(BranchTest, ForkSharesEverything) {
  for (const uint64_t step : {10, 20, 30}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 20}, {{"loss", 3}}));
  VARVE_ASSERT_OK(store_->SetTag({"main", 20}, "mid"));
  const auto before = store_->Stats();
  EXPECT_EQ(*store_->Fork("main", "try", 20), 20);
  const auto after = store_->Stats();
  EXPECT_EQ(after->stored_bytes, before->stored_bytes);
  EXPECT_EQ(after->num_chunks, before->num_chunks);
  EXPECT_EQ(after->num_steps, before->num_steps + 1);
  ExpectHolds(*store_, 20, State(20), "try");

  const CheckpointInfo info = (*store_->OpenCheckpoint("try", 20))->info();
  EXPECT_EQ(info.parent, (CheckpointId{"main", 20}));
  EXPECT_EQ(info.stored_bytes, 0);
  EXPECT_EQ(info.metrics.at("loss"), 3);
  EXPECT_THAT(info.tags, IsEmpty());
  EXPECT_EQ((*store_->ListRuns())[1].forked_from, (CheckpointId{"main", 20}));
}

// A fork's derived chunks and delta bases live on when the original goes, and the other way round.
TEST_F(BranchTest, ForkOutlivesItsOrigin) {
  for (const uint64_t step : {10, 20}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(store_->Fork("main", "try").status());
  VARVE_ASSERT_OK(DropSteps({10, 20}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectHolds(*store_, 20, State(20), "try");
  VARVE_ASSERT_OK(Save(30, State(30), {.run = "try"}).status());
  const CheckpointId origin{"try", 20};
  VARVE_ASSERT_OK(store_->Drop(std::span(&origin, 1)).status());
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectHolds(*store_, 30, State(30), "try");
}

TEST_F(BranchTest, ForkCarriesStateAndItems) {
  auto writer = *store_->Begin(1);
  VARVE_ASSERT_OK(writer->SetTrainerProgress({.global_step = 77}));
  VARVE_ASSERT_OK(writer->SetTopology({.dp = 4, .world_size = 4}));
  const std::string item = "opaque";
  VARVE_ASSERT_OK(writer->PutBytes("loader", std::as_bytes(std::span(item))));
  VARVE_ASSERT_OK(writer->Commit().status());
  VARVE_ASSERT_OK(store_->Fork("main", "try").status());
  const auto reader = *store_->OpenCheckpoint("try", 1);
  EXPECT_EQ((*reader->ReadTrainerProgress())->global_step, 77);
  EXPECT_EQ((*reader->ReadTopology())->dp, 4);
  EXPECT_EQ(reader->ReadBytes("loader")->size(), item.size());
}

TEST_F(BranchTest, ForkRefuses) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  EXPECT_THAT(store_->Fork("main", "main"), FailsWith(StatusCode::kAlreadyExists, "run main"));
  EXPECT_THAT(store_->Fork("main", "x", 5), FailsWith(StatusCode::kNotFound, "step 5 of run main"));
  EXPECT_THAT(store_->Fork("none", "x"), FailsWith(StatusCode::kNotFound, "no run none"));
  EXPECT_THAT(store_->Fork("main", "a@b"), FailsWith(StatusCode::kInvalidArgument, "run"));
  EXPECT_THAT(Runs(), ElementsAre("main"));
}

TEST_F(BranchTest, RewindMovesLaterStepsToAFork) {
  for (const uint64_t step : {10, 20, 30, 40}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(store_->SetTag({"main", 20}, "stays"));
  VARVE_ASSERT_OK(store_->SetTag({"main", 40}, "goes"));
  const auto report = store_->Rewind("main", 20);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->fork, "main~1");
  EXPECT_THAT(report->moved, ElementsAre(30, 40));
  EXPECT_THAT(StepsOf("main"), ElementsAre(10, 20));
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(30, 40));
  EXPECT_EQ(*store_->LatestStep("main"), 20);
  EXPECT_EQ(*store_->FindTag("main~1", "goes"), 40);
  EXPECT_THAT(store_->FindTag("main", "goes"), FailsWith(StatusCode::kNotFound, "goes"));
  EXPECT_EQ(*store_->FindTag("main", "stays"), 20);
  EXPECT_EQ((*store_->OpenCheckpoint("main~1", 40))->info().parent, (CheckpointId{"main~1", 30}));
  EXPECT_EQ((*store_->OpenCheckpoint("main~1", 30))->info().parent, (CheckpointId{"main", 20}));
  ExpectHolds(*store_, 40, State(40), "main~1");

  // The numbers are free again, and a second rewind takes the next name.
  VARVE_ASSERT_OK(Save(30, State(31)).status());
  ExpectHolds(30, State(31));
  EXPECT_EQ(store_->Rewind("main", 20)->fork, "main~2");
  EXPECT_THAT(store_->Rewind("main", 20)->moved, IsEmpty());
  EXPECT_THAT(store_->Rewind("main", 30), FailsWith(StatusCode::kNotFound, "step 30"));
  EXPECT_THAT(Runs(), ElementsAre("main", "main~1", "main~2"));
}

TEST_F(BranchTest, AForkWithoutStepsGoes) {
  for (const uint64_t step : {10, 20}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(store_->Rewind("main", 10).status());
  VARVE_ASSERT_OK(store_->Fork("main~1", "child").status());
  const CheckpointId id{"main~1", 20};
  VARVE_ASSERT_OK(store_->Drop(std::span(&id, 1)).status());
  EXPECT_THAT(Runs(), ElementsAre("child", "main"));
  EXPECT_EQ((*store_->ListRuns())[0].forked_from, std::nullopt);  // its origin has no name any more
  EXPECT_EQ((*store_->OpenCheckpoint("child", 20))->info().parent, std::nullopt);
  VARVE_ASSERT_OK(DropSteps({10}));
  EXPECT_THAT(Runs(), ElementsAre("child", "main"));  // a run that was not forked keeps its name
}

TEST_F(BranchTest, RewindWaitsForNoSave) {
  for (const uint64_t step : {10, 20}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  auto writer = *store_->Begin(30);  // its base is step 20
  EXPECT_THAT(store_->Rewind("main", 10),
              FailsWith(StatusCode::kFailedPrecondition, "base of a save in progress"));
  writer->Abandon();
  VARVE_EXPECT_OK(store_->Rewind("main", 10).status());
}

TEST_F(BranchTest, SavingAnExistingStepMayForkIt) {
  for (const uint64_t step : {10, 20, 30}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(Save(20, State(99), {.on_existing = OnExisting::kFork}).status());
  EXPECT_THAT(StepsOf("main"), ElementsAre(10, 20));
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(20, 30));
  ExpectHolds(20, State(99));
  ExpectHolds(*store_, 20, State(20), "main~1");
  ExpectHolds(*store_, 30, State(30), "main~1");
  // It was compared with the newest step of its time, which has another name by now.
  EXPECT_EQ((*store_->OpenCheckpoint("main", 20))->info().parent, (CheckpointId{"main~1", 30}));
}

// Other threads commit while a rewind copies records. If the commit mutex were held, the first of
// them would wait for ever.
class BesideRewindTest : public BranchTest {
 protected:
  void SetUp() override {
    BranchTest::SetUp();
    for (const uint64_t step : {10, 20, 30, 40}) VARVE_ASSERT_OK(Save(step, State(step)).status());
    VARVE_ASSERT_OK(store_->Fork("main", "fork", 20).status());
    VARVE_ASSERT_OK(store_->Fork("main", "other", 30).status());
  }
  Result<RewindReport> RewindBeside(uint64_t to, const std::function<void()>& work) {
    auto* const impl = static_cast<StoreImpl*>(store_.get());
    impl->set_after_copy_for_test([work] { std::jthread(work).join(); });
    auto report = store_->Rewind("main", to);
    impl->set_after_copy_for_test(nullptr);
    return report;
  }
  CheckpointInfo Info(const std::string& run, uint64_t step) {
    return store_->OpenCheckpoint(run, step).value()->info();
  }
};

TEST_F(BesideRewindTest, CommitsGoOnAndAreKept) {
  const auto report = RewindBeside(20, [&] {
    VARVE_EXPECT_OK(Save(50, State(50), {.run = "fork"}).status());
    VARVE_EXPECT_OK(Save(7, State(7), {.run = "fresh"}).status());
    VARVE_EXPECT_OK(store_->SetMetrics({"main", 20}, {{"loss", 2}}));
    VARVE_EXPECT_OK(store_->SetMetrics({"main", 40}, {{"loss", 4}}));
    VARVE_EXPECT_OK(store_->SetMetrics({"other", 30}, {{"loss", 3}}));
    VARVE_EXPECT_OK(store_->SetTag({"main", 40}, "goes"));
    VARVE_EXPECT_OK(store_->SetTag({"main", 20}, "stays"));
    VARVE_EXPECT_OK(store_->Fork("main", "late", 40).status());
    VARVE_EXPECT_OK(store_->Fork("main", "early", 20).status());
  });
  VARVE_ASSERT_OK(report.status());
  EXPECT_EQ(report->fork, "main~1");
  EXPECT_THAT(report->moved, ElementsAre(30, 40));
  EXPECT_THAT(StepsOf("main"), ElementsAre(10, 20));
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(30, 40));
  ExpectHolds(*store_, 40, State(40), "main~1");
  ExpectHolds(*store_, 40, State(40), "late");
  ExpectHolds(*store_, 50, State(50), "fork");
  ExpectHolds(*store_, 7, State(7), "fresh");
  EXPECT_EQ(Info("main", 20).metrics.at("loss"), 2);
  EXPECT_EQ(Info("main~1", 40).metrics.at("loss"), 4);
  EXPECT_EQ(Info("main~1", 40).parent, (CheckpointId{"main~1", 30}));
  EXPECT_EQ(Info("other", 30).metrics.at("loss"), 3);
  EXPECT_EQ(Info("other", 30).parent, (CheckpointId{"main~1", 30}));
  EXPECT_EQ(Info("late", 40).parent, (CheckpointId{"main~1", 40}));
  EXPECT_EQ(Info("fork", 50).parent, (CheckpointId{"fork", 20}));
  EXPECT_EQ(*store_->FindTag("main~1", "goes"), 40);
  EXPECT_EQ(*store_->FindTag("main", "stays"), 20);
  for (const RunInfo& run : *store_->ListRuns()) {
    if (run.name != "late") continue;
    EXPECT_EQ(run.forked_from, (CheckpointId{"main~1", 40}));
  }
}

TEST_F(BesideRewindTest, AStepSavedMeanwhileMoves) {
  auto writer = *store_->Begin(60, {.parent = 10});
  const TestTensor own = RandomTensor("own", DType::kU8, {1000}, 60);
  VARVE_ASSERT_OK(writer->Put(own.view()));
  const auto report = RewindBeside(20, [&] { VARVE_EXPECT_OK(writer->Commit().status()); });
  VARVE_ASSERT_OK(report.status());
  EXPECT_THAT(report->moved, ElementsAre(30, 40, 60));
  EXPECT_THAT(StepsOf("main"), ElementsAre(10, 20));
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(30, 40, 60));
  ExpectHolds(*store_, 60, {own}, "main~1");
}

TEST_F(BesideRewindTest, AStepReplacedMeanwhileMovesAsItIs) {
  auto writer = *store_->Begin(40, {.on_existing = OnExisting::kReplace, .parent = 10});
  const TestTensor own = RandomTensor("own", DType::kU8, {1000}, 60);
  VARVE_ASSERT_OK(writer->Put(own.view()));
  VARVE_ASSERT_OK(RewindBeside(20, [&] { VARVE_EXPECT_OK(writer->Commit().status()); }).status());
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(30, 40));
  ExpectHolds(*store_, 40, {own}, "main~1");
}

// A save that forks another run moves steps, too, and names them anew in records that were copied.
TEST_F(BesideRewindTest, StepsOfAnotherRunMoveMeanwhile) {
  VARVE_ASSERT_OK(Save(50, State(50), {.run = "other"}).status());
  VARVE_ASSERT_OK(
      RewindBeside(20, [&] {
        VARVE_EXPECT_OK(
            Save(30, State(31), {.run = "other", .on_existing = OnExisting::kFork}).status());
      }).status());
  EXPECT_THAT(StepsOf("other"), ElementsAre(30));
  EXPECT_THAT(StepsOf("other~1"), ElementsAre(30, 50));
  EXPECT_EQ(Info("other~1", 30).parent, (CheckpointId{"main~1", 30}));
  EXPECT_EQ(Info("other~1", 50).parent, (CheckpointId{"other~1", 30}));
  ExpectHolds(*store_, 30, State(31), "other");
  ExpectHolds(*store_, 50, State(50), "other~1");
}

TEST_F(BesideRewindTest, ASaveThatForksWhatMovesIsRefused) {
  VARVE_ASSERT_OK(RewindBeside(20, [&] {
                    EXPECT_THAT(
                        Save(30, State(31), {.on_existing = OnExisting::kFork, .parent = 10}),
                        FailsWith(StatusCode::kFailedPrecondition, "being"));
                  }).status());
  EXPECT_THAT(StepsOf("main~1"), ElementsAre(30, 40));
}

// While records move, memory holds only tags and the records of runs.
TEST_F(BranchTest, ARewindHoldsNoRecords) {
  std::vector<TestTensor> state;
  for (int i = 0; i < 20; ++i) {
    state.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {100}, i));
  }
  for (uint64_t step = 1; step <= 20; ++step) VARVE_ASSERT_OK(Save(step, state).status());
  auto* const impl = static_cast<StoreImpl*>(store_.get());
  {
    const auto lock = impl->LockCommits();
    CommitBatch batch;
    const RunId main = impl->FindRun("main")->id;
    VARVE_ASSERT_OK(impl->MoveSteps("main", {main, 2}, &batch).status());
    EXPECT_LT(batch.num_bytes(), 500u);  // the records are some 60,000
  }                                      // not committed
  EXPECT_THAT(Runs(), ElementsAre("main"));
  EXPECT_EQ(store_->Rewind("main", 1)->moved.size(), 19u);
  ExpectHolds(*store_, 20, state, "main~1");
}

}  // namespace

}  // namespace varve::internal
