// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_store.h"

#include "tests/store/group/group_fixture.h"

namespace varve::internal::testing {
namespace {

TEST_F(GroupStoreTest, RanksSaveOneCheckpoint) {
  Start(4);
  SaveAll(10);
  SaveAll(20);
  for (const auto& rank : ranks_) {
    EXPECT_THAT(Steps(*rank), ElementsAre(10, 20));
    ExpectHolds(*rank, 10, 4);
    ExpectHolds(*rank, 20, 4);
  }
  const auto reader = Store::OpenForReading(path());
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ExpectHolds(**reader, 20, 4);
  EXPECT_EQ((*reader)->LatestStep("main").value(), 20u);
  EXPECT_EQ((*reader)->FindTag("main", "newest").value(), 20u);
  const auto info = (*reader)->ListCheckpoints("main").value();
  EXPECT_EQ(info[1].parent, (CheckpointId{"main", 10}));
  EXPECT_EQ(info[1].metrics.at("loss"), 20);
  const auto checkpoint = (*reader)->OpenCheckpoint("main", 10).value();
  EXPECT_THAT(checkpoint->ListBytes().value(),
              ElementsAre("loader", "loader@1", "loader@2", "loader@3"));
  const auto item = checkpoint->ReadBytes("loader@2").value();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(item.data()), item.size()), "item of 2");
  EXPECT_THAT(checkpoint->Find("shared", 4), FailsWith(StatusCode::kNotFound, "shard 4"));
  EXPECT_THAT(checkpoint->Find("nowhere"), FailsWith(StatusCode::kNotFound, "nowhere"));
}

// What did not change between two saves of the group is stored once.
TEST_F(GroupStoreTest, MembersShareWithTheirParents) {
  Start(2);
  SaveAll(10);
  const uint64_t chunks = ranks_[0]->Stats().value().num_chunks;
  SaveAll(20);
  // One tensor of each rank changes and one does not.
  EXPECT_EQ(ranks_[0]->Stats().value().num_chunks, chunks + 2);
}

TEST_F(GroupStoreTest, AnotherNumberOfRanksGoesOn) {
  Start(4);
  SaveAll(10);
  Start(2);
  ExpectHolds(*ranks_[1], 10, 4);
  SaveAll(20);
  Start(5);
  SaveAll(30);
  for (const auto& [step, num_ranks] : {std::pair(10, 4), {20, 2}, {30, 5}}) {
    ExpectHolds(*ranks_[0], static_cast<uint64_t>(step), static_cast<uint32_t>(num_ranks));
  }
  EXPECT_EQ(Names("members").size(), 5u);  // each was continued
}

TEST_F(GroupStoreTest, ARankOfAnotherHostMakesItsOwnMember) {
  Start(1);
  SaveAll(10);
  ranks_.clear();
  epoch_ = Group::StartEpoch(path(), 1).value();
  auto store = Group::Join(path(), {.rank = 0, .epoch = epoch_, .host = "elsewhere"});
  VARVE_ASSERT_OK(store.status());
  ranks_.push_back(*std::move(store));
  SaveAll(20);
  EXPECT_EQ(Names("members").size(), 2u);
  ExpectHolds(*ranks_[0], 10, 1);
}

TEST_F(GroupStoreTest, ARankThatDoesNotComeIsNamed) {
  Start(3, kShort);
  ranks_[1].reset();
  ranks_[2].reset();
  const std::vector<Status> statuses = Save(10);
  EXPECT_THAT(statuses[0], FailsWith(StatusCode::kAborted,
                                     "ranks 1, 2 did not save step 10 of run main within 200 ms"));
  EXPECT_THAT(ranks_[0]->OpenCheckpoint("main", 10), FailsWith(StatusCode::kNotFound, "step 10"));
}

TEST_F(GroupStoreTest, RankZeroThatDoesNotComeIsNamed) {
  Start(2, kShort);
  ranks_[0].reset();
  EXPECT_THAT(Save(10)[1], FailsWith(StatusCode::kAborted, "rank 0 did not begin step 10"));
}

// Rank 1 fails twice, as rank 0 seems to be gone. Rank 0 comes later, and gives up twice. Rank 1
// must not take these ends for that of its third save, for which it comes first.
TEST_F(GroupStoreTest, ASaveThatHasMissedItsAttemptCanBeTriedAgain) {
  Start(2);
  auto& rank_one = static_cast<GroupStore&>(*ranks_[1]);
  rank_one.SetGone([] { return std::vector<uint32_t>{0}; });
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ranks_[1]->Begin(10), FailsWith(StatusCode::kAborted, "rank 0 did not begin"));
  }
  rank_one.SetGone([] { return std::vector<uint32_t>(); });
  for (int i = 0; i < 2; ++i) {
    auto given_up = ranks_[0]->Begin(10);
    VARVE_ASSERT_OK(given_up.status());
    (*given_up)->Abandon();
  }
  Status saved;
  {
    const std::jthread first([&] { saved = SaveRank(ranks_[1].get(), 1, 10).status(); });
    std::this_thread::sleep_for(kShort);
    VARVE_EXPECT_OK(SaveRank(ranks_[0].get(), 0, 10).status());
  }
  VARVE_EXPECT_OK(saved);
}

// A refusal is no miss. Otherwise the rank would wait for another attempt.
TEST_F(GroupStoreTest, AfterARefusalAnEndIsReported) {
  Start(2);
  SaveAll(10);
  EXPECT_THAT(ranks_[1]->Begin(10), FailsWith(StatusCode::kAlreadyExists, "exists already"));
  const CheckpointId id{"main", 10};
  VARVE_ASSERT_OK((*Store::Open(path()))->Drop({&id, 1}, {}).status());
  auto given_up = ranks_[0]->Begin(10);
  VARVE_ASSERT_OK(given_up.status());
  (*given_up)->Abandon();
  EXPECT_THAT(SaveRank(ranks_[1].get(), 1, 10).status(),
              FailsWith(StatusCode::kAborted, "it was abandoned"));
}

// No patience would ever end.
TEST_F(GroupStoreTest, NobodyWaitsForARankThatIsGone) {
  Start(3, std::chrono::hours(10));
  for (const uint32_t lost : {2u, 0u}) {
    for (const auto& rank : ranks_) {
      if (rank == nullptr) continue;
      static_cast<GroupStore&>(*rank).SetGone([lost] { return std::vector<uint32_t>{lost}; });
    }
    ranks_[lost].reset();
    const std::vector<Status> statuses = Save(10);
    for (const uint32_t left : {0u, 1u}) {
      if (left == lost) continue;
      EXPECT_THAT(statuses[left],
                  FailsWith(StatusCode::kAborted, "rank " + std::to_string(lost) + " did not "));
      EXPECT_THAT(statuses[left],
                  FailsWith(StatusCode::kAborted, "step 10 of run main: its connection is closed"));
    }
  }
}

TEST_F(GroupStoreTest, WhatARankThatIsGoneHasSavedCounts) {
  Start(2, std::chrono::hours(10));
  for (const auto& rank : ranks_) {
    static_cast<GroupStore&>(*rank).SetGone([] { return std::vector<uint32_t>{1}; });
  }
  // Rank 1 saves first. Existing files do not delay rank 0.
  std::jthread other([&] { VARVE_EXPECT_OK(SaveRank(ranks_[1].get(), 1, 10).status()); });
  auto* const first = static_cast<GroupStore*>(ranks_[0].get());
  auto writer = ranks_[0]->Begin(10);
  VARVE_ASSERT_OK(writer.status());
  const std::vector<TestTensor> content = ContentOf(0, 10);
  for (const TestTensor& tensor : content) VARVE_ASSERT_OK((*writer)->Put(tensor.view()));
  const GroupLog* const log = first->log();
  const auto is_there = first->log()->Await<bool>(kTimeout, [log](const GroupState& state) {
    const auto& [number, attempt] = *state.attempts.rbegin();
    SlotGatherer slots(log->records(), {log->seed(), number, attempt.nonce});
    return slots.Missing(state, {1}).empty() ? std::optional(true) : std::nullopt;
  });
  ASSERT_TRUE(is_there.value().has_value());
  VARVE_EXPECT_OK((*writer)->Commit().status());
}

TEST_F(GroupStoreTest, WhoWaitsLongSaysForWhom) {
  Start(2, kShort);
  static_cast<GroupStore&>(*ranks_[0]).SetSaysSoAfter(std::chrono::milliseconds(0));
  ranks_[1].reset();
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Save(10)[0].ok());
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::HasSubstr("varve: rank 0 waits for rank 1 to save step 10 of run main, and "
                           "gives up after 200 ms"));
}

// A rank that tries again takes up the attempt that the others know.
TEST_F(GroupStoreTest, ARankTriesItsPartAgainInTheSameAttempt) {
  Start(2);
  auto* const second = static_cast<GroupStore*>(ranks_[1].get());
  second->SetTriesAgain();
  int num_tries = 0;
  second->SetCondition(
      [&] { return ++num_tries < 3 ? Status::IOError("a disk that recovers") : Status::Ok(); });
  std::jthread first([&] { VARVE_EXPECT_OK(SaveRank(ranks_[0].get(), 0, 10).status()); });
  while (num_tries < 2) {
    EXPECT_THAT(SaveRank(second, 1, 10), FailsWith(StatusCode::kIOError, "a disk that recovers"));
    EXPECT_TRUE(second->MayTryAgain());
  }
  VARVE_EXPECT_OK(SaveRank(second, 1, 10).status());
  second->EndSave(10, {}, Status::Ok());
  first.join();
  ExpectHolds(*ranks_[0], 10, 2);
}

TEST_F(GroupStoreTest, WhoeverTriesNoMoreEndsTheSaveOfAll) {
  Start(2, std::chrono::hours(10));
  for (const auto& rank : ranks_) static_cast<GroupStore&>(*rank).SetTriesAgain();
  for (const uint32_t failing : {0u, 1u}) {  // it has not come to start the save
    std::jthread other([&] {
      const Status status = SaveRank(ranks_[1 - failing].get(), 1 - failing, 10).status();
      EXPECT_THAT(status, FailsWith(StatusCode::kIOError,
                                    "rank " + std::to_string(failing) + ": no memory"));
      auto* const store = static_cast<GroupStore*>(ranks_[1 - failing].get());
      EXPECT_FALSE(store->MayTryAgain());
      store->EndSave(10, {}, status);
    });
    static_cast<GroupStore&>(*ranks_[failing]).EndSave(10, {}, Status::IOError("no memory"));
  }
  SaveAll(10);
}

TEST_F(GroupStoreTest, AStepThatIsThereIsRefusedByAllRanks) {
  Start(2);
  SaveAll(10);
  for (const Status& status : Save(10)) {
    EXPECT_THAT(status, FailsWith(StatusCode::kAlreadyExists,
                                  "step 10 of run main exists already; save another step"));
  }
  SaveAll(10, {.on_existing = OnExisting::kReplace});
  SaveAll(10, {.on_existing = OnExisting::kFork});
  EXPECT_THAT(Steps(*ranks_[0], "main~1"), ElementsAre(10));
  ExpectHolds(*ranks_[0], 10, 2, "main~1");
  ExpectHolds(*ranks_[0], 10, 2);
}

// One rank's trouble is everybody's, in its words.
TEST_F(GroupStoreTest, AllRanksFailTogether) {
  Start(3);
  SaveAll(10);
  std::vector<Status> statuses(3);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank != 2) {
          statuses[rank] = SaveRank(ranks_[rank].get(), rank, 20).status();
          return;
        }
        auto writer = ranks_[rank]->Begin(20);
        VARVE_ASSERT_OK(writer.status());
        (*writer)->Abandon();
      });
    }
  }
  EXPECT_THAT(statuses[0], FailsWith(StatusCode::kAborted, "rank 2: it was abandoned"));
  EXPECT_THAT(statuses[1], FailsWith(StatusCode::kAborted, "rank 2: it was abandoned"));
  EXPECT_THAT(Steps(*ranks_[0]), ElementsAre(10));
  SaveAll(20);  // as if nothing had been
}

TEST_F(GroupStoreTest, RanksOfAnEarlierEpochChangeNothing) {
  Start(2);
  SaveAll(10);
  std::vector<std::unique_ptr<Store>> old = std::move(ranks_);
  ranks_.clear();
  Start(1);  // the old ranks hold their members, so this makes a new one
  SaveAll(20);
  EXPECT_THAT(old[0]->Begin(30), FailsWith(StatusCode::kAborted, "has been replaced"));
  EXPECT_THAT(old[1]->Begin(30), FailsWith(StatusCode::kAborted, "epoch 2 of the job has begun"));
  const CheckpointId id{"main", 10};
  EXPECT_THAT(old[0]->Drop({&id, 1}), FailsWith(StatusCode::kAborted, "has been replaced"));
  EXPECT_THAT(Steps(*ranks_[0]), ElementsAre(10, 20));
  ExpectHolds(*old[1], 20, 1);  // but it may read
}

// The rank had started a save, slept through a restart, and goes on.
TEST_F(GroupStoreTest, ASaveOfAnEarlierEpochIsNeverSeen) {
  Start(1);
  auto writer = ranks_[0]->Begin(10);
  VARVE_ASSERT_OK(writer.status());
  const std::vector<TestTensor> content = ContentOf(0, 10);
  VARVE_ASSERT_OK((*writer)->Put(content[0].view()));
  std::vector<std::unique_ptr<Store>> old = std::move(ranks_);
  ranks_.clear();
  Start(1);
  EXPECT_THAT((*writer)->Commit(), FailsWith(StatusCode::kAborted, "epoch 2 of the job began"));
  EXPECT_THAT(ranks_[0]->ListRuns().value(), IsEmpty());
  SaveAll(10);
}

TEST_F(GroupStoreTest, ARankThatIsStartedAgainJoinsTheSameEpoch) {
  Start(2);
  SaveAll(10);
  ranks_[1].reset();
  ranks_[1] = JoinRank(1);
  SaveAll(20);
  EXPECT_EQ(Names("members").size(), 2u);
  ranks_[0].reset();
  ranks_[0] = JoinRank(0);
  SaveAll(30);
  EXPECT_THAT(Steps(*ranks_[1]), ElementsAre(10, 20, 30));
}

TEST_F(GroupStoreTest, DropsReachAllMembers) {
  Start(2);
  for (uint64_t step = 1; step <= 4; ++step) SaveAll(step);
  const std::vector<CheckpointId> ids{{"main", 1}, {"main", 3}};
  {  // by a command, at the same time as the ranks
    const auto root = Store::Open(path());
    VARVE_ASSERT_OK(root.status());
    EXPECT_GT((*root)->BytesFreedByDrop(ids).value(), 0u);
    const DropForecast forecast = (*root)->ForecastDrop(ids).value();
    EXPECT_EQ(forecast.freed_now + forecast.freed_later, (*root)->BytesFreedByDrop(ids).value());
    EXPECT_THAT((*root)->Drop(std::vector<CheckpointId>{{"main", 1}, {"main", 9}}),
                FailsWith(StatusCode::kNotFound, "no step 9 of run main; nothing was dropped"));
    const auto report = (*root)->Drop(ids);
    VARVE_ASSERT_OK(report.status());
    EXPECT_EQ(report->dropped.size(), 2u);
  }
  EXPECT_THAT(Steps(*ranks_[1]), ElementsAre(2, 4));
  EXPECT_THAT(ranks_[0]->OpenCheckpoint("main", 3), FailsWith(StatusCode::kNotFound, "step 3"));
  SaveAll(5);  // the ranks sweep their members
  for (uint32_t rank = 0; rank < 2; ++rank) {
    auto* const store = static_cast<GroupStore*>(ranks_[rank].get());
    store->AwaitSweep();
    EXPECT_EQ(HeldAttempts(*store->own_member()).value().size(), 3u);
  }
  ExpectHolds(*ranks_[0], 4, 2);
}

// More than one round of the sweep.
TEST_F(GroupStoreTest, WhatWasForgottenLeavesTheMembersInTheBackground) {
  Start(1);
  std::vector<CheckpointId> ids;
  for (uint64_t step = 1; step <= 20; ++step) {
    SaveAll(step);
    ids.push_back({"main", step});
  }
  VARVE_ASSERT_OK(Store::Open(path()).value()->Drop(ids).status());  // the rank has its member open
  auto* const store = static_cast<GroupStore*>(ranks_[0].get());
  EXPECT_EQ(HeldAttempts(*store->own_member()).value().size(), 20u);
  SaveAll(50);
  store->AwaitSweep();
  EXPECT_EQ(HeldAttempts(*store->own_member()).value().size(), 1u);
  ExpectHolds(*ranks_[0], 50, 1);
}

TEST_F(GroupStoreTest, ADropOpensNoMemberThatHeldNothingOfIt) {
  Start(2);
  SaveAll(10);
  Start(1);
  SaveAll(20);
  for (const std::string& name : Names("members")) {
    if (name == MemberName(static_cast<GroupStore*>(ranks_[0].get())->author().member)) continue;
    const fs::path current = path() / "members" / name / "db" / "CURRENT";
    fs::rename(current, path() / "elsewhere");
    const CheckpointId id{"main", 20};
    VARVE_EXPECT_OK(ranks_[0]->Drop({&id, 1}).status());
    fs::rename(path() / "elsewhere", current);
  }
}

TEST_F(GroupStoreTest, MembersOfAHostShareAReserve) {
  Start(3);
  SaveAll(10);
  size_t reserves = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    reserves += entry.path().stem() == "RESERVE" ? 1 : 0;
  }
  EXPECT_EQ(reserves, 1u);
}

TEST_F(GroupStoreTest, MembersWithoutAnyStepAreRemoved) {
  Start(3);
  SaveAll(10);
  Start(1);
  SaveAll(20);
  const CheckpointId id{"main", 10};
  VARVE_ASSERT_OK(ranks_[0]->Drop({&id, 1}).status());
  EXPECT_EQ(Names("members").size(), 1u);
  ExpectHolds(*ranks_[0], 20, 1);
}

TEST_F(GroupStoreTest, AReaderKeepsWhatItReads) {
  Start(1);
  SaveAll(10);
  SaveAll(20);
  {
    const auto reader = ranks_[0]->OpenCheckpoint("main", 10);
    VARVE_ASSERT_OK(reader.status());
    const CheckpointId id{"main", 10};
    VARVE_ASSERT_OK(ranks_[0]->Drop({&id, 1}).status());
    EXPECT_THAT(Steps(*ranks_[0]), ElementsAre(20));
    const TestTensor tensor = ContentOf(0, 10)[0];
    std::vector<std::byte> out(tensor.bytes.size());
    VARVE_ASSERT_OK((*reader)->Read(tensor.name, out));
    EXPECT_TRUE(out == tensor.bytes);
  }
  VARVE_ASSERT_OK(ranks_[0]->Reclaim().status());
  EXPECT_EQ(HeldAttempts(*static_cast<GroupStore*>(ranks_[0].get())->own_member()).value().size(),
            1u);
}

TEST_F(GroupStoreTest, TagsMetricsForksAndRewinds) {
  Start(2);
  SaveAll(10);
  SaveAll(20);
  Store& store = *ranks_[1];
  VARVE_ASSERT_OK(store.SetTag({"main", 10}, "good"));
  VARVE_ASSERT_OK(store.SetMetrics({"main", 10}, {{"nan", std::nan("")}}));
  EXPECT_EQ(store.FindTag("main", "good").value(), 10u);
  EXPECT_TRUE(std::isnan(store.ListCheckpoints("main").value()[0].metrics.at("nan")));
  VARVE_ASSERT_OK(store.RemoveTag("main", "good"));
  EXPECT_THAT(store.RemoveTag("main", "good"), FailsWith(StatusCode::kNotFound, "no tag good"));
  EXPECT_THAT(store.SetTag({"main", 11}, "x"), FailsWith(StatusCode::kNotFound, "step 11"));
  EXPECT_EQ(store.Fork("main", "trial", 10).value(), 10u);
  EXPECT_THAT(store.Fork("main", "trial"), FailsWith(StatusCode::kAlreadyExists, "trial"));
  const auto of_later_step = store.OpenCheckpoint("main", 20).value();
  const auto rewound = store.Rewind("main", 10).value();
  EXPECT_EQ(rewound.fork, "main~1");
  EXPECT_THAT(rewound.moved, ElementsAre(20));
  EXPECT_EQ(store.Rewind("main", 10).value().fork, "");
  ExpectHolds(store, 20, 2, "main~1");
  // A reader of a step that has moved goes on reading. It is the same data.
  ExpectHolds(*of_later_step, 20, 2);
  const std::vector<CheckpointId> ids{{"main", 10}};
  VARVE_ASSERT_OK(store.Drop(ids).status());
  ExpectHolds(store, 10, 2, "trial");
  SaveAll(30, {.run = "trial"});
}

TEST_F(GroupStoreTest, WithoutARankNothingIsSaved) {
  Start(1);
  SaveAll(10);
  const auto root = Store::Open(path());
  VARVE_ASSERT_OK(root.status());
  EXPECT_THAT((*root)->Begin(20),
              FailsWith(StatusCode::kFailedPrecondition, "written by its ranks together"));
  const auto reader = Store::OpenForReading(path());
  EXPECT_THAT((*reader)->SetTag({"main", 10}, "x"),
              FailsWith(StatusCode::kFailedPrecondition, "for reading only"));
  EXPECT_THAT(Store::Create(path()), FailsWith(StatusCode::kAlreadyExists, "root of a group"));
  EXPECT_THAT(Group::Join(path(), {.rank = 7, .epoch = epoch_}),
              FailsWith(StatusCode::kInvalidArgument, "rank is 7, expected less than 1"));
  EXPECT_THAT(Group::Join(path(), {.rank = 0, .epoch = 9}),
              FailsWith(StatusCode::kAborted, "this rank belongs to epoch 9"));
}

TEST_F(GroupStoreTest, StatusNamesWhoIsNotDone) {
  Start(3);
  const auto writer = ranks_[0]->Begin(10);
  VARVE_ASSERT_OK(writer.status());
  const GroupStatus status = Group::ReadStatus(path()).value();
  EXPECT_EQ(status.epoch, 1u);
  EXPECT_EQ(status.num_ranks, 3u);
  EXPECT_EQ(status.num_members, 3u);
  ASSERT_EQ(status.open_saves.size(), 1u);
  EXPECT_EQ(status.open_saves[0].id, (CheckpointId{"main", 10}));
  EXPECT_THAT(status.open_saves[0].missing_ranks, ElementsAre(0, 1, 2));
}

TEST_F(GroupStoreTest, StatusKnowsThatRankZeroIsDone) {
  Start(2);
  const auto zero = ranks_[0]->Begin(10);
  VARVE_ASSERT_OK(zero.status());
  std::jthread committing([&] { VARVE_EXPECT_OK((*zero)->Commit().status()); });
  std::vector<uint32_t> missing{0, 1};
  while (missing.size() == 2) {
    const GroupStatus status = Group::ReadStatus(path()).value();
    if (!status.open_saves.empty()) missing = status.open_saves[0].missing_ranks;
  }
  EXPECT_THAT(missing, ElementsAre(1));
  const auto one = ranks_[1]->Begin(10);
  VARVE_ASSERT_OK(one.status());
  VARVE_EXPECT_OK((*one)->Commit().status());
}

}  // namespace
}  // namespace varve::internal::testing
