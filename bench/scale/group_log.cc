// SPDX-License-Identifier: Apache-2.0
//
// The log of a group under many ranks: threads, each with a log of its own, say in it that they
// have saved, and store nothing. The latency of a save is from when all ranks are ready to say
// PREPARED to when the last of them has read how it ended.
#include <barrier>
#include <filesystem>
#include <memory>
#include <numeric>
#include <thread>

#include "bench/measure.h"
#include "bench/scale/axes.h"
#include "bench/workplace.h"
#include "store/group/posix_record_log.h"
#include "store/group/rank_save.h"

namespace varve::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 7;
constexpr uint64_t kEpoch = 1;
constexpr auto kForEver = std::chrono::hours(1);
constexpr int kPolls = 1000;

std::unique_ptr<GroupLog> OpenLog(const fs::path& root) {
  auto log = std::make_unique<GroupLog>(MakePosixRecordLog(root), kSeed);
  Require(log->Refresh());
  return log;
}

Author AuthorOf(uint32_t rank) { return {kEpoch, rank, MemberId{rank} + 1}; }

// The job has begun, and each rank has its member.
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

class Job {
 public:
  Job(const fs::path& root, uint32_t num_ranks, int num_saves)
      : root_(root), num_saves_(num_saves), barrier_(num_ranks), ends_(num_ranks) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) logs_.push_back(OpenLog(root));
  }

  void Run() {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < logs_.size(); ++rank) {
      threads.emplace_back([this, rank] {
        AttemptsTaken taken;
        for (int i = 0; i < num_saves_; ++i) Save(rank, static_cast<uint64_t>(i), &taken);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<double> latencies;
  uint64_t most_files = 0;

 private:
  using Clock = std::chrono::steady_clock;

  // As group_writer.cc does it.
  void Save(uint32_t rank, uint64_t step, AttemptsTaken* taken) {
    const Author author = AuthorOf(rank);
    RankSave save(logs_[rank].get(), author, {.timeout = kForEver, .says_so_after = kForEver},
                  taken, {"main", step});
    const AttemptId attempt = Must(save.Begin({}));
    barrier_.arrive_and_wait();
    if (rank == 0) begin_ = Clock::now();
    const GroupPart part{.member = author.member, .root = {step + 1, rank}, .num_tensors = 1};
    Require(save.Prepare(part));
    if (rank == 0) {
      Require(save.AwaitAllPrepared().status());
      Require(save.Commit({.attempt = attempt, .catalogue = {}, .metrics = {}, .tags = {}}));
    }
    Require(save.AwaitOutcome());
    ends_[rank] = Clock::now();
    barrier_.arrive_and_wait();
    if (rank == 0) Note();
    barrier_.arrive_and_wait();
  }
  void Note() {
    const auto end = *std::max_element(ends_.begin(), ends_.end());
    latencies.push_back(std::chrono::duration<double>(end - begin_).count());
    most_files = std::max(most_files, NumFiles(root_));
  }

  const fs::path root_;
  const int num_saves_;
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<GroupLog>> logs_;
  std::vector<Clock::time_point> ends_;
  Clock::time_point begin_;
};

}  // namespace

LogCosts RunLog(const fs::path& root, uint32_t num_ranks, int num_saves) {
  fs::create_directories(root);
  Begin(root, num_ranks);
  Job job(root, num_ranks, num_saves);
  LogCosts costs;
  costs.save = MeasureCost([&] { job.Run(); }).Each(num_saves);
  costs.latencies = job.latencies;
  costs.save.seconds =
      std::accumulate(costs.latencies.begin(), costs.latencies.end(), 0.0) / num_saves;
  costs.most_files = job.most_files;
  const auto log = OpenLog(root);
  costs.poll = MeasureCost([&] {
                 for (int i = 0; i < kPolls; ++i) Require(log->Refresh());
               }).Each(kPolls);
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

}  // namespace varve::bench
