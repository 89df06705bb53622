// SPDX-License-Identifier: Apache-2.0
//
// The log of a group under many ranks. Ranks are threads, each with a log of its own. They say in
// it that they have saved, but store nothing. The latency of a save starts when all ranks are ready
// to say PREPARED and none has. It ends when the last rank has read the outcome. The floor is
// measured as well: as many threads start at once and make only the file calls of this, without
// waits, a state, or a decoded byte.
#include <barrier>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "bench/measure.h"
#include "bench/scale/axes.h"
#include "bench/workplace.h"
#include "store/group/posix_record_log.h"
#include "store/group/rank_save.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 7;
constexpr uint64_t kEpoch = 1;
constexpr auto kForEver = std::chrono::hours(1);
constexpr int kPolls = 1000;
constexpr int kFloors = 20;

std::unique_ptr<GroupLog> OpenLog(const fs::path& root) {
  auto log = std::make_unique<GroupLog>(MakePosixRecordLog(root), kSeed);
  Require(log->Refresh());
  return log;
}

Author AuthorOf(uint32_t rank) { return {kEpoch, rank, MemberId{rank} + 1}; }

// Starts the job and gives each rank its member.
void Begin(const fs::path& root, uint32_t num_ranks) {
  const auto log = OpenLog(root);
  const auto propose = [&](const auto& is_done, const GroupRecord& record) {
    Require(log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
      if (is_done(state)) return std::optional<GroupRecord>();
      return std::optional(record);
    }));
  };
  propose([](const GroupState& state) { return state.epoch == kEpoch; },
          {{}, EpochRecord{kEpoch, 1, num_ranks}});
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const Author author = AuthorOf(rank);
    propose([&](const GroupState& state) { return state.IsCurrent(author); },
            {author, OwnRecord{"host"}});
  }
}

uint64_t NumFiles(const fs::path& folder) {
  return static_cast<uint64_t>(std::distance(fs::directory_iterator(folder), {}));
}

using Clock = std::chrono::steady_clock;

double SecondsFrom(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Clock::time_point LastOf(const std::vector<Clock::time_point>& times) {
  return *std::max_element(times.begin(), times.end());
}

// The threads of all ranks meet here. The time is when the last one came.
class Meeting {
 public:
  explicit Meeting(uint32_t num_ranks) : barrier_(num_ranks, NoteTime{&met_}) {}
  Clock::time_point Come() {
    barrier_.arrive_and_wait();
    return met_;
  }

 private:
  struct NoteTime {
    Clock::time_point* met;
    void operator()() noexcept { *met = Clock::now(); }
  };
  Clock::time_point met_;
  std::barrier<NoteTime> barrier_;
};

void RunThreads(size_t num_threads, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < num_threads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

class Job {
 public:
  Job(const fs::path& root, uint32_t num_ranks, int num_saves, LogCosts* costs)
      : root_(root),
        num_saves_(num_saves),
        costs_(costs),
        meeting_(num_ranks),
        prepared_(num_ranks),
        ends_(num_ranks) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) logs_.push_back(OpenLog(root));
  }

  void Run() {
    RunThreads(logs_.size(), [this](uint32_t rank) {
      AttemptsTaken taken;
      for (int i = 0; i < num_saves_; ++i) Save(rank, static_cast<uint64_t>(i), &taken);
    });
  }

 private:
  // Saves as group_writer.cc does.
  void Save(uint32_t rank, uint64_t step, AttemptsTaken* taken) {
    const Author author = AuthorOf(rank);
    const auto called = Clock::now();
    RankSave save(logs_[rank].get(), author, {.timeout = kForEver, .says_so_after = kForEver},
                  taken, {"main", step});
    const AttemptId attempt = Must(save.Begin({}));
    const Clock::time_point ready = meeting_.Come();
    const GroupPart part{.member = author.member, .root = {step + 1, rank}, .num_tensors = 1};
    Require(save.Prepare(part));
    prepared_[rank] = Clock::now();
    if (rank == 0) {
      Require(save.AwaitAllPrepared().status());
      Require(save.Commit({.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}}));
      committed_ = Clock::now();
    }
    Require(save.AwaitOutcome());
    ends_[rank] = Clock::now();
    if (rank == 0) Require(logs_[0]->TakeSnapshotIfDue());  // in the background there
    meeting_.Come();
    if (rank == 0) Note(called, ready);
    meeting_.Come();
  }
  // Notes for rank 0 when it started to say BEGIN, and when all had read that.
  void Note(Clock::time_point called, Clock::time_point ready) {
    const Clock::time_point prepared = LastOf(prepared_), end = LastOf(ends_);
    costs_->begins.push_back(SecondsFrom(called, ready));
    costs_->latencies.push_back(SecondsFrom(ready, end));
    costs_->to_prepared.push_back(SecondsFrom(ready, prepared));
    costs_->prepared_to_committed.push_back(SecondsFrom(prepared, committed_));
    costs_->committed_to_known.push_back(SecondsFrom(committed_, end));
    costs_->most_files = std::max(costs_->most_files, NumFiles(root_));
  }

  const fs::path root_;
  const int num_saves_;
  LogCosts* const costs_;
  Meeting meeting_;
  std::vector<std::unique_ptr<GroupLog>> logs_;
  std::vector<Clock::time_point> prepared_, ends_;  // by rank
  Clock::time_point committed_;
};

// A slot written, by rank 0 all others read, a record found and read, the one before it looked at,
// and the folder synced.
std::vector<double> MeasureFloors(const fs::path& root, uint32_t num_ranks) {
  fs::create_directories(root);
  const auto log = MakePosixRecordLog(root);
  const std::string bytes(200, 'x');
  for (const uint64_t number : {1, 2}) Must(log->Create(number, bytes));
  const auto slot = [](uint32_t rank) { return SlotName(rank + 1); };
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    Require(log->Put(slot(rank), bytes, /*durable=*/false));
  }
  Meeting meeting(num_ranks);
  std::vector<Clock::time_point> ends(num_ranks);
  std::vector<double> floors;
  RunThreads(num_ranks, [&](uint32_t rank) {
    for (int i = 0; i < kFloors; ++i) {
      const Clock::time_point ready = meeting.Come();
      Require(log->Put(slot(rank), bytes, /*durable=*/false));
      for (uint32_t other = 1; rank == 0 && other < num_ranks; ++other) Must(log->Get(slot(other)));
      Must(log->Read(2));
      Must(log->Stamp(1));
      Require(log->Sync());
      ends[rank] = Clock::now();
      meeting.Come();
      if (rank == 0) floors.push_back(SecondsFrom(ready, LastOf(ends)));
    }
  });
  return floors;
}

}  // namespace

LogCosts RunLog(const fs::path& root, uint32_t num_ranks, int num_saves) {
  fs::create_directories(root);
  Begin(root, num_ranks);
  LogCosts costs;
  Job job(root, num_ranks, num_saves, &costs);
  costs.save = MeasureCost([&] { job.Run(); }).Each(num_saves);
  costs.save.seconds =
      std::accumulate(costs.latencies.begin(), costs.latencies.end(), 0.0) / num_saves;
  const auto log = OpenLog(root);
  costs.poll = MeasureCost([&] {
                 for (int i = 0; i < kPolls; ++i) Require(log->Refresh());
               }).Each(kPolls);
  costs.floors = MeasureFloors(root / "floor", num_ranks);
  return costs;
}

void MeasureLog(const Plan& plan, int num_saves, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) {
    const auto root = place.NewPath("log");
    const LogCosts costs = RunLog(root, static_cast<uint32_t>(n), num_saves);
    const auto size = static_cast<double>(n);
    curves->Add("save in the log, all ranks", {1, 1}, size, costs.save);
    curves->Add("poll of a rank, nothing new", {0, 0}, size, costs.poll);
    place.Remove(root);
  }
}

}  // namespace varve::internal::bench
