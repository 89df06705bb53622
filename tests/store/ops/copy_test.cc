// SPDX-License-Identifier: Apache-2.0
//
// Copying checkpoints into another store.
#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using testing::FailsWith;
using testing::NormalTensor;
using testing::RandomTensor;
using testing::TestTensor;

class CopyTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    OpenOther({});
  }
  void TearDown() override {
    const auto check = other_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    other_.reset();
    StoreTest::TearDown();
  }
  void OpenOther(const CreateOptions& options) {
    other_.reset();
    std::filesystem::remove_all(other_path());
    auto store = Store::Create(other_path(), options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    other_ = *std::move(store);
  }
  std::filesystem::path other_path() const { return folder_.path() / "other"; }
  static std::vector<TestTensor> State(uint64_t step) {
    return {NormalTensor("w", {600000}, step),
            RandomTensor("frozen", DType::kBF16, {500000}, 1),
            RandomTensor("small", DType::kF32, {5}, step),
            RandomTensor("none", DType::kF32, {0}, 1),
            {"zero", DType::kF32, {1000}, std::vector<std::byte>(4000), {}}};
  }
  Result<std::vector<SaveReport>> Copy(const std::vector<uint64_t>& steps,
                                       const CopyOptions& options = {}) {
    std::vector<CheckpointId> ids;
    for (const uint64_t step : steps) ids.push_back({"main", step});
    return store_->CopyTo(other_.get(), ids, options);
  }

  std::unique_ptr<Store> other_;
};

TEST_F(CopyTest, SharesThereWhatIsSharedHere) {
  for (const uint64_t step : {1, 2, 3}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  const auto reports = Copy({1, 2, 3});
  ASSERT_TRUE(reports.ok()) << reports.status().ToString();
  for (const uint64_t step : {1, 2, 3}) ExpectHolds(*other_, step, State(step));
  // The frozen tensor came once.
  EXPECT_EQ((*reports)[0].new_bytes, 600000 * 4 + 500000 * 2);
  EXPECT_EQ((*reports)[1].new_bytes, 600000 * 4);
  EXPECT_EQ((*other_->OpenCheckpoint("main", 3))->info().parent, (CheckpointId{"main", 2}));

  // Again into a store that has it all: nothing is stored.
  const auto again = Copy({3}, {.run = "again"});
  EXPECT_EQ((*again)[0].new_bytes, 0);
  ExpectHolds(*other_, 3, State(3), "again");
}

TEST_F(CopyTest, CarriesEverythingOfACheckpoint) {
  auto writer = *store_->Begin(7);
  const TestTensor master = NormalTensor("master", {1000}, 1);
  VARVE_ASSERT_OK(writer->Put(master.view()));
  VARVE_ASSERT_OK(writer->SetTrainerProgress({.global_step = 7, .best_metric = 0.25}));
  VARVE_ASSERT_OK(writer->SetTopology({.tp = 2, .world_size = 2}));
  VARVE_ASSERT_OK(writer->SetMetric("loss", 1.5));
  VARVE_ASSERT_OK(writer->AddTag("good"));
  const std::string item = "opaque";
  VARVE_ASSERT_OK(writer->PutBytes("loader", std::as_bytes(std::span(item))));
  VARVE_ASSERT_OK(writer->Commit().status());
  VARVE_ASSERT_OK(Copy({7}).status());

  const auto from = *store_->OpenCheckpoint("main", 7);
  const auto to = *other_->OpenCheckpoint("main", 7);
  EXPECT_EQ(to->info().metrics, from->info().metrics);
  EXPECT_EQ(to->info().tags, from->info().tags);
  EXPECT_EQ(to->info().created, from->info().created);
  EXPECT_EQ((*to->ReadTrainerProgress())->best_metric, 0.25);
  EXPECT_EQ((*to->ReadTopology())->tp, 2);
  EXPECT_EQ(*to->ReadBytes("loader"), *from->ReadBytes("loader"));
}

// With one seed both stores have the same digests, so a chunk that the target has is never read
// from the source.
TEST_F(CopyTest, ReadsNothingThatAStoreOfTheSameSeedHas) {
  Reset({.digest_seed = 5});
  OpenOther({.digest_seed = 5});
  for (const uint64_t step : {1, 2}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(Copy({1}).status());
  const auto reports = Copy({2});
  ASSERT_TRUE(reports.ok()) << reports.status().ToString();
  EXPECT_EQ((*reports)[0].new_bytes, 600000 * 4);
  ExpectHolds(*other_, 2, State(2));
}

TEST_F(CopyTest, DerivedTensorsStayDerived) {
  TestTensor master = NormalTensor("master", {300000}, 1);
  TestTensor model{"model", DType::kBF16, {300000}, {}, "master"};
  for (size_t i = 0; i < master.bytes.size(); i += 4) {  // values that bf16 holds exactly
    master.bytes[i] = master.bytes[i + 1] = std::byte{0};
    model.bytes.push_back(master.bytes[i + 2]);
    model.bytes.push_back(master.bytes[i + 3]);
  }
  VARVE_ASSERT_OK(Save(1, {master, model}).status());
  const auto reports = Copy({1});
  ASSERT_TRUE(reports.ok()) << reports.status().ToString();
  EXPECT_EQ((*reports)[0].new_bytes, 300000 * 4);
  ExpectHolds(*other_, 1, {master, model});
}

TEST_F(CopyTest, ObeysWhatExistsThere) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(Copy({1}).status());
  EXPECT_THAT(Copy({1}), FailsWith(StatusCode::kAlreadyExists, "step 1 of run main"));
  VARVE_ASSERT_OK(Save(1, State(2), {.on_existing = OnExisting::kReplace}).status());
  VARVE_ASSERT_OK(Copy({1}, {.on_existing = OnExisting::kReplace}).status());
  ExpectHolds(*other_, 1, State(2));
  EXPECT_THAT(Copy({9}), FailsWith(StatusCode::kNotFound, "step 9 of run main"));
}

}  // namespace

}  // namespace varve::internal
