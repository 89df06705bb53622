// SPDX-License-Identifier: Apache-2.0
//
// Tests the log: which process gets a number when several want it, what happens to those that do
// not know whether they got it, and that snapshots keep it short without losing anything.
#include "store/group/group_log.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "store/format/group_file.h"
#include "store/group/posix_record_log.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::StartsWith;

constexpr uint64_t kLogSeed = 7;

GroupLog::Proposal Epoch(uint64_t nonce, bool* done) {
  return [nonce, done](const GroupState& state) -> Result<std::optional<GroupRecord>> {
    if (*done) return std::optional<GroupRecord>();
    *done = true;
    return std::optional(GroupRecord{{}, EpochRecord{state.epoch + 1, nonce, 2}});
  };
}

// Appends `n` epochs, one after the other.
void AppendEpochs(GroupLog* log, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    bool done = false;
    VARVE_ASSERT_OK(log->Propose(Epoch(i, &done)));
  }
}

uint64_t EpochOf(const GroupLog& log) {
  return log.With([](const GroupState& state) { return state.epoch; });
}

class GroupLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<RecordLog> MakeRecordLog() { return MakePosixRecordLog(folder_.path()); }
  GroupLog MakeLog() { return GroupLog(MakeRecordLog(), kLogSeed); }
  size_t NumFiles(const std::string& in = "") const {
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path() / in)) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }
  fs::path File(uint64_t number) const {
    std::string name = std::to_string(number);
    return folder_.path() / (std::string(20 - name.size(), '0') + name);
  }
  TempFolder folder_;
};

TEST_F(GroupLogTest, CreateReadListRemove) {
  const auto log = MakeRecordLog();
  EXPECT_EQ(log->Create(1, "one").value(), CreateOutcome::kOk);
  EXPECT_EQ(log->Create(2, "two").value(), CreateOutcome::kOk);
  EXPECT_EQ(log->Create(1, "another").value(), CreateOutcome::kExists);
  EXPECT_EQ(log->Read(1).value(), "one");
  EXPECT_EQ(log->Read(3).value(), std::nullopt);
  EXPECT_THAT(log->List(1).value(), ElementsAre(1, 2));
  EXPECT_THAT(log->List(2).value(), ElementsAre(2));
  VARVE_EXPECT_OK(log->Remove(1));
  VARVE_EXPECT_OK(log->Remove(1));
  EXPECT_THAT(log->List(1).value(), ElementsAre(2));
  EXPECT_EQ(NumFiles(), 1u);  // no temporary file stays
}

TEST_F(GroupLogTest, DebrisOfACreateIsNoRecordAndGoes) {
  const auto log = MakeRecordLog();
  std::ofstream(folder_.path() / "tmp-0123") << "half a rec";
  EXPECT_THAT(log->List(1).value(), IsEmpty());
  VARVE_EXPECT_OK(log->RemoveDebris());
  EXPECT_EQ(NumFiles(), 0u);
}

// Appends `n` members with ids from `first` on. A member that the state does not show counts as
// failed.
int AppendMembers(GroupLog* log, MemberId first, uint64_t n) {
  int failed = 0;
  for (MemberId id = first; id < first + n; ++id) {
    const Status status =
        log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
          if (state.members.contains(id)) return std::optional<GroupRecord>();
          return std::optional(GroupRecord{{1, 0, id}, OwnRecord{"host"}});
        });
    failed += status.ok() ? 0 : 1;
  }
  return failed;
}

// Processes that race for each number: every number has one winner, and nobody loses a record.
TEST_F(GroupLogTest, ProcessesRaceForNumbers) {
  constexpr uint64_t kProcesses = 4;
  constexpr uint64_t kEach = 100;
  GroupLog log = MakeLog();
  AppendEpochs(&log, 1);
  std::vector<pid_t> children;
  for (uint64_t i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      GroupLog own = MakeLog();
      ::_exit(AppendMembers(&own, 1 + i * kEach, kEach));
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  VARVE_ASSERT_OK(log.Refresh());
  log.With([](const GroupState& state) {
    EXPECT_EQ(state.members.size(), kProcesses * kEach);
    // An epoch, the members, and snapshots: no record was made twice.
    EXPECT_LE(state.next, 2 + kProcesses * kEach + 2);
  });
}

TEST_F(GroupLogTest, GarbageIsNamed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  std::fstream(File(2), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('x');
  GroupLog other = MakeLog();
  EXPECT_THAT(other.Refresh(), FailsWith(StatusCode::kCorruption, "record 2 of the log"));
}

TEST_F(GroupLogTest, ATornRecordIsNamed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  fs::resize_file(File(3), 30);
  GroupLog other = MakeLog();
  EXPECT_THAT(other.Refresh(), FailsWith(StatusCode::kCorruption, "checksum does not match"));
}

TEST_F(GroupLogTest, ARecordInThePlaceOfAnotherIsNamed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  fs::remove(File(3));
  fs::copy_file(File(2), File(3));
  GroupLog other = MakeLog();
  EXPECT_THAT(other.Refresh(), FailsWith(StatusCode::kCorruption, "record 3 of the log"));
}

TEST_F(GroupLogTest, AMissingRecordIsNoticed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  fs::remove(File(2));
  GroupLog other = MakeLog();
  EXPECT_THAT(other.Refresh(), FailsWith(StatusCode::kCorruption, "the log has a gap: record "));
}

// A process that appends it would make the log unreadable for everybody.
TEST_F(GroupLogTest, ARecordThatCannotBeReadIsNotWritten) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 1);
  BeginRecord nameless;
  nameless.attempt = 1;
  const auto propose = [&](const GroupState&) -> Result<std::optional<GroupRecord>> {
    return std::optional(GroupRecord{{}, nameless});
  };
  EXPECT_THAT(log.Propose(propose), FailsWith(StatusCode::kInvalidArgument, "is no name"));
  GroupLog other = MakeLog();
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), 1u);
}

// The answer of a Create gets lost, whether the record was made or not.
class LossyLog : public RecordLog {
 public:
  explicit LossyLog(std::unique_ptr<RecordLog> log) : log_(std::move(log)) {}
  Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) override {
    if (++calls_ % 2 == 0) return CreateOutcome::kUnknown;
    VARVE_RETURN_IF_ERROR(log_->Create(number, bytes).status());
    return CreateOutcome::kUnknown;
  }
  Result<std::optional<std::string>> Read(uint64_t n, std::string* stamp) const override {
    return log_->Read(n, stamp);
  }
  Result<std::vector<uint64_t>> List(uint64_t from) const override { return log_->List(from); }
  Result<std::string> Stamp(uint64_t number) const override { return log_->Stamp(number); }
  Status Sync() const override { return log_->Sync(); }
  Status Remove(uint64_t number) override { return log_->Remove(number); }
  Status Put(std::string_view name, std::string_view bytes, bool durable) override {
    return log_->Put(name, bytes, durable);
  }
  Result<std::optional<std::string>> Get(std::string_view name, std::string* stamp) const override {
    return log_->Get(name, stamp);
  }
  Result<std::vector<std::string>> Names(std::string_view folder) const override {
    return log_->Names(folder);
  }
  Status Erase(std::string_view name) override { return log_->Erase(name); }
  Status RemoveDebris() override { return log_->RemoveDebris(); }

 private:
  const std::unique_ptr<RecordLog> log_;
  int calls_ = 0;
};

// Lists what was there before the newest record, as a network may.
class LateListing : public LossyLog {
 public:
  using LossyLog::LossyLog;
  Result<std::vector<uint64_t>> List(uint64_t from) const override {
    Result<std::vector<uint64_t>> numbers = LossyLog::List(from);
    if (numbers.ok() && !numbers->empty()) numbers->pop_back();
    return numbers;
  }
};

TEST_F(GroupLogTest, ARecordThatIsListedLateIsNotLost) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  GroupLog late(std::make_unique<LateListing>(MakeRecordLog()), kLogSeed);
  VARVE_ASSERT_OK(late.Refresh());
  EXPECT_EQ(EpochOf(late), 3u);
}

class SyncCountingLog : public LossyLog {
 public:
  SyncCountingLog(std::unique_ptr<RecordLog> log, int* num_syncs)
      : LossyLog(std::move(log)), num_syncs_(num_syncs) {}
  Status Sync() const override {
    ++*num_syncs_;
    return LossyLog::Sync();
  }

 private:
  int* const num_syncs_;
};

// Who is the first to act on a record makes it durable. The note says which record is durable
// already.
TEST_F(GroupLogTest, ARecordThatIsNotNotedIsSyncedBeforeItIsRead) {
  const auto syncs_of_a_reader = [&] {
    int num_syncs = 0;
    GroupLog reader(std::make_unique<SyncCountingLog>(MakeRecordLog(), &num_syncs), kLogSeed);
    VARVE_EXPECT_OK(reader.Refresh());
    return num_syncs;
  };
  EXPECT_EQ(syncs_of_a_reader(), 0);  // of an empty log
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  EXPECT_EQ(syncs_of_a_reader(), 0);
  const std::string note = MakeRecordLog()->Get("newest").value().value();
  AppendEpochs(&log, 4);
  VARVE_ASSERT_OK(MakeRecordLog()->Put("newest", note, /*durable=*/false));  // it was not written
  EXPECT_EQ(syncs_of_a_reader(), 1);
  VARVE_ASSERT_OK(MakeRecordLog()->Erase("newest"));
  EXPECT_EQ(syncs_of_a_reader(), 1);
}

TEST_F(GroupLogTest, UnknownOutcomesAreLookedUp) {
  GroupLog log(std::make_unique<LossyLog>(MakeRecordLog()), kLogSeed);
  for (uint64_t nonce = 1; nonce <= 10; ++nonce) {
    VARVE_ASSERT_OK(log.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
      if (state.epoch_nonce == nonce) return std::optional<GroupRecord>();
      return std::optional(GroupRecord{{}, EpochRecord{state.epoch + 1, nonce, 1}});
    }));
  }
  EXPECT_EQ(EpochOf(log), 10u);  // each once
}

TEST_F(GroupLogTest, SnapshotsKeepItShort) {
  GroupLog log = MakeLog();
  constexpr uint64_t kEpochs = 5 * GroupLog::kSnapshotInterval;
  AppendEpochs(&log, kEpochs);
  EXPECT_LE(NumFiles(), 2 * GroupLog::kSnapshotInterval + 2);
  EXPECT_EQ(NumFiles("states"), 2u);
  GroupLog other = MakeLog();
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), kEpochs);
  EXPECT_EQ(log.With([](const GroupState& s) { return s; }),
            other.With([](const GroupState& s) { return s; }));
}

// The newest one that was taken, which is a file.
TEST_F(GroupLogTest, ADamagedSnapshotIsNamed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, GroupLog::kSnapshotInterval + 2);
  const fs::path state = fs::directory_iterator(folder_.path() / "states")->path();
  const std::string name = state.filename();
  const auto expect_damage = [&](const std::string& what) {
    GroupLog other = MakeLog();
    EXPECT_THAT(other.Refresh(), FailsWith(StatusCode::kCorruption, what));
  };
  fs::copy_file(state, folder_.path() / "states" / "copy");
  std::fstream(state, std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('x');
  expect_damage("states/" + name + " of the log: its digest");
  fs::resize_file(state, 0);
  expect_damage("its digest");
  fs::remove(state);
  expect_damage("states/" + name);
  VARVE_ASSERT_OK(log.Refresh());  // who follows the log needs none
  fs::rename(folder_.path() / "states" / "copy", state);
  GroupLog other = MakeLog();
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), GroupLog::kSnapshotInterval + 2);
}

// Records have no gaps. So without a note nothing would show that the last one is gone.
TEST_F(GroupLogTest, TheLossOfTheNewestRecordIsNamed) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, GroupLog::kSnapshotInterval + 7);
  const uint64_t newest = log.With([](const GroupState& state) { return state.next; }) - 1;
  const fs::path note = folder_.path() / "newest";
  const auto refreshed = [&] { return MakeLog().Refresh(); };
  VARVE_ASSERT_OK(refreshed());
  const auto records = MakeRecordLog();
  const std::string bytes = records->Read(newest).value().value();
  VARVE_ASSERT_OK(records->Remove(newest));
  EXPECT_THAT(refreshed(), FailsWith(StatusCode::kCorruption, "record " + std::to_string(newest) +
                                                                  " of the log is missing"));
  fs::copy_file(note, folder_.path() / "kept");
  fs::remove(note);  // what the message says to do
  VARVE_EXPECT_OK(refreshed());
  fs::rename(folder_.path() / "kept", note);
  ASSERT_EQ(records->Create(newest, bytes).value(), CreateOutcome::kOk);
  VARVE_EXPECT_OK(refreshed());
  fs::resize_file(note, 7);  // as a crash of the host may leave it
  VARVE_EXPECT_OK(refreshed());
}

TEST_F(GroupLogTest, AllRecordsAreNoticedWhenTheyAreGone) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  const auto records = MakeRecordLog();
  for (const uint64_t number : records->List(1).value()) VARVE_ASSERT_OK(records->Remove(number));
  EXPECT_THAT(MakeLog().Refresh(),
              FailsWith(StatusCode::kCorruption, "records 1 to 3 of the log are missing"));
}

// The format of the note. A group of an earlier version has none.
TEST_F(GroupLogTest, TheNewestRecordIsNoted) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 2);
  EXPECT_EQ(MakeRecordLog()->Get("newest").value(),
            "00000000000000000002 847e0b7988347a7c14502938d13ceab5\n");
  bool done = false;
  VARVE_ASSERT_OK(log.Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
    if (std::exchange(done, true)) return std::optional<GroupRecord>();
    return std::optional(GroupRecord{{}, BeginRecord{.attempt = 1, .id = {"main", 1}}});
  }));
  EXPECT_EQ(MakeRecordLog()->List(1).value().back(), 3u);
  EXPECT_THAT(MakeRecordLog()->Get("newest").value(),
              Optional(StartsWith("00000000000000000002 ")));
}

// A process leaves this if it is killed between a snapshot's file and its record.
TEST_F(GroupLogTest, FilesOfSnapshotsThatWereNotTakenGo) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  VARVE_ASSERT_OK(MakeRecordLog()->Put("states/00000000000000000004.0123", "lost", true));
  std::ofstream(folder_.path() / "states" / "tmp-0123") << "half";
  AppendEpochs(&log, 4 * GroupLog::kSnapshotInterval);
  VARVE_ASSERT_OK(MakeRecordLog()->RemoveDebris());
  EXPECT_EQ(NumFiles("states"), 2u);
  GroupLog other = MakeLog();
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), EpochOf(log));
}

TEST_F(GroupLogTest, NamedFilesAreReplacedWhole) {
  const auto log = MakeRecordLog();
  EXPECT_THAT(log->Names("slots").value(), IsEmpty());
  EXPECT_EQ(log->Get("slots/a").value(), std::nullopt);
  VARVE_EXPECT_OK(log->Put("slots/a", "one", false));
  VARVE_EXPECT_OK(log->Put("slots/a", "", true));
  EXPECT_EQ(log->Get("slots/a").value(), "");
  VARVE_EXPECT_OK(log->Put("slots/a", "three", false));
  EXPECT_EQ(log->Get("slots/a").value(), "three");
  EXPECT_THAT(log->Names("slots").value(), ElementsAre("a"));
  VARVE_EXPECT_OK(log->Erase("slots/a"));
  VARVE_EXPECT_OK(log->Erase("slots/a"));
  EXPECT_THAT(log->Names("slots").value(), IsEmpty());
  EXPECT_THAT(log->List(1).value(), IsEmpty());  // folders are no records
}

// A reclaim removes temporary files beside ranks that save.
TEST_F(GroupLogTest, NamedFilesAreReplacedWhileDebrisIsRemoved) {
  constexpr int kPuts = 3000;
  std::atomic<bool> done{false};
  std::thread sweeper([&] {
    const auto log = MakeRecordLog();
    while (!done) VARVE_EXPECT_OK(log->RemoveDebris());
  });
  const auto log = MakeRecordLog();
  int failed = 0;
  for (int i = 0; i < kPuts; ++i) {
    failed += log->Put("slots/a", std::to_string(i), /*durable=*/false).ok() ? 0 : 1;
  }
  done = true;
  sweeper.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(log->Get("slots/a").value(), std::to_string(kPuts - 1));
}

TEST_F(GroupLogTest, OneWhoSleptThroughASnapshotReadsOn) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  GroupLog sleeper = MakeLog();
  VARVE_ASSERT_OK(sleeper.Refresh());
  AppendEpochs(&log, 4 * GroupLog::kSnapshotInterval);
  VARVE_ASSERT_OK(sleeper.Refresh());
  EXPECT_EQ(EpochOf(sleeper), 3 + 4 * GroupLog::kSnapshotInterval);
}

// The number that it takes for the next one has become free again.
TEST_F(GroupLogTest, OneWhoSleptAppendsNothingToThePast) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  GroupLog sleeper = MakeLog();
  VARVE_ASSERT_OK(sleeper.Refresh());
  AppendEpochs(&log, 4 * GroupLog::kSnapshotInterval);
  const uint64_t epochs = EpochOf(log);
  // A process does this if it is stopped between its look at the log and its link.
  const GroupRecord late{{}, EpochRecord{4, 99, 9}};
  EXPECT_EQ(MakeRecordLog()->Create(4, EncodeGroupRecord(kLogSeed, 4, late)).value(),
            CreateOutcome::kOk);
  VARVE_ASSERT_OK(sleeper.Refresh());
  EXPECT_EQ(EpochOf(sleeper), epochs);
  GroupLog other = MakeLog();
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), epochs);
  bool done = false;
  VARVE_ASSERT_OK(sleeper.Propose(Epoch(5, &done)));
  VARVE_ASSERT_OK(other.Refresh());
  EXPECT_EQ(EpochOf(other), epochs + 1);
}

// The numbers before it have, too, and others who slept have taken them.
TEST_F(GroupLogTest, ManyWhoSleptAppendNothingToThePast) {
  GroupLog log = MakeLog();
  AppendEpochs(&log, 3);
  GroupLog sleeper = MakeLog(), appender = MakeLog();
  VARVE_ASSERT_OK(sleeper.Refresh());
  VARVE_ASSERT_OK(appender.Refresh());
  AppendEpochs(&log, 4 * GroupLog::kSnapshotInterval);
  const uint64_t epochs = EpochOf(log);
  for (const uint64_t number : {2, 3, 4}) {
    const GroupRecord late{{}, EpochRecord{number, 99, 9}};
    EXPECT_EQ(MakeRecordLog()->Create(number, EncodeGroupRecord(kLogSeed, number, late)).value(),
              CreateOutcome::kOk);
  }
  VARVE_ASSERT_OK(sleeper.Refresh());
  EXPECT_EQ(EpochOf(sleeper), epochs);
  bool done = false;
  VARVE_ASSERT_OK(appender.Propose(Epoch(5, &done)));
  VARVE_ASSERT_OK(sleeper.Refresh());
  EXPECT_EQ(EpochOf(sleeper), epochs + 1);
}

TEST(GroupLogWaitTest, CanBeHurried) {
  const TempFolder folder;
  const GroupFile file = CreateOrReadGroup(folder.path()).value();
  GroupLog log(MakePosixRecordLog(LogFolder(folder.path())), file.digest_seed);
  std::atomic<int> looks = 0;
  const std::function<std::optional<int>(const GroupState&)> look = [&](const GroupState&) {
    ++looks;
    return std::optional<int>();
  };
  std::jthread hurries([&] {
    while (looks == 0) std::this_thread::yield();
    EXPECT_FALSE(log.is_hurried());
    log.Hurry(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(log.Await<int>(std::chrono::hours(10), look).value(), std::nullopt);
  EXPECT_TRUE(log.is_hurried());
}

TEST(GroupFileTest, IsMadeOnce) {
  const TempFolder folder;
  const fs::path root = folder.path() / "a" / "root";
  EXPECT_FALSE(IsGroupRoot(root));
  std::vector<GroupFile> files(4);
  {
    std::vector<std::jthread> threads;
    for (GroupFile& file : files) {
      threads.emplace_back([&] { file = CreateOrReadGroup(root).value(); });
    }
  }
  EXPECT_TRUE(IsGroupRoot(root));
  for (const GroupFile& file : files) EXPECT_EQ(file.group_id, files[0].group_id);
}

TEST(GroupFileTest, DamageAndNewerVersionsAreToldApart) {
  const TempFolder folder;
  VARVE_ASSERT_OK(CreateOrReadGroup(folder.path()).status());
  const fs::path path = folder.path() / "GROUP";
  std::string good(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(good.data(), static_cast<int64_t>(good.size()));
  const auto read_with = [&](size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    std::ofstream(path, std::ios::binary) << bytes;
    return ReadGroupFile(folder.path());
  };
  EXPECT_THAT(read_with(0, 'x'), FailsWith(StatusCode::kCorruption, "bad magic"));
  EXPECT_THAT(read_with(8, kGroupVersion + 1),
              FailsWith(StatusCode::kCorruption,
                        "its checksum is that of version " + std::to_string(kGroupVersion)));
  std::ofstream(path, std::ios::binary | std::ios::app) << "a field that is new";
  EXPECT_THAT(ReadGroupFile(folder.path()),
              FailsWith(StatusCode::kFailedPrecondition, "use a newer varve"));
  EXPECT_THAT(read_with(33, 'x'), FailsWith(StatusCode::kCorruption, "checksum"));
  fs::resize_file(path, 20);
  EXPECT_THAT(ReadGroupFile(folder.path()), FailsWith(StatusCode::kCorruption, "20 bytes"));
  fs::remove(path);
  EXPECT_THAT(ReadGroupFile(folder.path()), FailsWith(StatusCode::kNotFound, "no group in"));
}

TEST(GroupFileTest, AFolderWithOtherThingsIsNotMadeARoot) {
  const TempFolder folder;
  std::ofstream(folder.path() / "thesis.txt") << "precious";
  EXPECT_THAT(CreateOrReadGroup(folder.path()),
              FailsWith(StatusCode::kFailedPrecondition, "thesis.txt"));
}

}  // namespace
}  // namespace varve::internal::testing
