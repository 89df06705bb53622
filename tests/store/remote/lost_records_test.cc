// SPDX-License-Identifier: Apache-2.0
//
// Records of a place are lost. No answer may pass for that of an empty place or of an earlier one.
// A push that was killed, and others that push meanwhile, are not taken for that.
#include <algorithm>
#include <fstream>

#include "store/remote/pusher.h"
#include "tests/store/remote/remote_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Objects whose first list of records does not find the newest state yet, as that of a folder.
class LateList : public FlakyObjects {
 public:
  using FlakyObjects::FlakyObjects;

 protected:
  Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                 const std::string& after,
                                                 size_t limit) const override {
    auto names = FlakyObjects::DoListRecords(prefix, after, limit);
    if (names.ok() && num_lists_++ == 0) names->pop_back();
    return names;
  }

 private:
  mutable int num_lists_ = 0;
};

class LostRecordsTest : public RemoteTest {
 protected:
  // The records of states, or the notes of them.
  std::vector<fs::path> Records(const std::string& start) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(place() / "records")) {
      if (entry.path().filename().string().starts_with(start)) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  void Remove(const std::string& start) const {
    for (const fs::path& path : Records(start)) fs::remove(path);
  }
  void ExpectAllFail(const std::string& missing) {
    const auto blobs = Blobs();
    const auto fails = FailsWith(StatusCode::kCorruption, missing);
    EXPECT_THAT(ListSnapshots(url()), fails);
    EXPECT_THAT(OpenRemote(url()), fails);
    EXPECT_THAT(Pull(url(), copy("lost")), fails);
    EXPECT_THAT(Push(path(), url()), fails);
    EXPECT_THAT(Push(path(), url(), {.dry_run = true}), fails);
    EXPECT_THAT(ReclaimRemote(url()), fails);
    EXPECT_THAT(ReclaimRemote(url(), {.keep_last = 1}), fails);
    EXPECT_EQ(Blobs(), blobs);
    EXPECT_FALSE(fs::exists(copy("lost")));
  }
};

TEST_F(LostRecordsTest, TheNewestStateIsNamed) {
  for (uint64_t step = 1; step <= 3; ++step) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    MustPush();
  }
  const fs::path newest = Records("state-").back();
  fs::rename(newest, copy("kept"));
  const std::string name = newest.filename();
  ExpectAllFail(url() + ": record " + name + " is missing");
  fs::rename(copy("kept"), newest);
  MustPush();
  ExpectSnapshotHolds(3, {1, 2, 3});
}

TEST_F(LostRecordsTest, APlaceWithoutRecordsIsNotEmpty) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  fs::copy(place() / "records", copy("kept"));
  const std::string newest = Records("state-").back().filename();
  Remove("state-");
  ExpectAllFail("record " + newest + " is missing");
  Remove("seen-");
  ExpectAllFail("all records state-");
  fs::remove_all(place() / "records");
  ExpectAllFail("all records state-");
  fs::copy(copy("kept"), place() / "records");
  ExpectSnapshotHolds(1, {1});
}

// They are not varve's.
TEST_F(LostRecordsTest, OtherBlobsAreNoEvidence) {
  fs::create_directories(place() / "blobs");
  std::ofstream(place() / "blobs" / "mine.txt") << "mine";
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
}

// Each push of these has files that are small enough for one blob.
TEST_F(LostRecordsTest, TheFirstPushHasARecordBeforeItHasABlob) {
  const std::vector<TestTensor> small = {NormalTensor("w", {100}, 1)};
  VARVE_ASSERT_OK(Save(1, small).status());
  int puts = 0;
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    if (call != "put") return Fault::kNone;
    EXPECT_THAT(Records("state-"), Not(IsEmpty()));
    return puts++ == 0 ? Fault::kFailed : Fault::kNone;
  };
  EXPECT_THAT(Push(path(), url()), FailsWith(StatusCode::kIOError, "refused"));
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  EXPECT_TRUE(MustPush().is_new);
  EXPECT_EQ(puts, 2);
  EXPECT_THAT(Newest().open, IsEmpty());
}

// The push was killed between the record and the note, or the note was refused.
TEST_F(LostRecordsTest, AMissingNoteSaysLessAndNothingWrong) {
  const auto push = [&](uint64_t step) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    EXPECT_EQ(MustPush().snapshot, step);
  };
  FlakyObjects::decide() = [&](std::string_view call, const std::string& name) {
    const bool is_note = call == "create" && ParseNoteName(name).has_value();
    return is_note ? Fault::kFailed : Fault::kNone;
  };
  push(1);
  push(2);
  FlakyObjects::decide() = nullptr;
  EXPECT_THAT(Records("seen-"), IsEmpty());
  ExpectSnapshotHolds(2, {1, 2});
  push(3);
  ASSERT_THAT(Records("seen-"), Not(IsEmpty()));
  EXPECT_EQ(ParseNoteName(Records("seen-").back().filename().string()), Newest().number);
  ExpectSnapshotHolds(3, {1, 2, 3});
  // A note that comes late, when later ones are there.
  Remove("seen-");
  push(4);
  VARVE_ASSERT_OK(OpenPlace()->CreateRecord(NoteName(Newest().number - 1), "").status());
  ExpectSnapshotHolds(4, {1, 2, 3, 4});
}

TEST_F(LostRecordsTest, AStateOfUnknownOutcomeIsNoted) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  FlakyObjects::decide() = [&](std::string_view call, const std::string& name) {
    const bool is_state = call == "create" && ParseStateName(name).has_value();
    return is_state ? Fault::kDone : Fault::kNone;
  };
  MustPush();
  FlakyObjects::decide() = nullptr;
  EXPECT_EQ(ParseNoteName(Records("seen-").back().filename().string()), Newest().number);
}

TEST_F(LostRecordsTest, AListThatMissesTheNewestIsTakenAgain) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  MustPush();
  LateList objects(url(), OpenPlace());
  const auto state = RemoteLog(&objects).ReadNewest();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->number, Newest().number);
}

TEST_F(LostRecordsTest, WhoPushesAgainGoesOnWithWhatIsKnown) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  Pusher pusher(OpenPlace());
  VARVE_ASSERT_OK(pusher.Push(path(), {}).status());
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  VARVE_ASSERT_OK(pusher.Push(path(), {}).status());
  fs::remove(Records("state-").back());
  VARVE_ASSERT_OK(Save(3, State(3)).status());
  VARVE_ASSERT_OK(pusher.Push(path(), {}).status());
  std::vector<uint64_t> numbers;
  for (const RemoteSnapshot& each : Newest().snapshots) numbers.push_back(each.number);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
  ExpectSnapshotHolds(3, {1, 2, 3});
}

TEST_F(LostRecordsTest, NotesAreRemovedWhenThereAreLaterOnes) {
  const auto objects = OpenPlace();
  RemoteLog log(objects.get());
  for (uint64_t i = 1; i <= 140; ++i) {
    VARVE_ASSERT_OK(log.Append([i](RemoteState* next) -> Result<bool> {
                         if (next->next_snapshot == i + 1) return false;
                         next->next_snapshot = i + 1;
                         return true;
                       })
                        .status());
    EXPECT_LE(Records("seen-").size(), 65u);
    EXPECT_EQ(Records("seen-").back().filename(), NoteName(i));
  }
  fs::remove(Records("state-").back());
  EXPECT_THAT(log.ReadNewest(), FailsWith(StatusCode::kCorruption, StateName(140)));
  fs::remove_all(place());
}

}  // namespace
}  // namespace varve::internal::testing
