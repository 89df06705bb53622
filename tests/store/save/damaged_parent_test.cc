// SPDX-License-Identifier: Apache-2.0
//
// A record of the newest step is malformed or missing. Later saves go on and say so, and the step
// can be dropped. Nothing that another step needs is lost with it.
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DamagedParentTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;
    VARVE_ASSERT_OK(Save(1, {weights_, other_}).status());
    VARVE_ASSERT_OK(Save(2, {changed_, other_}).status());
  }

  // The next save is whole and names what it could not read.
  void ExpectSaves(const std::string& warning) {
    const auto report = Save(3, {changed_, other_});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->warnings, ElementsAre(HasSubstr(warning)));
    ExpectHolds(3, {changed_, other_});
    const auto next = Save(4, {changed_, other_});
    ASSERT_TRUE(next.ok()) << next.status().ToString();
    EXPECT_THAT(next->warnings, IsEmpty());
  }

  // Step 2 goes, and with it no byte of another one.
  void ExpectDrops(const std::string& warning) {
    const CheckpointId id{"main", 2};
    const auto report = store_->Drop({&id, 1});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    if (warning.empty()) {
      EXPECT_THAT(report->warnings, IsEmpty());
    } else {
      EXPECT_THAT(report->warnings, ElementsAre(HasSubstr(warning)));
    }
    VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
    EXPECT_THAT(store_->OpenCheckpoint("main", 2), FailsWith(StatusCode::kNotFound, "step 2"));
    ExpectHolds(1, {weights_, other_});
    ExpectHolds(3, {changed_, other_});
    ExpectHolds(4, {changed_, other_});
    const auto check = store_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    for (const std::string& error : check->errors) {  // space that is not given back, and no more
      EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("times, named 0 times"),
                                          HasSubstr("times, named 1 times"),
                                          HasSubstr("no tensor names it"), HasSubstr("live")));
    }
    if (warning.empty()) {
      EXPECT_THAT(check->errors, IsEmpty());
    }
  }

  static constexpr StepKey kNewest{1, 2};
  const TestTensor weights_ = NormalTensor("weights", {300000}, 1);
  const TestTensor changed_ = Drifted(weights_, 2);
  const TestTensor other_ = RandomTensor("other", DType::kU8, {100000}, 3);
};

TEST_F(DamagedParentTest, TensorRecord) {
  Change(Family::kTensors, keys::Tensor(kNewest, "weights", 0), "nonsense");
  ExpectSaves("tensor weights is stored anew");
  ExpectDrops("tensor weights of step 2: tensor record: not a well-formed flatbuffer");
}

TEST_F(DamagedParentTest, MalformedList) {
  Change(Family::kLists, keys::List({2, 0}), "nonsense");
  ExpectSaves(
      "tensor weights is stored anew, as it cannot be read in the step before: list record");
  ExpectDrops("list 2/0: list record: not a well-formed flatbuffer");
}

TEST_F(DamagedParentTest, MissingList) {
  Change(Family::kLists, keys::List({2, 0}), std::nullopt);
  ExpectSaves("tensor weights is stored anew, as it cannot be read in the step before: list 2/0");
  ExpectDrops("list 2/0: is missing");
}

TEST_F(DamagedParentTest, StepRecord) {
  Change(Family::kSteps, keys::Step(kNewest), "nonsense");
  ExpectSaves("the save is not compared with step 2 of run main, which cannot be read");
  ExpectDrops("");
}

// A list that the damaged step shares with a sound one stays readable there.
TEST_F(DamagedParentTest, ASharedListStays) {
  Change(Family::kTensors, keys::Tensor(kNewest, "other", 0), "nonsense");
  ExpectSaves("tensor other is stored anew");
  ExpectDrops("tensor other of step 2");
}

// A damaged record that counts references. What it counts is shared as before by steps that name
// it, and stays when they are dropped.
class DamagedCountsTest : public DamagedParentTest {
 protected:
  // Saves, drops and reclaims go on and say what they could not read. What other steps hold stays.
  // This holds also after the store has been opened again.
  void ExpectGoesOn(const std::string& warning) {
    for (const bool opened_again : {false, true}) {
      if (opened_again) Reopen();
      const uint64_t step = opened_again ? 4 : 3;
      const auto saved = Save(step, {changed_, other_});
      ASSERT_TRUE(saved.ok()) << saved.status().ToString();
      EXPECT_THAT(saved->warnings, ElementsAre(HasSubstr(warning)));
      const CheckpointId id{"main", step - 1};
      const auto forecast = store_->ForecastDrop({&id, 1});
      ASSERT_TRUE(forecast.ok()) << forecast.status().ToString();
      const auto report = store_->Drop({&id, 1});
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_THAT(report->warnings, ElementsAre(HasSubstr(warning)));
      EXPECT_EQ(forecast->warnings, report->warnings);
      EXPECT_EQ(forecast->freed_now, report->reclaim.freed_bytes);
      EXPECT_EQ(forecast->freed_later, report->reclaim.pending_bytes);
      VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
      ExpectHolds(1, {weights_, other_});
      ExpectHolds(step, {changed_, other_});
    }
    const CheckpointId rest[] = {{"main", 1}, {"main", 4}};
    VARVE_ASSERT_OK(store_->Drop(rest).status());
    EXPECT_TRUE(store_->ListCheckpoints("main")->empty());
  }
};

TEST_F(DamagedCountsTest, MalformedSave) {
  Change(Family::kBirths, keys::Save(2), "nonsense");
  ExpectGoesOn("save 2: save record: not a well-formed flatbuffer; what it counts is kept");
}

// The rest is counted, and what is not is said.
TEST_F(DamagedCountsTest, StatsLeaveOutWhatIsNotKnown) {
  const CheckpointId id{"main", 2};
  VARVE_ASSERT_OK(store_->Drop({&id, 1}, {.reclaim = false}).status());
  const StoreStats whole = GetStats();
  EXPECT_THAT(whole.warnings, IsEmpty());
  EXPECT_GT(whole.pending_bytes, 0u);
  const std::string record = Value(Family::kBirths, keys::Save(2));
  const std::optional<std::string> damages[] = {"x", std::nullopt};
  for (const std::optional<std::string>& damage : damages) {
    Change(Family::kBirths, keys::Save(2), damage);
    const auto stats = store_->Stats();
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_THAT(stats->warnings, ::testing::Contains(HasSubstr("save 2")));
    EXPECT_EQ(stats->stored_bytes, whole.stored_bytes);  // of what step 1 names
    EXPECT_EQ(stats->pending_bytes, 0u);
    Reopen();
    EXPECT_EQ(impl()->DeadBytes().value(), 0u);
  }
  Change(Family::kBirths, keys::Save(2), record);
  Change(Family::kCounts, keys::Counts(2, Counted::kChunk, 0), "odd");
  EXPECT_THAT(GetStats().warnings, ElementsAre(HasSubstr("save 2: counts record: 3 bytes")));
  EXPECT_EQ(GetStats().pending_bytes, whole.pending_bytes);
}

// Opening must not take its chunk file for one that nothing names.
TEST_F(DamagedCountsTest, MissingSave) {
  Change(Family::kBirths, keys::Save(2), std::nullopt);
  ExpectGoesOn("save 2 has no record; what it counts is kept");
}

TEST_F(DamagedCountsTest, MissingSaveOfAnOlderStep) {
  Change(Family::kBirths, keys::Save(1), std::nullopt);
  ExpectGoesOn("save 1 has no record; what it counts is kept");
}

TEST_F(DamagedCountsTest, ChunksThatAreNamedStayWithoutAnyRecordOfTheirSave) {
  for (const Family family : {Family::kBirths, Family::kCounts}) {
    std::vector<std::string> keys;
    VARVE_ASSERT_OK(database()->Scan(family, "", [&](std::string_view key, std::string_view) {
      keys.emplace_back(key);
      return Status::Ok();
    }));
    for (const std::string& key : keys) Change(family, key, std::nullopt);
  }
  Reopen();
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_EQ(impl()->DeadBytes().value(), 0u);
  ExpectHolds(1, {weights_, other_});
  ExpectHolds(2, {changed_, other_});
  VARVE_ASSERT_OK(Save(3, {changed_, other_}).status());
  ExpectHolds(3, {changed_, other_});
  for (const uint64_t save_id : {1, 2}) {
    EXPECT_THAT(
        store_->Check({}).value().errors,
        ::testing::Contains(HasSubstr("save " + std::to_string(save_id) + " has no record")));
  }
}

// What step 1 brought is shared by all steps.
TEST_F(DamagedCountsTest, MalformedSaveOfAnOlderStep) {
  Change(Family::kBirths, keys::Save(1), "nonsense");
  ExpectGoesOn("save 1: save record: not a well-formed flatbuffer");
}

TEST_F(DamagedCountsTest, MalformedCountsOfLists) {
  Change(Family::kCounts, keys::Counts(2, Counted::kList, 0), "odd");
  ExpectGoesOn("save 2: counts record: 3 bytes");
}

TEST_F(DamagedCountsTest, MalformedCountsOfChunks) {
  const TestTensor third = Drifted(changed_, 5);
  Change(Family::kCounts, keys::Counts(2, Counted::kChunk, 0), "odd");
  const auto saved = Save(3, {third, other_});  // deltas of chunks whose count is not known
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  const CheckpointId id{"main", 2};
  const auto report = store_->Drop({&id, 1});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->warnings, ElementsAre(HasSubstr("save 2: counts record: 3 bytes")));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectHolds(1, {weights_, other_});
  ExpectHolds(3, {third, other_});
}

TEST_F(DamagedCountsTest, ASaveThatSaysWhatCannotBe) {
  SaveRecord record = DecodeSaveRecord(Value(Family::kBirths, keys::Save(2))).value();
  record.chunks = UINT32_MAX;
  record.stored_bytes = uint64_t{1} << 60;
  Change(Family::kBirths, keys::Save(2), EncodeSaveRecord(record));
  ExpectGoesOn("save 2: says 4294967295 chunks and");
}

TEST_F(DamagedCountsTest, ASaveThatSaysTooManyLists) {
  SaveRecord record = DecodeSaveRecord(Value(Family::kBirths, keys::Save(2))).value();
  record.lists = UINT32_MAX;
  Change(Family::kBirths, keys::Save(2), EncodeSaveRecord(record));
  ExpectGoesOn("and 4294967295 lists, but what is on disk holds at most");
}

// The edge from a delta to its base: the base stays when the delta goes.
TEST_F(DamagedCountsTest, MalformedEdges) {
  ASSERT_FALSE(Value(Family::kBirths, keys::SaveBlock(2, 0)).empty());
  Change(Family::kBirths, keys::SaveBlock(2, 0), "nonsense");
  const CheckpointId id{"main", 2};
  const auto report = store_->Drop({&id, 1});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->warnings, ::testing::Contains(HasSubstr("save 2: ")));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectHolds(1, {weights_, other_});
}

// A chunk with an unknown count may be dead, and its base gone. So the index is not believed about
// it.
TEST_F(DamagedCountsTest, NothingElseIsSharedWithIt) {
  Change(Family::kCounts, keys::Counts(2, Counted::kChunk, 0), "odd");
  TestTensor other_name = changed_;
  other_name.name = "of another name";
  const auto saved = Save(3, {other_name, other_});
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_GT(saved->new_bytes, 0u);
  ExpectHolds(3, {other_name, other_});
}

}  // namespace
}  // namespace varve::internal::testing
