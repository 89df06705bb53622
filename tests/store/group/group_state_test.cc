// SPDX-License-Identifier: Apache-2.0
//
// The fold: what single records do, and what must hold whatever records come in whatever order.
#include "store/group/group_state.h"

#include <random>

#include "store/group/posix_record_log.h"
#include "store/group/rank_save.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

constexpr MemberId kMembers[] = {11, 12, 13, 14};

// A state to which records are applied in short.
struct Group {
  GroupState state;
  Author Rank(uint32_t rank) const { return {state.epoch, rank, kMembers[rank]}; }

  Group& Do(const Author& author, RecordBody body) {
    state.Apply({author, std::move(body)});
    return *this;
  }
  Group& Start(uint32_t num_ranks) {
    Do({}, EpochRecord{state.epoch + 1, 1, num_ranks});
    for (uint32_t rank = 0; rank < num_ranks; ++rank) Do(Rank(rank), OwnRecord{"host"});
    return *this;
  }
  AttemptId Begin(const CheckpointId& id, OnExisting on_existing = OnExisting::kError,
                  AttemptId base = 0) {
    const AttemptId attempt = state.next_attempt;
    Do(Rank(0), BeginRecord{attempt, 1, id, base, on_existing});
    return attempt;
  }
  Group& Prepare(AttemptId attempt, uint32_t rank) {
    return Do(Rank(rank), PreparedRecord{attempt, {.member = kMembers[rank]}});
  }
  Group& Commit(AttemptId attempt, bool has_index = true) {
    return Do(Rank(0), CommitRecord{.attempt = attempt,
                                    .catalogue = {},
                                    .metrics = {},
                                    .tags = {},
                                    .has_index = has_index});
  }
  // Begin to commit.
  AttemptId Save(uint64_t step, OnExisting on_existing = OnExisting::kError) {
    const AttemptId attempt = Begin({"main", step}, on_existing);
    for (uint32_t rank = 0; rank < state.num_ranks; ++rank) Prepare(attempt, rank);
    Commit(attempt);
    return attempt;
  }
  bool IsOpen(AttemptId attempt) const {
    const GroupAttempt* found = state.FindAttempt(attempt);
    return found != nullptr && !found->committed;
  }
  bool IsCommitted(AttemptId attempt) const {
    const GroupAttempt* found = state.FindAttempt(attempt);
    return found != nullptr && found->committed;
  }
  StatusCode OutcomeOf(AttemptId attempt) const { return state.outcomes.at(attempt).code; }
  std::vector<uint64_t> Steps(const std::string& run = "main") const {
    std::vector<uint64_t> steps;
    for (const auto& [step, entry] : state.runs.at(run).steps) steps.push_back(step);
    return steps;
  }
};

TEST(GroupStateTest, AnAttemptIsCommittedOnceAllRanksArePrepared) {
  Group group;
  group.Start(2);
  const AttemptId attempt = group.Begin({"main", 10});
  EXPECT_TRUE(group.IsOpen(attempt));
  EXPECT_FALSE(group.Commit(attempt).IsCommitted(attempt));
  EXPECT_FALSE(group.Prepare(attempt, 0).Commit(attempt).IsCommitted(attempt));
  EXPECT_TRUE(group.Prepare(attempt, 1).Commit(attempt).IsCommitted(attempt));
  EXPECT_THAT(group.Steps(), ElementsAre(10));
  EXPECT_EQ(group.OutcomeOf(attempt), StatusCode::kOk);
}

// The index has the parts from then on. Ranks that look late must not take that for a part missing.
TEST(GroupStateTest, ACommitWithAnIndexKeepsTotalsAndMembersOnly) {
  Group group;
  group.Start(2);
  std::vector<AttemptId> attempts;
  for (const bool has_index : {true, true, false}) {
    attempts.push_back(group.Begin({"main", 10 + attempts.size()}));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      group.Do(
          group.Rank(rank),
          PreparedRecord{attempts.back(), {.member = kMembers[rank], .num_tensors = 3 + rank}});
    }
    EXPECT_TRUE(group.Commit(attempts.back(), has_index).IsCommitted(attempts.back()));
  }
  for (const AttemptId attempt : attempts) {
    const GroupAttempt& found = *group.state.FindAttempt(attempt);
    EXPECT_EQ(found.has_index(), attempt != attempts[2]);
    EXPECT_EQ(found.parts.empty(), attempt != attempts[2]);
    EXPECT_EQ(found.Totals().num_tensors, 7u);
    EXPECT_THAT(found.Members(), ElementsAre(kMembers[0], kMembers[1]));
  }
  EXPECT_EQ(group.state.attempts.at(1).crew.members, group.state.attempts.at(2).crew.members);
  // Parts that come late change nothing.
  const GroupState before = group.state;
  group.Prepare(1, 1).Prepare(2, 0);
  EXPECT_EQ(group.state.attempts, before.attempts);
  EXPECT_TRUE(group.state.IsInUse(kMembers[1]));
  EXPECT_FALSE(group.state.IsInUse(kMembers[2]));
}

// The index has what the slots have said. The log knows the current members and the sums.
TEST(GroupStateTest, ACommitOfGatheredPartsTakesTheMembersOfNow) {
  Group group;
  group.Start(2);
  const AttemptId attempt = group.Begin({"main", 10});
  CommitRecord commit{.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}};
  commit.gathered = {.members = DigestOfMembers({kMembers[0], kMembers[1]}),
                     .totals = {7, 6, 5, 4}};
  // Another process goes on as rank 1 since its part was gathered.
  group.Do({group.state.epoch, 1, kMembers[2]}, OwnRecord{"host"});
  EXPECT_TRUE(group.Do(group.Rank(0), commit).IsOpen(attempt));
  group.Do(group.Rank(1), OwnRecord{"host"});
  EXPECT_TRUE(group.Do(group.Rank(1), commit).IsOpen(attempt));  // not rank 0
  EXPECT_TRUE(group.Do(group.Rank(0), commit).IsCommitted(attempt));
  const GroupAttempt& found = *group.state.FindAttempt(attempt);
  EXPECT_TRUE(found.has_index());
  EXPECT_EQ(found.Totals(), commit.gathered->totals);
  EXPECT_THAT(found.Members(), ElementsAre(kMembers[0], kMembers[1]));
}

TEST(GroupStateTest, GatheredPartsAreOfAllRanks) {
  Group group;
  group.Do({}, EpochRecord{1, 1, 2});
  group.Do(group.Rank(0), OwnRecord{"host"});
  const AttemptId attempt = group.Begin({"main", 10});
  CommitRecord commit{.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}};
  for (const std::vector<MemberId>& members :
       {std::vector<MemberId>{}, std::vector<MemberId>{kMembers[0]}}) {
    commit.gathered = {.members = DigestOfMembers(members), .totals = {}};
    EXPECT_TRUE(group.Do(group.Rank(0), commit).IsOpen(attempt));
  }
}

// Rank 0 looks again after each append. Another rank may have joined and given up before that.
TEST(GroupStateTest, RankZeroBeginsAnAttemptOnce) {
  Group group;
  group.Start(2);
  AttemptId proposed = 0;
  const auto propose = [&] {
    return ProposeBegin(group.state, group.Rank(0), {"main", 10}, {}, /*nonce=*/7, &proposed)
        .value();
  };
  const std::optional<RecordBody> begin = propose();
  ASSERT_TRUE(begin.has_value());
  group.Do(group.Rank(0), *begin);
  EXPECT_TRUE(group.IsOpen(proposed));
  EXPECT_FALSE(propose().has_value());
  group.Do(group.Rank(1), AbortRecord{proposed, StatusCode::kAborted, "rank 1: no"});
  EXPECT_FALSE(propose().has_value());
  EXPECT_EQ(OutcomeOf(group.state, proposed).message(), "rank 1: no");
}

TEST(GroupStateTest, TheFirstOutcomeDecides) {
  Group group;
  group.Start(1);
  const AttemptId aborted = group.Begin({"main", 1});
  group.Prepare(aborted, 0).Do(group.Rank(0), AbortRecord{aborted, StatusCode::kIOError, "disk"});
  group.Commit(aborted);
  EXPECT_EQ(group.state.FindAttempt(aborted), nullptr);
  EXPECT_EQ(group.OutcomeOf(aborted), StatusCode::kIOError);
  const AttemptId committed = group.Save(1);
  group.Do(group.Rank(0), AbortRecord{committed, StatusCode::kIOError, "disk"});
  EXPECT_TRUE(group.IsCommitted(committed));
  EXPECT_NE(committed, aborted);
}

TEST(GroupStateTest, ANewEpochEndsWhatWasOpenAndMutesOldRanks) {
  Group group;
  group.Start(2);
  const AttemptId kept = group.Save(1);
  const AttemptId open = group.Begin({"main", 2});
  group.Prepare(open, 0).Prepare(open, 1);
  const Author old0 = group.Rank(0), old1 = group.Rank(1);
  group.Do({}, EpochRecord{2, 5, 1});
  EXPECT_EQ(group.OutcomeOf(open), StatusCode::kAborted);
  const GroupState before = group.state;
  group.Do(old0, CommitRecord{.attempt = open, .catalogue = {}, .metrics = {}, .tags = {}})
      .Do(old0, BeginRecord{group.state.next_attempt, 1, {"main", 3}, 0, OnExisting::kError})
      .Do(old1, OwnRecord{"host"})
      .Do(old0, DropRecord{{{{"main", 1}, kept}}})
      .Do(old0, TagRecord{{{"main", 1}, kept}, "late"})
      .Do({}, EpochRecord{2, 6, 3});
  GroupState after = group.state;
  after.next = before.next;
  EXPECT_EQ(after, before);
}

// A rank was started again within the epoch. Its older process is still there, in a member of its
// own.
TEST(GroupStateTest, OfTwoInstancesOfARankTheNewerCounts) {
  Group group;
  group.Start(1);
  const Author old = group.Rank(0);
  const Author newer{1, 0, kMembers[3]};
  group.Do(newer, OwnRecord{"host"});
  group.Do(old, BeginRecord{1, 1, {"main", 1}, 0, OnExisting::kError});
  EXPECT_EQ(group.state.next_attempt, 1u);
  group.Do(newer, BeginRecord{1, 1, {"main", 1}, 0, OnExisting::kError});
  group.Do(old, PreparedRecord{1, {.member = old.member}});
  EXPECT_TRUE(group.state.attempts.at(1).parts.empty());
}

TEST(GroupStateTest, CommandsWriteNoSaves) {
  Group group;
  group.Start(1);
  group.Do({}, BeginRecord{1, 1, {"main", 1}, 0, OnExisting::kError});
  group.Do({}, OwnRecord{"host"});
  EXPECT_EQ(group.state.next_attempt, 1u);
  const AttemptId open = group.Begin({"main", 1});
  group.Do({}, AbortRecord{open, StatusCode::kAborted, ""});
  EXPECT_TRUE(group.IsOpen(open));
}

TEST(GroupStateTest, WhatToDoWithAnExistingStep) {
  Group group;
  group.Start(1);
  const AttemptId first = group.Save(10);
  group.Save(20);
  EXPECT_EQ(group.Begin({"main", 10}), group.state.next_attempt);  // refused: nothing began
  const AttemptId second = group.Save(10, OnExisting::kReplace);
  EXPECT_EQ(group.state.FindAttempt(first), nullptr);
  EXPECT_EQ(group.state.FindStep({"main", 10})->attempt, second);
  const AttemptId third = group.Save(10, OnExisting::kFork);
  EXPECT_THAT(group.Steps("main"), ElementsAre(10));
  EXPECT_THAT(group.Steps("main~1"), ElementsAre(10, 20));
  EXPECT_EQ(group.state.FindStep({"main", 10})->attempt, third);
  EXPECT_TRUE(group.IsCommitted(second));
}

TEST(GroupStateTest, OfTwoThatSaveAStepTheLaterFails) {
  Group group;
  group.Start(1);
  const AttemptId a = group.Begin({"main", 1}), b = group.Begin({"main", 1});
  group.Prepare(a, 0).Prepare(b, 0).Commit(b).Commit(a);
  EXPECT_TRUE(group.IsCommitted(b));
  EXPECT_EQ(group.OutcomeOf(a), StatusCode::kAlreadyExists);
}

TEST(GroupStateTest, AnAttemptStaysWhileAnythingNamesIt) {
  Group group;
  group.Start(1);
  const AttemptId attempt = group.Save(1);
  const NamedAttempt step{{"main", 1}, attempt};
  group.Do({}, ForkRecord{step, "other"}).Do({}, PinRecord{7, attempt, 100});
  group.Do({}, DropRecord{{step}});
  EXPECT_TRUE(group.IsCommitted(attempt));
  group.Do({}, DropRecord{{{{"other", 1}, attempt}}});
  EXPECT_FALSE(group.state.runs.contains("other"));  // a fork without a step goes
  EXPECT_TRUE(group.IsCommitted(attempt));
  group.Do({}, UnpinRecord{7});
  EXPECT_EQ(group.state.FindAttempt(attempt), nullptr);
}

TEST(GroupStateTest, PinsOfTheDeadExpire) {
  Group group;
  group.Start(1);
  const AttemptId attempt = group.Save(1);
  group.Do({}, PinRecord{7, attempt, 3}).Do({}, DropRecord{{{{"main", 1}, attempt}}});
  EXPECT_TRUE(group.IsCommitted(attempt));
  group.Do({}, UnpinRecord{99}).Do({}, UnpinRecord{99});
  EXPECT_EQ(group.state.FindAttempt(attempt), nullptr);
  EXPECT_TRUE(group.state.pins.empty());
}

TEST(GroupStateTest, ADropMeansOneAttempt) {
  Group group;
  group.Start(1);
  const AttemptId first = group.Save(1);
  const AttemptId second = group.Save(1, OnExisting::kReplace);
  group.Do({}, DropRecord{{{{"main", 1}, first}}});
  EXPECT_TRUE(group.IsCommitted(second));
}

TEST(GroupStateTest, TagsFollowTheirSteps) {
  Group group;
  group.Start(1);
  const AttemptId one = group.Save(1), two = group.Save(2);
  group.Do({}, TagRecord{{{"main", 1}, one}, "good"}).Do({}, TagRecord{{{"main", 2}, two}, "new"});
  group.Do({}, RewindRecord{{{"main", 1}, one}, "main~1"});
  EXPECT_EQ(group.state.runs.at("main~1").tags.at("new"), 2u);
  EXPECT_EQ(group.state.runs.at("main").tags.size(), 1u);
  group.Do({}, DropRecord{{{{"main", 1}, one}}});
  EXPECT_TRUE(group.state.runs.at("main").tags.empty());
}

TEST(GroupStateTest, MembersGoOnlyWhenNobodyNeedsThem) {
  Group group;
  group.Start(2);
  const AttemptId attempt = group.Save(1);
  group.Do({}, RemoveMemberRecord{kMembers[1]});  // of this epoch
  group.Start(1);
  group.Do({}, RemoveMemberRecord{kMembers[1]});  // holds part of the attempt
  EXPECT_EQ(group.state.members.size(), 2u);
  group.Do({}, DropRecord{{{{"main", 1}, attempt}}}).Do({}, RemoveMemberRecord{kMembers[1]});
  EXPECT_EQ(group.state.members.size(), 1u);
}

// Any record that any process could write at any time, also wrong ones and late ones.
class AnyRecords {
 public:
  explicit AnyRecords(uint64_t seed) : random_(seed) {}

  GroupRecord Next(const GroupState& state) {
    const AttemptId attempt = Draw(state.next_attempt + 1);
    const CheckpointId id{Draw(4) == 0 ? "other" : "main", Draw(6)};
    const NamedAttempt step{
        id, Draw(3) == 0 || state.FindStep(id) == nullptr ? attempt : state.FindStep(id)->attempt};
    const auto rank = static_cast<uint32_t>(Draw(3));
    const Author author{Draw(5) == 0 ? Draw(state.epoch + 2) : state.epoch, rank,
                        kMembers[Draw(8) == 0 ? Draw(4) : rank]};
    const auto on_existing = static_cast<OnExisting>(Draw(3));
    switch (Draw(20)) {
      case 0:
        if (Draw(4) != 0) return Next(state);
        return {{},
                EpochRecord{state.epoch + Draw(3), Draw(9), 1 + static_cast<uint32_t>(Draw(3))}};
      case 1:
      case 2:
        return {author, OwnRecord{"host"}};
      case 3:
      case 4:
      case 5:
        return {author, BeginRecord{state.next_attempt, 1, id, attempt, on_existing}};
      case 6:
      case 7:
      case 8:
      case 9:
        return {author, PreparedRecord{Recent(state), {.member = author.member}}};
      case 10:
      case 11:
      case 12: {
        CommitRecord commit{Recent(state), {}, 0, {{"m", 1}}, {"tag"}};
        if (Draw(3) == 0) commit.gathered = {DigestOfMembers(SomeMembers(state)), {}};
        return {author, commit};
      }
      case 13:
        return {author, AbortRecord{Recent(state), StatusCode::kAborted, "why"}};
      case 14:
        return {Draw(2) == 0 ? Author{} : author, DropRecord{{step}}};
      case 15:
        return {{}, ForkRecord{step, "fork" + std::to_string(Draw(3))}};
      case 16:
        return {{}, RewindRecord{step, "main~" + std::to_string(Draw(3))}};
      case 17:
        return {{}, PinRecord{Draw(5), attempt, Draw(30)}};
      case 18:
        return {{}, UnpinRecord{Draw(5)}};
      default:
        return {{}, RemoveMemberRecord{kMembers[Draw(4)]}};
    }
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }
  std::vector<MemberId> SomeMembers(const GroupState& state) {
    std::vector<MemberId> members = state.MembersOfRanks();
    if (Draw(3) == 0 && !members.empty()) members.back() = kMembers[Draw(4)];
    return members;
  }
  AttemptId Recent(const GroupState& state) { return state.next_attempt - 1 - Draw(2) * Draw(2); }
  std::mt19937_64 random_;
};

// Encodes and decodes it, which checks all that must hold in a state.
GroupState ThroughASnapshot(const GroupState& state) {
  const SnapshotRecord snapshot{std::make_shared<const GroupState>(state)};
  const auto decoded =
      DecodeGroupRecord(1, state.next, EncodeGroupRecord(1, state.next, {{}, snapshot}));
  EXPECT_TRUE(decoded.ok()) << decoded.status().ToString();
  return decoded.ok() ? *std::get<SnapshotRecord>(decoded->body).state : GroupState{};
}

void ExpectDerivedFollows(const GroupState& state) {
  std::set<AttemptId> open;
  for (const auto& [number, attempt] : state.attempts) {
    if (!attempt.committed) open.insert(number);
  }
  ASSERT_EQ(state.derived.open, open);
  if (state.derived.crew.members == nullptr) return;
  ASSERT_EQ(*state.derived.crew.members, state.MembersOfRanks());
  ASSERT_EQ(state.derived.crew_digest, DigestOfMembers(state.MembersOfRanks()));
}

class GroupStatePropertyTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(GroupStatePropertyTest, AnyPrefixIsSoundAndOutcomesAreForEver) {
  AnyRecords records(GetParam());
  GroupState state;
  GroupState resumed;  // from a snapshot in the middle
  std::map<AttemptId, StatusCode> outcomes;
  std::set<AttemptId> closed;
  for (int i = 0; i < 3000; ++i) {
    if (i % 500 == 0) resumed = ThroughASnapshot(state);
    const GroupRecord record = records.Next(state);
    const GroupState before = state;
    state.Apply(record);
    resumed.Apply(record);
    ASSERT_NO_FATAL_FAILURE(ExpectDerivedFollows(state)) << "record " << i;
    ASSERT_NO_FATAL_FAILURE(ExpectDerivedFollows(resumed)) << "record " << i;
    ASSERT_EQ(state.next, before.next + 1);
    ASSERT_GE(state.next_attempt, before.next_attempt);
    for (const auto& [attempt, outcome] : state.outcomes) {
      const auto [it, is_new] = outcomes.emplace(attempt, outcome.code);
      ASSERT_EQ(it->second, outcome.code) << "attempt " << attempt << ", record " << i;
    }
    for (const auto& [attempt, was] : before.attempts) {
      const GroupAttempt* now = state.FindAttempt(attempt);
      if (now == nullptr) closed.insert(attempt);
      if (now == nullptr || now->committed || !was.committed) continue;
      FAIL() << "attempt " << attempt << " is open again after record " << i;
    }
    for (const auto& [attempt, now] : state.attempts) {
      ASSERT_FALSE(closed.contains(attempt)) << "attempt " << attempt << " is back, record " << i;
      ASSERT_TRUE(!now.committed || outcomes.at(attempt) == StatusCode::kOk);
    }
    if (record.author.epoch != 0 && record.author.epoch != before.epoch) {
      GroupState after = state;
      after.next = before.next;
      GroupState idle = before;  // except for pins that expire meanwhile
      idle.Apply({{}, UnpinRecord{1000}});
      idle.next = before.next;
      ASSERT_EQ(after, idle) << "a record of epoch " << record.author.epoch << " had an effect";
    }
    if (i % 100 == 0) {
      ASSERT_EQ(ThroughASnapshot(state), state);
    }
  }
  EXPECT_EQ(resumed, state);
  EXPECT_GT(outcomes.size(), 50u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, GroupStatePropertyTest, ::testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace varve::internal::testing
