// SPDX-License-Identifier: Apache-2.0
//
// Groups of a stranger: records that claim what belongs to another rank, and links in the place of
// folders. What was saved before stays, and nothing outside of the root changes.
#include <map>

#include "store/group/catalogue_index.h"
#include "tests/store/group/group_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Files with their bytes, folders, and links with what they lead to.
std::map<std::string, std::string> Everything(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string& bytes = found[entry.path().string()];
    if (entry.is_symlink()) {
      bytes = "-> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(file), {});
    }
  }
  return found;
}

class HostileGroupTest : public GroupStoreTest {
 protected:
  GroupState State() {
    return GroupStore::OpenPath(path(), {}, /*for_writing=*/false)
        .value()
        ->log()
        ->With([](const GroupState& state) { return state; });
  }

  // Appends a record, as any process that may write to the root can.
  void Append(const Author& author, const RecordBody& body) {
    const auto root = GroupStore::OpenPath(path(), {}, /*for_writing=*/true).value();
    bool done = false;
    VARVE_ASSERT_OK(
        root->log()->Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
          if (std::exchange(done, true)) return std::optional<GroupRecord>();
          return std::optional(GroupRecord{author, body});
        }));
  }

  // Two ranks have saved step 10, and have a save of step 20 under way that waits for others.
  void SaveAndBegin() {
    Start(2);
    SaveAll(10);
    state_ = State();
    zero_ = {state_.epoch, 0, state_.ranks.at(0)};
    one_ = {state_.epoch, 1, state_.ranks.at(1)};
    Append(zero_, BeginRecord{state_.next_attempt, 7, {"main", 20}, 0, OnExisting::kError});
  }
  bool IsOpen(AttemptId attempt) {
    const GroupState state = State();
    const GroupAttempt* found = state.FindAttempt(attempt);
    return found != nullptr && !found->committed;
  }
  CommitRecord CommitOf(const std::vector<MemberId>& members, const Digest& catalogue = {}) const {
    CommitRecord commit{
        .attempt = state_.next_attempt, .catalogue = catalogue, .metrics = {}, .tags = {}};
    commit.gathered = {.members = DigestOfMembers(members), .totals = {}};
    return commit;
  }

  // A new start of the job goes on.
  void ExpectGoesOn() {
    Start(2);
    ExpectHolds(*ranks_[1], 10, 2);
    SaveAll(30);
    ExpectHolds(*ranks_[0], 30, 2);
  }

  GroupState state_;  // before the record of step 20
  Author zero_, one_;
};

TEST_F(HostileGroupTest, ARankThatClaimsTheMemberOfAnotherSavesNothing) {
  Start(2);
  SaveAll(10);
  ranks_[0].reset();
  ranks_[0] = JoinRank(0, kShort);
  const GroupState state = State();
  const MemberId of_zero = state.ranks.at(0), of_one = state.ranks.at(1);
  Append({state.epoch, 1, of_zero}, OwnRecord{state.members.at(of_zero).host});
  EXPECT_EQ(State().ranks.at(0), of_zero);

  // What rank 0 says in its slot is not taken for the part of rank 1.
  const std::vector<Status> statuses = Save(20);
  EXPECT_THAT(statuses[0], FailsWith(StatusCode::kAborted, "rank 1 did not save step 20"));
  EXPECT_THAT(statuses[1], FailsWith(StatusCode::kAborted, "rank 1 of epoch 1 has been replaced"));
  EXPECT_THAT(Steps(*ranks_[0]), ElementsAre(10));
  ExpectHolds(*ranks_[0], 10, 2);
  EXPECT_EQ(Names("members"), (std::set{MemberName(of_zero), MemberName(of_one)}));
  ExpectGoesOn();
}

// A member has one host for ever, and has a number.
TEST_F(HostileGroupTest, AMemberOfAnotherHostOrOfNoNumberIsNotClaimed) {
  Start(2);
  const GroupState before = State();
  Append({before.epoch, 1, before.ranks.at(0)}, OwnRecord{"../../elsewhere"});
  Append({before.epoch, 1, 0}, OwnRecord{"host"});
  Append({before.epoch, 2, 99}, OwnRecord{"host"});  // a rank that the epoch does not have
  GroupState after = State();
  EXPECT_EQ(after.next, before.next + 3);
  after.next = before.next;
  EXPECT_EQ(after, before);
  SaveAll(10);
}

// The number is all that a record says of a member, and its folder follows from that alone.
TEST_F(HostileGroupTest, NoMemberLiesOutsideOfTheFolderOfMembers) {
  Start(1);
  SaveAll(10);
  for (const MemberId id : {MemberId{0}, MemberId{1}, MemberId{1} << 63, ~MemberId{0}}) {
    EXPECT_EQ(MemberFolder(path(), id).parent_path(), path() / "members");
    EXPECT_EQ(MemberName(id).find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_EQ(MemberName(id).size(), 16u);
  }
  const fs::path beside = path() / MemberName(7);  // where "../7" would be
  fs::create_directory(beside);
  std::ofstream(beside / "thesis") << "years of work";
  Append({State().epoch, 0, 7}, OwnRecord{"host"});
  ranks_.clear();
  const auto store = Store::Open(path()).value();
  EXPECT_THAT(store->Check().value().errors, IsEmpty());
  VARVE_ASSERT_OK(Group::StartEpoch(path(), 1).status());  // nobody has the member from now on
  VARVE_ASSERT_OK(store->Reclaim().status());
  EXPECT_EQ(fs::file_size(beside / "thesis"), 13u);
  EXPECT_FALSE(fs::exists(MemberFolder(path(), 7)));
}

TEST_F(HostileGroupTest, ACommitThatNamesTheMemberOfAnotherRankHasNoEffect) {
  SaveAndBegin();
  const AttemptId attempt = state_.next_attempt;
  const MemberId of_zero = zero_.member, of_one = one_.member;
  for (const std::vector<MemberId>& members :
       {std::vector{of_zero, of_zero}, std::vector{of_one, of_zero}, std::vector{of_one, of_one},
        std::vector{of_zero, MemberId{77}}, std::vector{of_zero}, std::vector<MemberId>{}}) {
    Append(zero_, CommitOf(members));
    EXPECT_TRUE(IsOpen(attempt)) << members.size();
  }
  Append(one_, CommitOf({of_zero, of_one}));                       // of a rank that is not rank 0
  Append({state_.epoch, 0, of_one}, CommitOf({of_one, of_zero}));  // as if it were rank 0
  // As in a group of version 2: rank 1 says that its part is in the member of rank 0.
  Append(zero_, PreparedRecord{attempt, {.member = of_zero}});
  Append(one_, PreparedRecord{attempt, {.member = of_zero}});
  Append(zero_, CommitRecord{.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}});
  EXPECT_TRUE(IsOpen(attempt));
  EXPECT_THAT(Steps(*ranks_[0]), ElementsAre(10));
  ExpectGoesOn();
}

// Each record counts by itself: rank 1 owns the member of rank 0, and rank 0 commits both parts in
// it. The catalogue names a part that the member does not hold.
TEST_F(HostileGroupTest, AForgedStepIsNamedAndTheOthersStay) {
  SaveAndBegin();
  const MemberId of_zero = zero_.member;
  Append({state_.epoch, 1, of_zero}, OwnRecord{state_.members.at(of_zero).host});
  std::map<uint32_t, GroupPart> parts;
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    parts[rank] = {.member = of_zero, .root = {rank, 1}};
    catalogue.shards.push_back({{.name = "t", .shape = {2, 3}}, rank, 0, {}});
  }
  const uint64_t seed = ReadGroupFile(path()).value().digest_seed;
  const auto forged = WriteIndexedCatalogue({path(), seed, state_.next_attempt}, catalogue, parts);
  VARVE_ASSERT_OK(forged.status());
  Append(zero_, CommitOf({of_zero, of_zero}, *forged));
  EXPECT_FALSE(IsOpen(state_.next_attempt));

  ranks_.clear();
  {
    const auto store = Store::Open(path()).value();
    const std::string name = "step 20 of run main";
    EXPECT_THAT(store->OpenCheckpoint("main", 20).value()->List(),
                FailsWith(StatusCode::kCorruption, name));
    const auto report = store->Check({.read_data = true}).value();
    EXPECT_EQ(report.errors.size(), 2u);  // one a part
    EXPECT_THAT(report.errors, Each(HasSubstr(name)));
    EXPECT_THAT(report.errors, Each(HasSubstr("in member " + MemberName(of_zero))));
    EXPECT_EQ(report.damaged_steps, (std::vector<CheckpointId>{{"main", 20}}));
    ExpectHolds(*store, 10, 2);
    const CheckpointId id{"main", 20};
    VARVE_ASSERT_OK(store->Drop({&id, 1}).status());
  }
  ExpectGoesOn();
}

// The store of somebody else, which has the seed of the group. Everybody who can read a store can
// read its seed.
TEST_F(HostileGroupTest, AMemberThatIsALinkIsNotWrittenTo) {
  expect_damage_ = true;
  Start(1);
  SaveAll(10);
  const MemberId id = State().ranks.at(0);
  ranks_.clear();
  const fs::path outside = folder_.path() / "outside", member = MemberFolder(path(), id);
  {
    const uint64_t seed = ReadGroupFile(path()).value().digest_seed;
    const auto store = Store::Create(outside, {.digest_seed = seed}).value();
    VARVE_ASSERT_OK(SaveRank(store.get(), 0, 99).status());  // an attempt that the log has not
  }
  fs::rename(member, folder_.path() / "member");
  fs::create_directory_symlink(outside, member);
  const fs::path debris = MemberFolder(path(), 0xff);  // is no member
  fs::create_directory_symlink(outside, debris);
  const auto before = Everything(outside);

  const auto is_link = FailsWith(StatusCode::kCorruption, member.string() + " is a link");
  {
    const auto store = Store::Open(path()).value();
    EXPECT_THAT(store->Reclaim(), is_link);
    const CheckpointId step{"main", 10};
    EXPECT_THAT(store->Drop({&step, 1}), is_link);
  }
  const uint64_t epoch = Group::StartEpoch(path(), 1).value();
  EXPECT_THAT(Group::Join(path(), {.rank = 0, .epoch = epoch, .timeout = kShort}), is_link);
  EXPECT_EQ(Everything(outside), before);

  fs::remove(member);
  fs::rename(folder_.path() / "member", member);
  VARVE_ASSERT_OK(Store::Open(path()).value()->Reclaim().status());
  EXPECT_FALSE(fs::is_symlink(debris));  // the link alone has gone
  EXPECT_EQ(Everything(outside), before);
}

TEST_F(HostileGroupTest, AFolderThatIsALinkIsNotWrittenTo) {
  Start(1);
  SaveAll(10);
  ranks_.clear();
  for (const char* const name : {"log", "log/slots", "members", "catalogues"}) {
    SCOPED_TRACE(name);
    const fs::path folder = path() / name, outside = folder_.path() / "outside";
    fs::rename(folder, outside);
    fs::create_directory_symlink(outside, folder);
    fs::create_directory(outside / "0123");  // as debris is called
    for (const char* const other : {"tmp-1", "99", "0123/thesis"}) {
      std::ofstream(outside / other) << "years of work";
    }
    const auto before = Everything(outside);
    const auto is_link = FailsWith(StatusCode::kCorruption, folder.string() + " is a link");
    EXPECT_THAT(Store::Open(path()), is_link);
    EXPECT_THAT(Group::StartEpoch(path(), 1), is_link);
    EXPECT_THAT(Group::Join(path(), {.rank = 0, .epoch = epoch_, .timeout = kShort}), is_link);
    ExpectHolds(*Store::OpenForReading(path()).value(), 10, 1);
    EXPECT_EQ(Everything(outside), before);
    for (const char* const other : {"tmp-1", "99", "0123"}) fs::remove_all(outside / other);
    fs::remove(folder);
    fs::rename(outside, folder);
  }
  Start(1);
  SaveAll(20);
}

}  // namespace
}  // namespace varve::internal::testing
