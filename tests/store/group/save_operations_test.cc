// SPDX-License-Identifier: Apache-2.0
//
// What a save costs the log: operations on files in proportion to the ranks, a look at one file for
// a poll that finds nothing, and no byte of a snapshot for those who follow the log.
#include <algorithm>
#include <map>

#include "store/group/rank_save.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kSeed = 7;
constexpr auto kForEver = std::chrono::hours(1000);

constexpr char kStamp[] = "of its own";

struct Operations {
  uint64_t writes = 0;  // files made, replaced, removed
  uint64_t reads = 0;   // files that were there
  uint64_t bytes_read = 0;
  uint64_t looks = 0;  // at files, those in vain among them
};

struct Files {
  std::map<uint64_t, std::string> records;
  std::map<std::string, std::string, std::less<>> named;
  Operations done;
};

// A log in memory that counts.
class CountingLog : public RecordLog {
 public:
  explicit CountingLog(Files* files) : files_(files) {}

  Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) override {
    ++files_->done.writes;
    const bool is_new = files_->records.try_emplace(number, bytes).second;
    return is_new ? CreateOutcome::kOk : CreateOutcome::kExists;
  }
  Result<std::optional<std::string>> Read(uint64_t number, std::string* stamp) const override {
    const bool is_there = files_->records.contains(number);
    if (is_there && stamp != nullptr) *stamp = kStamp;
    return Count(files_->records, number);
  }
  Result<std::string> Stamp(uint64_t number) const override {
    ++files_->done.looks;
    return files_->records.contains(number) ? std::string(kStamp) : std::string();
  }
  Status Sync() const override { return Status::Ok(); }
  Result<std::vector<uint64_t>> List(uint64_t from) const override {
    std::vector<uint64_t> numbers;
    for (auto it = files_->records.lower_bound(from); it != files_->records.end(); ++it) {
      numbers.push_back(it->first);
    }
    return numbers;
  }
  Status Remove(uint64_t number) override {
    files_->done.writes += files_->records.erase(number);
    return Status::Ok();
  }
  Status Put(std::string_view name, std::string_view bytes, bool) override {
    ++files_->done.writes;
    files_->named[std::string(name)] = bytes;
    return Status::Ok();
  }
  Result<std::optional<std::string>> Get(std::string_view name, std::string*) const override {
    return Count(files_->named, name);
  }
  Result<std::vector<std::string>> Names(std::string_view folder) const override {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : files_->named) {
      if (name.starts_with(folder)) names.push_back(name.substr(folder.size() + 1));
    }
    return names;
  }
  Status Erase(std::string_view name) override {
    files_->done.writes += files_->named.erase(std::string(name));
    return Status::Ok();
  }
  Status RemoveDebris() override { return Status::Ok(); }

 private:
  template <typename Map, typename Key>
  std::optional<std::string> Count(const Map& files, const Key& key) const {
    ++files_->done.looks;
    const auto it = files.find(key);
    if (it == files.end()) return std::nullopt;
    ++files_->done.reads;
    files_->done.bytes_read += it->second.size();
    return it->second;
  }

  Files* const files_;
};

// The ranks of a job. One after the other does what it can, and none ever waits.
class Job {
 public:
  explicit Job(uint32_t num_ranks) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(&files_));
      ranks_[rank]->author = {1, rank, rank + 1};
    }
    Append(0, {}, EpochRecord{1, 1, num_ranks});
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      Append(rank, ranks_[rank]->author, OwnRecord{"a host with a name as long as some have"});
    }
    for (const auto& rank : ranks_) EXPECT_TRUE(rank->log.Refresh().ok());
  }

  void Save(uint64_t step) {
    std::vector<std::unique_ptr<RankSave>> saves;
    for (const auto& rank : ranks_) {
      saves.push_back(std::make_unique<RankSave>(&rank->log, rank->author,
                                                 RankPatience{.timeout = kForEver}, &rank->taken,
                                                 CheckpointId{"main", step}));
      const auto attempt = saves.back()->Begin({});
      VARVE_ASSERT_OK(attempt.status());
      attempt_ = *attempt;
      VARVE_ASSERT_OK(saves.back()->Prepare({.member = rank->author.member}));
    }
    VARVE_ASSERT_OK(saves[0]->AwaitAllPrepared().status());
    VARVE_ASSERT_OK(
        saves[0]->Commit({.attempt = attempt_, .catalogue = {}, .metrics = {}, .tags = {}}));
    for (const auto& save : saves) VARVE_ASSERT_OK(save->AwaitOutcome());
  }

  Files* files() { return &files_; }
  GroupLog* log(uint32_t rank) { return &ranks_[rank]->log; }

 private:
  struct Rank {
    explicit Rank(Files* files)
        : log(std::make_unique<CountingLog>(files), kSeed,
              [](std::chrono::milliseconds) { FAIL() << "waits"; }) {}
    Author author;
    GroupLog log;
    AttemptsTaken taken;
  };

  void Append(uint32_t rank, const Author& author, const RecordBody& body) {
    bool done = false;
    VARVE_ASSERT_OK(
        ranks_[rank]->log.Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
          if (std::exchange(done, true)) return std::optional<GroupRecord>();
          return std::optional(GroupRecord{author, body});
        }));
  }

  Files files_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  AttemptId attempt_ = 0;
};

TEST(SaveOperationsTest, GrowAsTheRanksDo) {
  for (const uint32_t num_ranks : {16, 64, 256}) {
    Job job(num_ranks);
    ASSERT_NO_FATAL_FAILURE(job.Save(1));
    job.files()->done = {};
    ASSERT_NO_FATAL_FAILURE(job.Save(2));
    const Operations& done = job.files()->done;
    std::printf("%u ranks: %llu writes, %llu reads of %llu bytes, %llu looks\n", num_ranks,
                static_cast<unsigned long long>(done.writes),
                static_cast<unsigned long long>(done.reads),
                static_cast<unsigned long long>(done.bytes_read),
                static_cast<unsigned long long>(done.looks));
    EXPECT_LE(done.writes + done.reads, 4 * num_ranks);
    EXPECT_LE(done.bytes_read, 1024 * num_ranks);
    EXPECT_LE(done.looks, 8 * num_ranks);
  }
}

// With the snapshots that fall into them.
TEST(SaveOperationsTest, ManySavesStayBounded) {
  constexpr uint32_t kRanks = 64;
  constexpr uint64_t kSaves = 2 * GroupLog::kSnapshotInterval;  // of two records each
  Job job(kRanks);
  job.files()->done = {};
  for (uint64_t step = 1; step <= kSaves; ++step) ASSERT_NO_FATAL_FAILURE(job.Save(step));
  EXPECT_LE(job.files()->done.bytes_read, uint64_t{1024} * kRanks * kSaves);
  EXPECT_LE(job.files()->done.writes, (kRanks + 5) * kSaves);
  EXPECT_LE(job.files()->records.size(), 2 * GroupLog::kSnapshotInterval + 2);
  EXPECT_LE(job.files()->named.size(), kRanks + 3);
}

// All ranks wait for a COMMIT, and a snapshot takes long in a large group.
TEST(SaveOperationsTest, NoCommitWaitsForASnapshot) {
  Job job(5);  // then a snapshot is due after a COMMIT, and not after a BEGIN
  const auto num_snapshots = [&] {
    return std::ranges::count_if(
        job.files()->named, [](const auto& file) { return file.first.starts_with("states/"); });
  };
  uint64_t step = 1;
  while (!job.log(0)->IsSnapshotDue()) {
    ASSERT_EQ(num_snapshots(), 0);
    ASSERT_NO_FATAL_FAILURE(job.Save(step++));
  }
  EXPECT_EQ(num_snapshots(), 0);
  VARVE_EXPECT_OK(job.log(0)->TakeSnapshotIfDue());
  EXPECT_EQ(num_snapshots(), 1);
  EXPECT_FALSE(job.log(0)->IsSnapshotDue());
  // Without that, the next change takes it.
  while (!job.log(0)->IsSnapshotDue()) ASSERT_NO_FATAL_FAILURE(job.Save(step++));
  EXPECT_EQ(num_snapshots(), 1);
  ASSERT_NO_FATAL_FAILURE(job.Save(step));
  EXPECT_EQ(num_snapshots(), 2);
}

// In a large group, ranks pause before the first look, and do not look all at once.
TEST(SaveOperationsTest, ManyWhoWaitLookOneAfterTheOther) {
  constexpr uint32_t kRanks = 256;
  constexpr uint64_t kRanksPerMs = 16;
  Files files;
  std::map<std::chrono::milliseconds, uint64_t> ranks_that_look;  // by the time since they began
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    GroupLog* waits = nullptr;
    std::chrono::milliseconds waited{0};
    GroupLog log(std::make_unique<CountingLog>(&files), kSeed, [&](std::chrono::milliseconds time) {
      ++ranks_that_look[waited += time];
      if (waited > std::chrono::milliseconds(500)) waits->Hurry(std::chrono::milliseconds(0));
    });
    waits = &log;
    if (rank == 1) {
      bool done = false;
      VARVE_ASSERT_OK(log.Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
        if (std::exchange(done, true)) return std::optional<GroupRecord>();
        return std::optional(GroupRecord{{}, EpochRecord{1, 1, kRanks}});
      }));
    }
    AttemptsTaken taken;
    const Author author{1, rank, rank + 1};
    VARVE_ASSERT_OK(log.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
      if (state.IsCurrent(author)) return std::optional<GroupRecord>();
      return std::optional(GroupRecord{author, OwnRecord{"host"}});
    }));
    RankSave save(&log, author, RankPatience{.timeout = kForEver}, &taken, {"main", 1});
    EXPECT_THAT(save.Begin({}), FailsWith(StatusCode::kAborted, "did not begin"));
  }
  for (const auto& [time, ranks] : ranks_that_look) EXPECT_LE(ranks, kRanksPerMs) << time.count();
}

TEST(SaveOperationsTest, APollOfNothingNewIsOneLook) {
  Files files;
  constexpr uint64_t kPolls = 1000;
  uint64_t polls = 0;
  GroupLog* waits = nullptr;
  GroupLog log(std::make_unique<CountingLog>(&files), kSeed, [&](std::chrono::milliseconds) {
    if (++polls == kPolls) waits->Hurry(std::chrono::milliseconds(0));
  });
  waits = &log;
  bool done = false;
  VARVE_ASSERT_OK(log.Propose([&](const GroupState&) -> Result<std::optional<GroupRecord>> {
    if (std::exchange(done, true)) return std::optional<GroupRecord>();
    return std::optional(GroupRecord{{}, EpochRecord{1, 1, 1}});
  }));
  files.done = {};
  const std::function<std::optional<int>(const GroupState&)> never = [](const GroupState&) {
    return std::optional<int>();
  };
  VARVE_ASSERT_OK(log.Await<int>(kForEver, never).status());
  EXPECT_EQ(polls, kPolls);
  EXPECT_LE(files.done.looks, kPolls + kPolls / 32);  // now and then it looks twice
  EXPECT_EQ(files.done.reads, 0u);
}

}  // namespace
}  // namespace varve::internal::testing
