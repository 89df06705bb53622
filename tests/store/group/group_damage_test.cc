// SPDX-License-Identifier: Apache-2.0
//
// Groups that have lost something, hold what nobody needs, or are used in a wrong way.
#include "tests/store/group/group_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(GroupStoreTest, DebrisGoesWithAReclaim) {
  Start(1);
  SaveAll(10);
  std::ofstream(path() / "tmp-1") << "x";
  std::ofstream(path() / "log" / "tmp-2") << "x";
  std::ofstream(path() / "catalogues" / "99") << "x";
  std::ofstream(path() / "catalogues" / "1.0") << "x";
  std::ofstream(path() / "catalogues" / "99.p0") << "x";
  fs::create_directories(path() / "members" / "00000000000000ff" / "db");
  VARVE_ASSERT_OK(ranks_[0]->Reclaim().status());
  EXPECT_FALSE(fs::exists(path() / "tmp-1"));
  EXPECT_FALSE(fs::exists(path() / "log" / "tmp-2"));
}

TEST_F(GroupStoreTest, CheckFindsAMissingMember) {
  expect_damage_ = true;
  Start(2);
  SaveAll(10);
  ranks_.clear();
  fs::remove_all(fs::directory_iterator(path() / "members")->path());
  const auto report = Store::OpenForReading(path()).value()->Check().value();
  ASSERT_EQ(report.errors.size(), 1u);
  EXPECT_THAT(report.errors[0],
              ::testing::HasSubstr("step 10 of run main (attempt 1): the part of rank"));
}

// Its FORMAT alone, or its whole folder. Answers that need no member are given.
TEST_F(GroupStoreTest, AnAnswerIsWholeOrNamesTheMemberThatIsLost) {
  expect_damage_ = true;
  Start(2);
  SaveAll(10);
  SaveAll(20);
  ranks_.clear();
  for (const std::string& name : Names("members")) {
    const fs::path folder = path() / "members" / name;
    for (const fs::path& lost : {folder / "FORMAT", folder}) {
      fs::rename(lost, folder_.path() / "elsewhere");
      const auto store = Store::Open(path()).value();
      const auto fails = FailsWith(StatusCode::kCorruption, lost.string() + " is missing");
      EXPECT_THAT(Steps(*store), ElementsAre(10, 20));
      EXPECT_THAT(store->Stats(), fails);
      EXPECT_THAT(store->OpenCheckpoint("main", 20).value()->List(), fails);
      EXPECT_THAT(store->Log("main", "shared"), fails);
      EXPECT_THAT(store->Diff({"main", 10}, {"main", 20}), fails);
      const CheckpointId id{"main", 10};
      EXPECT_THAT(store->ForecastDrop({&id, 1}), fails);
      const auto report = store->Check();
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(report->errors.size(), 2u);  // one a step
      for (const std::string& error : report->errors) {
        EXPECT_THAT(error, ::testing::HasSubstr(lost.string() + " is missing"));
      }
      fs::rename(folder_.path() / "elsewhere", lost);
    }
  }
  const auto store = Store::Open(path()).value();
  EXPECT_EQ(store->Stats().value().num_steps, 2u);
  ExpectHolds(*store, 20, 2);
}

// A record of reference counts is damaged, so what it counts is not released. Whoever drops a step
// is told. What a rank drops in the background is in the report of its next save.
TEST_F(GroupStoreTest, WarningsOfDropsAreReported) {
  expect_damage_ = true;
  Start(1);
  for (uint64_t step = 1; step <= 5; ++step) SaveAll(step);
  auto* const rank = static_cast<GroupStore*>(ranks_[0].get());
  StoreImpl* const member = rank->own_member();
  CommitBatch batch;
  for (const uint64_t save : {2, 3, 4}) batch.Put(Family::kBirths, keys::Save(save), "nonsense");
  VARVE_ASSERT_OK(batch.Commit(member->database(), member->incoming(), {}));
  const std::string name = member->path().filename().string();
  const auto warns_of = [&](const std::string& save) {
    return ::testing::Contains(HasSubstr("member " + name + ": save " + save + ": save record"));
  };
  const CheckpointId second{"main", 2}, third{"main", 3}, fourth{"main", 4};
  const auto dropped = rank->Drop({&second, 1}, {});
  ASSERT_TRUE(dropped.ok()) << dropped.status().ToString();
  EXPECT_THAT(dropped->warnings, warns_of("2"));
  VARVE_ASSERT_OK(Store::Open(path()).value()->Drop({&third, 1}).status());  // the member is locked
  VARVE_ASSERT_OK(SaveRank(rank, 0, 6).status());
  rank->AwaitSweep();
  const auto next = SaveRank(rank, 0, 7);
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_THAT(next->warnings, warns_of("3"));
  rank->AwaitSweep();
  EXPECT_THAT(rank->TakeWarnings(), IsEmpty());
  // A reclaim finishes the drop of a process that had no lock of the member.
  VARVE_ASSERT_OK(Store::Open(path()).value()->Drop({&fourth, 1}).status());
  ranks_.clear();
  const auto reclaimed = Store::Open(path()).value()->Reclaim({});
  ASSERT_TRUE(reclaimed.ok()) << reclaimed.status().ToString();
  EXPECT_THAT(reclaimed->warnings, warns_of("4"));
}

// The log names a member before it is made, and a step of it may have been dropped.
TEST_F(GroupStoreTest, AMemberThatNoStepNeedsMayBeGone) {
  Start(1);
  SaveAll(10);
  const CheckpointId id{"main", 10};
  VARVE_ASSERT_OK(ranks_[0]->Drop({&id, 1}).status());
  ranks_.clear();
  const fs::path folder = *fs::directory_iterator(path() / "members");
  for (const fs::path& lost : {folder / "FORMAT", folder}) {
    fs::remove_all(lost);
    const auto store = Store::OpenForReading(path()).value();
    EXPECT_EQ(store->Stats().value().num_chunks, 0u);
    EXPECT_THAT(store->Check().value().errors, IsEmpty());
  }
  Start(1);
  SaveAll(20);
  ExpectHolds(*ranks_[0], 20, 1);
}

// A member is whole by itself, but is of an earlier time than the log.
TEST_F(GroupStoreTest, AMemberWithoutAStepThatTheLogKnowsIsDamaged) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  ranks_.clear();
  {
    const fs::path folder = fs::directory_iterator(path() / "members")->path();
    auto member = StoreImpl::OpenPath(folder, {}, /*for_writing=*/true).value();
    const CheckpointId id{"main", 1};
    VARVE_ASSERT_OK(member->Drop({&id, 1}, {}).status());
  }
  const auto store = Store::OpenForReading(path()).value();
  EXPECT_THAT(store->OpenCheckpoint("main", 10).value()->List(),
              FailsWith(StatusCode::kCorruption, "no step 10 of run main"));
}

// A rank does not pass over what it had in silence, and save all of its state anew elsewhere.
TEST_F(GroupStoreTest, AMemberWithoutItsFormatIsNotReplaced) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  ranks_.clear();
  const fs::path format = fs::directory_iterator(path() / "members")->path() / "FORMAT";
  fs::rename(format, folder_.path() / "elsewhere");
  const uint64_t epoch = Group::StartEpoch(path(), 1).value();
  const auto joined = Group::Join(path(), {.rank = 0, .epoch = epoch, .timeout = kTimeout});
  EXPECT_THAT(joined, FailsWith(StatusCode::kCorruption, format.string() + " is missing"));
  EXPECT_EQ(Names("members").size(), 1u);
  fs::rename(folder_.path() / "elsewhere", format);
  Start(1);
  SaveAll(20);
  EXPECT_EQ(Names("members").size(), 1u);
  ExpectHolds(*ranks_[0], 10, 1);
}

// The same for a member that misses a table.
TEST_F(GroupStoreTest, AMemberThatCannotBeOpenedIsAnError) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  ranks_.clear();
  const fs::path member = *fs::directory_iterator(path() / "members");
  fs::path table;
  for (const auto& entry : fs::directory_iterator(member / "db")) {
    if (entry.path().extension() == ".sst") table = entry.path();
  }
  fs::rename(table, folder_.path() / "table");
  const uint64_t epoch = Group::StartEpoch(path(), 1).value();
  const auto joined = Group::Join(path(), {.rank = 0, .epoch = epoch, .timeout = kTimeout});
  EXPECT_THAT(joined, FailsWith(StatusCode::kCorruption, member.string()));
  EXPECT_EQ(Names("members").size(), 1u);
  // Does what the message says: moves it away, or mends it.
  fs::rename(member, folder_.path() / "member");
  Start(1);
  EXPECT_EQ(Names("members").size(), 1u);
  ranks_.clear();
}

TEST_F(GroupStoreTest, CheckFindsADamagedCatalogue) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  std::ofstream(path() / "catalogues" / "1", std::ios::app) << "x";
  const auto store = Store::OpenForReading(path()).value();
  EXPECT_THAT(store->Check().value().errors, ElementsAre(::testing::HasSubstr("digest is")));
  EXPECT_THAT(store->OpenCheckpoint("main", 10), FailsWith(StatusCode::kCorruption, "digest is"));
}

// A member that is sound by itself, but of another save.
TEST_F(GroupStoreTest, CheckFindsAnotherSaveInAMember) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  ranks_.clear();
  {
    const fs::path folder = fs::directory_iterator(path() / "members")->path();
    auto member = StoreImpl::OpenPath(folder, {}, /*for_writing=*/true).value();
    auto writer = member->Begin(1, {.on_existing = OnExisting::kReplace}).value();
    const TestTensor other = RandomTensor("other", DType::kU8, {10}, 1);
    VARVE_ASSERT_OK(writer->Put(other.view()));
    VARVE_ASSERT_OK(writer->Commit().status());
  }
  const auto store = Store::OpenForReading(path()).value();
  EXPECT_THAT(store->Check().value().errors, ElementsAre(::testing::HasSubstr("has root digest")));
  EXPECT_THAT(store->OpenCheckpoint("main", 10).value()->Find("shared"),
              FailsWith(StatusCode::kCorruption, "has root digest"));
}

TEST_F(GroupStoreTest, AMemberIsNotWrittenToByItself) {
  Start(1);
  SaveAll(10);
  ranks_.clear();
  const fs::path member = fs::directory_iterator(path() / "members")->path();
  EXPECT_THAT(Store::Open(member), FailsWith(StatusCode::kFailedPrecondition,
                                             "is a member of the group in " + path().string()));
  const fs::path link = folder_.path() / "link";
  fs::create_directory_symlink(member, link);
  EXPECT_THAT(Store::Open(link), FailsWith(StatusCode::kFailedPrecondition, "is a member"));
  EXPECT_EQ(Steps(*Store::OpenForReading(member).value()), (std::vector<uint64_t>{1}));
}

TEST_F(GroupStoreTest, ARootThatHasLostItsFileIsNotMadeAnew) {
  Start(1);
  SaveAll(10);
  ranks_.clear();
  const fs::path kept = folder_.path() / "kept";
  fs::rename(path() / "GROUP", kept);
  EXPECT_THAT(Group::StartEpoch(path(), 1),
              FailsWith(StatusCode::kNotFound, "has no GROUP file, but log/ of a group"));
  EXPECT_FALSE(fs::exists(path() / "GROUP"));
  fs::rename(kept, path() / "GROUP");
}

TEST_F(GroupStoreTest, WhatMembersSayIsInTheWordsOfTheGroup) {
  Start(1);
  SaveAll(15);
  SaveAll(18);
  ranks_.clear();
  const auto store = GroupStore::OpenPath(path(), {}, /*for_writing=*/false).value();
  const GroupState state = store->log()->With([](const GroupState& s) { return s; });
  EXPECT_EQ(
      NameAttempts("tensor a at step 2 of run main, chunk 0: as in step 1 of run main", state),
      "tensor a at step 18 of run main (attempt 2), chunk 0: as in step 15 of run main "
      "(attempt 1)");
  EXPECT_EQ(NameAttempts("step 99 of run main", state), "attempt 99");
  for (const std::string text :
       {"", "step ", "step two", "step 2", "step 2 of run other", "a step"}) {
    EXPECT_EQ(NameAttempts(text, state), text);
  }
}

TEST_F(GroupStoreTest, DamageInAMemberIsThatOfAStep) {
  expect_damage_ = true;
  Start(1);
  SaveAll(15);
  ranks_.clear();
  fs::path largest;
  for (const auto& entry : fs::recursive_directory_iterator(path() / "members")) {
    if (entry.path().extension() != ".sst") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(300);
  file.write("damage", 6);
  file.close();
  const auto store = Store::OpenForReading(path()).value();
  const std::vector<std::string> errors = store->Check({.read_data = true}).value().errors;
  ASSERT_FALSE(errors.empty());
  EXPECT_THAT(errors[0], ::testing::HasSubstr("at step 15 of run main (attempt 1), chunk 0"));
  EXPECT_THAT(errors, ::testing::Each(::testing::Not(::testing::HasSubstr("step 1 of run"))));
}

TEST_F(GroupStoreTest, ItemsMayNotLookLikeThoseOfOthers) {
  Start(1);
  auto writer = ranks_[0]->Begin(10).value();
  EXPECT_THAT(writer->PutBytes("loader@1", {}), FailsWith(StatusCode::kInvalidArgument, "@RANK"));
  VARVE_EXPECT_OK(writer->PutBytes("loader@home", {}));
}

}  // namespace
}  // namespace varve::internal::testing
