// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_record.h"

#include "store/format/group_file.h"
#include "store/group/catalogue.h"
#include "store/group/group_state.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kRecordSeed = 3;

template <typename Body>
Body RoundTrip(const Body& body) {
  const Author author{4, 1, 77};
  const auto record =
      DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {author, body}));
  EXPECT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->author, author);
  return std::get<Body>(record->body);
}

TEST(GroupRecordTest, EveryKindSurvives) {
  const NamedAttempt step{{"main", 10}, 5};
  EXPECT_EQ(RoundTrip(EpochRecord{3, 4, 5}).num_ranks, 5u);
  EXPECT_EQ(RoundTrip(EpochRecord{3, 4, 5}).version, kGroupVersion);
  EXPECT_EQ(RoundTrip(EpochRecord{3, 4, 5, 0}).version, 1u);  // as older programs wrote it
  EXPECT_EQ(RoundTrip(OwnRecord{"host"}).host, "host");
  const BeginRecord begin = RoundTrip(BeginRecord{5, 6, {"main", 10}, 4, OnExisting::kFork});
  EXPECT_EQ(begin.id, step.id);
  EXPECT_EQ(begin.base, 4u);
  EXPECT_EQ(begin.on_existing, OnExisting::kFork);
  const GroupPart part{77, {1, 2}, 3, 4, 5, 6, {7, 8}};
  EXPECT_EQ(RoundTrip(PreparedRecord{5, part}).part, part);
  const CommitRecord commit = RoundTrip(CommitRecord{5, {1, 2}, -3, {{"loss", 0.5}}, {"best one"}});
  EXPECT_EQ(commit.metrics.at("loss"), 0.5);
  EXPECT_EQ(commit.created_us, -3);
  EXPECT_EQ(commit.tags.size(), 1u);
  EXPECT_TRUE(commit.has_index);
  EXPECT_FALSE(RoundTrip(CommitRecord{5, {1, 2}, -3, {}, {}, false}).has_index);
  CommitRecord gathered{5, {1, 2}, -3, {}, {}};
  EXPECT_FALSE(RoundTrip(gathered).gathered.has_value());
  gathered.gathered = {.members = {8, 9}, .totals = {1, 2, 3, 4}};
  const CommitRecord read = RoundTrip(gathered);
  EXPECT_TRUE(read.has_index);
  EXPECT_EQ(read.gathered->members, (Digest{8, 9}));
  EXPECT_EQ(read.gathered->totals, (GroupTotals{1, 2, 3, 4}));
  const SnapshotRecord snapshot = RoundTrip(SnapshotRecord{nullptr, {5, 6}});
  EXPECT_EQ(snapshot.state, nullptr);
  EXPECT_EQ(snapshot.file, (Digest{5, 6}));
  EXPECT_EQ(RoundTrip(AbortRecord{5, StatusCode::kIOError, "disk"}).code, StatusCode::kIOError);
  EXPECT_EQ(RoundTrip(DropRecord{{step, step}}).steps.at(1), step);
  EXPECT_EQ(RoundTrip(TagRecord{step, "t"}).step, step);
  EXPECT_EQ(RoundTrip(UntagRecord{"main", "t"}).tag, "t");
  EXPECT_EQ(RoundTrip(MetricsRecord{step, {{"a", 1}}}).metrics.size(), 1u);
  EXPECT_EQ(RoundTrip(ForkRecord{step, "x"}).new_run, "x");
  EXPECT_EQ(RoundTrip(RewindRecord{step, "x"}).step, step);
  EXPECT_EQ(RoundTrip(PinRecord{1, 2, 3}).life, 3u);
  EXPECT_EQ(RoundTrip(UnpinRecord{1}).pin, 1u);
  EXPECT_EQ(RoundTrip(RemoveMemberRecord{9}).member, 9u);
}

TEST(GroupRecordTest, AnythingElseIsRefused) {
  const std::string good = EncodeGroupRecord(kRecordSeed, 9, {{}, EpochRecord{1, 2, 3}});
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, ""),
              FailsWith(StatusCode::kCorruption, "bad magic"));
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 8, good),
              FailsWith(StatusCode::kCorruption, "checksum"));
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed + 1, 9, good),
              FailsWith(StatusCode::kCorruption, "checksum"));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, bad),
                FailsWith(StatusCode::kCorruption, "record"));
    EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, good.substr(0, i)),
                FailsWith(StatusCode::kCorruption, "record"));
  }
  const BeginRecord nameless{5, 6, {"", 10}, 4, OnExisting::kError};
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {{}, nameless})),
              FailsWith(StatusCode::kCorruption, "no name"));
  const AbortRecord success{5, StatusCode::kOk, ""};
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {{}, success})),
              FailsWith(StatusCode::kCorruption, "error code is 0"));
  const EpochRecord newer{.epoch = 5, .num_ranks = 1, .version = kGroupVersion + 1};
  EXPECT_THAT(DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {{}, newer})),
              FailsWith(StatusCode::kFailedPrecondition, "use a newer varve"));
}

// A snapshot whose parts do not fit each other, with a right checksum.
TEST(GroupRecordTest, SnapshotsAreChecked) {
  GroupState good;
  good.next = 9;
  good.epoch = 1;
  good.num_ranks = 1;
  good.next_attempt = 2;
  good.members[77] = {"host", 1, 0};
  good.ranks[0] = 77;
  good.attempts[1] = {
      .committed = true, .id = {"main", 1}, .parts = {{0, {.member = 77}}}, .names = 1};
  good.runs["main"].steps[1].attempt = 1;
  const auto decode = [](const GroupState& state) {
    const SnapshotRecord record{std::make_shared<const GroupState>(state)};
    return DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {{}, record}));
  };
  const auto decoded = decode(good);
  VARVE_ASSERT_OK(decoded.status());
  EXPECT_EQ(*std::get<SnapshotRecord>(decoded->body).state, good);

  GroupState bad = good;
  bad.next_attempt = 1;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "attempt 1 is not below"));
  bad = good;
  bad.members.clear();
  bad.ranks.clear();
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "names no member for rank 0"));
  bad = good;
  bad.runs["main"].steps[2].attempt = 3;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "attempt 3, which is not committed"));
  bad = good;
  bad.runs.clear();
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "has 0 names"));
  bad = good;
  bad.runs["main"].tags["t"] = 5;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "tag t of run main names no step"));
  bad = good;
  bad.ranks[7] = 77;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "rank 7 has no member"));
  bad = good;
  bad.snapshot = 9;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "its place in the log"));
  bad = good;
  bad.pins[1] = {4, 20};
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "a pin names attempt 4"));
}

// A group in which 64 ranks have saved each step. What ranks have in common is stored once.
GroupState ManySteps(uint64_t num_steps, uint32_t num_ranks) {
  GroupState state;
  state.version = 2;
  state.next = 9;
  state.epoch = 1;
  state.num_ranks = num_ranks;
  state.next_attempt = num_steps + 1;
  std::vector<MemberId> members;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    members.push_back(rank + 1);
    state.members[rank + 1] = {"host", 1, rank};
    state.ranks[rank] = rank + 1;
  }
  const GroupCrew crew{std::make_shared<const std::vector<MemberId>>(members)};
  // The job was restarted on another host meanwhile.
  members.back() = 1;
  const GroupCrew other{std::make_shared<const std::vector<MemberId>>(members)};
  for (uint64_t step = 1; step <= num_steps; ++step) {
    state.attempts[step] = {.committed = true,
                            .nonce = step,
                            .id = {"main", step},
                            .base = step - 1,
                            .crew = step % 2 == 0 ? crew : other,
                            .crew_totals = {1, 2, 3, step},
                            .catalogue = {step, step},
                            .created_us = 1,
                            .names = 1};
    state.runs["main"].steps[step] = {.attempt = step, .parent = {}, .metrics = {{"loss", 0.5}}};
  }
  return state;
}

// With a part of each rank at each step it could not be read beyond 15,600 steps.
TEST(GroupRecordTest, ASnapshotOfManyStepsIsSmall) {
  constexpr uint64_t kSteps = 20'000;
  const GroupState state = ManySteps(kSteps, 64);
  const SnapshotRecord record{std::make_shared<const GroupState>(state)};
  const std::string bytes = EncodeGroupRecord(kRecordSeed, 9, {{}, record});
  EXPECT_LT(bytes.size(), 256 * kSteps);
  const auto decoded = DecodeGroupRecord(kRecordSeed, 9, bytes);
  VARVE_ASSERT_OK(decoded.status());
  const GroupState& found = *std::get<SnapshotRecord>(decoded->body).state;
  EXPECT_TRUE(found == state);
  EXPECT_EQ(found.attempts.at(2).crew.members, found.attempts.at(4).crew.members);  // shared
  EXPECT_TRUE(found.IsInUse(64));
  EXPECT_FALSE(found.IsInUse(65));
}

TEST(GroupRecordTest, CrewsInSnapshotsAreChecked) {
  const GroupState good = ManySteps(2, 3);
  const auto decode = [](const GroupState& state) {
    const SnapshotRecord record{std::make_shared<const GroupState>(state)};
    return DecodeGroupRecord(kRecordSeed, 9, EncodeGroupRecord(kRecordSeed, 9, {{}, record}));
  };
  VARVE_ASSERT_OK(decode(good).status());
  GroupState bad = good;
  bad.members.erase(2);
  bad.ranks.erase(1);
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "a crew names no member for rank 1"));
  bad = good;
  bad.attempts[2].committed = false;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "attempt 2 cannot have crew 2 of 2"));
  bad = good;
  bad.attempts[1].parts[0] = {.member = 1};
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "attempt 1 cannot have crew 1 of 2"));
  bad = good;
  bad.version = 1;
  EXPECT_THAT(decode(bad), FailsWith(StatusCode::kCorruption, "attempt 1 cannot have crew 1 of 2"));
}

TEST(CatalogueTest, SurvivesAndIsChecked) {
  const Catalogue good{{{{.name = "a", .shape = {2, 3}}, 0},
                        {{.name = "a"}, 1},
                        {{.name = "b", .dtype = DType::kU8, .shape = {0}}, 0, 4}},
                       {{"x", 0}, {"x", 1}}};
  EXPECT_EQ(DecodeCatalogue(EncodeCatalogue(good), 2).value(), good);
  EXPECT_EQ(DecodeCatalogue(EncodeCatalogue({}), 2).value(), Catalogue());
  EXPECT_THAT(DecodeCatalogue(EncodeCatalogue(good), 1),
              FailsWith(StatusCode::kCorruption, "is of rank 1, expected less than 1"));
  Catalogue bad = good;
  bad.shards[1].rank = 0;
  EXPECT_THAT(DecodeCatalogue(EncodeCatalogue(bad), 2),
              FailsWith(StatusCode::kCorruption, "a is out of order"));
  bad = good;
  bad.shards[0].shape = {-1};
  EXPECT_THAT(DecodeCatalogue(EncodeCatalogue(bad), 2),
              FailsWith(StatusCode::kCorruption, "tensor a"));
  bad = good;
  bad.shards[0].dtype = static_cast<DType>(200);
  EXPECT_THAT(DecodeCatalogue(EncodeCatalogue(bad), 2),
              FailsWith(StatusCode::kCorruption, "dtype 200"));
  EXPECT_THAT(DecodeCatalogue("not one at all", 2),
              FailsWith(StatusCode::kCorruption, "not a well-formed flatbuffer"));
}

TEST(CatalogueTest, IsTheOneThatTheLogMeans) {
  const TempFolder folder;
  VARVE_ASSERT_OK(CreateOrReadGroup(folder.path()).status());
  const Catalogue catalogue{{{{.name = "a", .shape = {2, 3}}, 0}}, {}};
  const CatalogueFile file(folder.path(), kRecordSeed, 5);
  const auto digest = file.Write(ViewsOf(catalogue), catalogue.items);
  VARVE_ASSERT_OK(digest.status());
  EXPECT_EQ(file.Read(*digest, 1).value(), catalogue);
  EXPECT_THAT(file.Read({1, 2}, 1), FailsWith(StatusCode::kCorruption, "digest is"));
  VARVE_ASSERT_OK(file.Remove());
  EXPECT_THAT(file.Read(*digest, 1), FailsWith(StatusCode::kCorruption, "cannot be read"));
}

}  // namespace
}  // namespace varve::internal::testing
