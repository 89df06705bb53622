// SPDX-License-Identifier: Apache-2.0
//
// Jobs that follow one another over one log. Their ranks are killed, or stopped between any two of
// their looks at the log. A stopped rank is woken up when another job has started, or another
// process goes on as the same rank. No rank may report a save as durable unless the log has
// committed the attempt that its own job started, with the part that this very process prepared.
// None may report one as failed that is committed.
//
// Nothing here takes time or depends on it. Ranks take turns on one thread, each for as many
// operations on the log as the seed says. A wait gives up the turn. With VARVE_FULL_SIZE=1, which
// scripts/must_show sets, it runs 5,000 rounds.
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include <cstdlib>
#include <functional>
#include <random>

#include "store/group/rank_save.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kLogSeed = 7;
constexpr auto kWithoutEnd = std::chrono::hours(1000);
constexpr uint64_t kSteps[] = {10, 20, 30};
constexpr char kOwnStamp[] = "of its own";

// Records and named files.
struct Records {
  std::map<uint64_t, std::string> records;
  std::map<std::string, std::string, std::less<>> files;
  uint64_t num_puts = 0;
  size_t size() const { return records.size() + num_puts; }
};

// What a rank does, on a stack of its own: it runs when it is let, on the test's only thread.
class Turns {
 public:
  enum class State { kRuns, kStopped, kDone };

  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void Start(std::function<void()> body) {
    body_ = std::move(body);
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.data();
    own_.uc_stack.ss_size = stack_.size();
    own_.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Turns::Begin), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  }

  // Lets it do so many operations.
  void Run(int operations) {
    left_ = operations;
    waits_ = false;
    void* fake_stack = nullptr;
    BeforeSwitch(&fake_stack, stack_.data(), stack_.size());
    swapcontext(&test_, &own_);
    AfterSwitch(fake_stack, nullptr, nullptr);
  }
  State state() const { return state_; }
  void Stop() { state_ = State::kStopped; }
  void Wake() { state_ = State::kRuns; }
  bool waits() const { return waits_; }
  void Kill() { is_killed_ = true; }

  // Describes what it does.
  void BeforeOperation() {
    if (left_-- <= 0) Yield();
  }
  void Pause() {
    waits_ = true;
    Yield();
  }
  bool is_killed() const { return is_killed_; }

 private:
  static void Begin(unsigned high, unsigned low) {
    auto* const self = reinterpret_cast<Turns*>(uintptr_t{high} << 32 | low);
    AfterSwitch(nullptr, &self->test_stack_, &self->test_stack_bytes_);
    self->body_();
    self->state_ = State::kDone;
    BeforeSwitch(nullptr, self->test_stack_, self->test_stack_bytes_);  // for good
    swapcontext(&self->own_, &self->test_);
  }
  void Yield() {
    void* fake_stack = nullptr;
    BeforeSwitch(&fake_stack, test_stack_, test_stack_bytes_);
    swapcontext(&own_, &test_);
    AfterSwitch(fake_stack, &test_stack_, &test_stack_bytes_);
    --left_;
  }

  // ASan must know which stack is in use.
  static void BeforeSwitch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to,
                           [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, to, bytes);
#endif
  }
  static void AfterSwitch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from,
                          [[maybe_unused]] size_t* bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#endif
  }

  std::vector<char> stack_ = std::vector<char>(size_t{512} << 10);
  ucontext_t own_{}, test_{};
  const void* test_stack_ = nullptr;
  size_t test_stack_bytes_ = 0;
  std::function<void()> body_;
  int left_ = 0;
  State state_ = State::kRuns;
  bool waits_ = false;
  bool is_killed_ = false;
};

// The log of a rank, which may be stopped before each operation.
class LogInTurns : public RecordLog {
 public:
  LogInTurns(Records* records, Turns* turns) : records_(records), turns_(turns) {}

  Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) override {
    VARVE_RETURN_IF_ERROR(Begin());
    const bool is_new = records_->records.try_emplace(number, bytes).second;
    return is_new ? CreateOutcome::kOk : CreateOutcome::kExists;
  }
  Result<std::optional<std::string>> Read(uint64_t number, std::string* stamp) const override {
    VARVE_RETURN_IF_ERROR(Begin());
    const auto it = records_->records.find(number);
    if (it == records_->records.end()) return std::optional<std::string>();
    if (stamp != nullptr) *stamp = kOwnStamp;
    return std::optional(it->second);
  }
  Result<std::string> Stamp(uint64_t number) const override {
    VARVE_RETURN_IF_ERROR(Begin());
    return records_->records.contains(number) ? std::string(kOwnStamp) : std::string();
  }
  Status Sync() const override { return Begin(); }
  Result<std::vector<uint64_t>> List(uint64_t from) const override {
    VARVE_RETURN_IF_ERROR(Begin());
    std::vector<uint64_t> numbers;
    const auto& all = records_->records;
    for (auto it = all.lower_bound(from); it != all.end(); ++it) {
      numbers.push_back(it->first);
    }
    return numbers;
  }
  Status Remove(uint64_t) override { return Status::Ok(); }
  Status Put(std::string_view name, std::string_view bytes, bool) override {
    VARVE_RETURN_IF_ERROR(Begin());
    records_->files[std::string(name)] = bytes;
    ++records_->num_puts;
    return Status::Ok();
  }
  Result<std::optional<std::string>> Get(std::string_view name, std::string*) const override {
    VARVE_RETURN_IF_ERROR(Begin());
    const auto it = records_->files.find(name);
    return it == records_->files.end() ? std::nullopt : std::optional(it->second);
  }
  Result<std::vector<std::string>> Names(std::string_view) const override {
    return std::vector<std::string>();
  }
  Status Erase(std::string_view) override { return Status::Ok(); }
  Status RemoveDebris() override { return Status::Ok(); }

 private:
  Status Begin() const {
    turns_->BeforeOperation();
    return turns_->is_killed() ? Status::Unavailable("killed") : Status::Ok();
  }

  Records* const records_;
  Turns* const turns_;
};

// What a rank was told of a save.
struct Claim {
  Author author;
  CheckpointId id;
  AttemptId attempt = 0;
  Digest part;
  Status status;
};

// What the log says of an attempt that was committed.
struct Committed {
  CheckpointId id;
  uint64_t epoch = 0;             // epoch of the rank that started it
  std::vector<MemberId> members;  // by rank
  bool is_dropped = false;        // since
};

std::map<AttemptId, Committed> ReadCommitted(const Records& records) {
  GroupState state;
  std::map<AttemptId, uint64_t> epochs;
  std::map<AttemptId, Committed> committed;
  for (const auto& [number, bytes] : records.records) {
    const GroupRecord record = DecodeGroupRecord(kLogSeed, number, bytes).value();
    const AttemptId next = state.next_attempt;
    const auto* commit = std::get_if<CommitRecord>(&record.body);
    const bool was_committed = commit != nullptr && state.FindAttempt(commit->attempt) != nullptr &&
                               state.FindAttempt(commit->attempt)->committed;
    state.Apply(record);
    if (state.next_attempt != next) epochs[next] = record.author.epoch;
    if (commit == nullptr || was_committed) continue;
    const GroupAttempt* attempt = state.FindAttempt(commit->attempt);
    if (attempt == nullptr || !attempt->committed) continue;
    committed[commit->attempt] = {attempt->id, epochs[commit->attempt], attempt->Members()};
  }
  for (auto& [number, found] : committed) found.is_dropped = state.FindAttempt(number) == nullptr;
  return committed;
}

class Round {
 public:
  Round(uint64_t seed, uint32_t version)
      : rng_(seed),
        on_existing_(Chance(0.5) ? OnExisting::kReplace : OnExisting::kError),
        version_(version) {}

  void Run() {
    const int num_jobs = Below(3) + 2;
    for (int job = 0; job < num_jobs; ++job) {
      StartJob();
      RunTurns(Below(40) + 1);
      if (Chance(0.5)) StartSecondProcess();
      RunTurns(Below(60));
      if (job + 1 < num_jobs) EndJob();
    }
    while (RunTurns(1)) {
    }
  }

  // What must not be, or nothing.
  std::string Judge() const {
    const auto committed = ReadCommitted(records_);
    for (const Claim& claim : claims_) {
      const auto it = committed.find(claim.attempt);
      bool is_there = it != committed.end() && it->second.id == claim.id &&
                      it->second.epoch == claim.author.epoch;
      if (is_there) {
        const std::vector<MemberId>& members = it->second.members;
        is_there =
            claim.author.rank < members.size() && members[claim.author.rank] == claim.author.member;
      }
      // The index says of its part what this very process has prepared.
      const auto index = indices_.find(claim.attempt);
      is_there = is_there && index != indices_.end() &&
                 index->second.at(claim.author.rank).root == claim.part;
      if (is_there == claim.status.ok()) continue;
      // It is gone before its rank has looked: nothing is left to be wrong about.
      if (is_there && it->second.is_dropped) continue;
      return "rank " + std::to_string(claim.author.rank) + " of epoch " +
             std::to_string(claim.author.epoch) + " was told \"" + claim.status.ToString() +
             "\" of its save of step " + std::to_string(claim.id.step) + ", attempt " +
             std::to_string(claim.attempt) + ", which is " +
             (is_there ? "committed" : "not committed with its part");
    }
    return "";
  }
  size_t num_durable() const {
    return static_cast<size_t>(std::count_if(claims_.begin(), claims_.end(),
                                             [](const Claim& c) { return c.status.ok(); }));
  }

 private:
  struct Rank {
    Author author;
    Turns turns;
    std::unique_ptr<GroupLog> log;
    size_t seen = 0;  // records, when it last ran
  };

  int Below(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  Rank* AnyOf(const std::vector<Rank*>& ranks) {
    return ranks[static_cast<size_t>(Below(static_cast<int>(ranks.size())))];
  }
  bool Chance(double p) { return static_cast<double>(rng_() % 1000) < p * 1000; }

  // A new start of the job, which nobody interrupts.
  void StartJob() {
    num_ranks_ = static_cast<uint32_t>(Below(3) + 1);
    Turns turns;
    turns.Start([&] {
      GroupLog log(std::make_unique<LogInTurns>(&records_, &turns), kLogSeed);
      uint64_t proposed = 0;
      const Status status =
          log.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
            if (proposed != 0) return std::optional<GroupRecord>();
            proposed = state.epoch + 1;
            return std::optional(
                GroupRecord{{}, EpochRecord{proposed, proposed, num_ranks_, version_}});
          });
      EXPECT_TRUE(status.ok()) << status.ToString();
      epoch_ = proposed;
    });
    turns.Run(1 << 20);
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) StartRank(rank);
  }

  // For a rank whose first process is stopped. The system takes it for dead.
  void StartSecondProcess() {
    for (const auto& rank : ranks_) {
      if (rank->author.epoch != epoch_ || rank->turns.state() != Turns::State::kRuns) continue;
      if (!Chance(0.5)) continue;
      rank->turns.Stop();
      StartRank(rank->author.rank);
      return;
    }
  }

  // Its processes die, or are stopped.
  void EndJob() {
    for (const auto& rank : ranks_) {
      if (rank->author.epoch != epoch_ || rank->turns.state() == Turns::State::kDone) continue;
      if (Chance(0.8)) {
        rank->turns.Stop();
      } else {
        rank->turns.Kill();
      }
    }
  }

  // Lets ranks run for so many turns. False: none is left.
  bool RunTurns(int turns) {
    for (int i = 0; i < turns; ++i) {
      std::vector<Rank*> run, wait, stopped;
      for (const auto& rank : ranks_) {
        const Turns& turns_of = rank->turns;
        if (turns_of.state() == Turns::State::kStopped) stopped.push_back(rank.get());
        if (turns_of.state() != Turns::State::kRuns) continue;
        // A rank that waits would look at the same log again.
        const bool sees_nothing_new = turns_of.waits() && rank->seen == records_.size();
        (sees_nothing_new ? wait : run).push_back(rank.get());
      }
      if (run.empty() && wait.empty() && stopped.empty()) return false;
      if (!stopped.empty() && (Chance(0.02) || (run.empty() && Chance(0.5)))) {
        AnyOf(stopped)->turns.Wake();
      } else if (!run.empty()) {
        Rank* const rank = AnyOf(run);
        rank->turns.Run(Below(6) + 1);
        rank->seen = records_.size();
      } else if (!wait.empty()) {  // for one that is stopped or gone, but not for ever
        Rank* const rank = AnyOf(wait);
        rank->log->Hurry(std::chrono::milliseconds(0));
        rank->seen = 0;
      }
    }
    return true;
  }

  void StartRank(uint32_t number) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank* const rank = ranks_.back().get();
    rank->author = {epoch_, number, ++num_members_};
    rank->log =
        std::make_unique<GroupLog>(std::make_unique<LogInTurns>(&records_, &rank->turns), kLogSeed,
                                   [rank](std::chrono::milliseconds) { rank->turns.Pause(); });
    rank->turns.Start([this, rank] { Train(rank); });
  }

  // Joins as member.cc does. Returns false when its epoch is over.
  static bool Join(const Rank& rank) {
    const Status owns =
        rank.log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
          if (state.epoch != rank.author.epoch) return Status::Aborted("a later start");
          if (state.IsCurrent(rank.author)) return std::optional<GroupRecord>();
          return std::optional(GroupRecord{rank.author, OwnRecord{"host"}});
        });
    if (!owns.ok()) return false;
    return ProposeAs(rank.log.get(), rank.author,
                     [&](const GroupState& state) -> Result<std::optional<RecordBody>> {
                       for (const auto& [number, attempt] : state.attempts) {
                         if (attempt.committed || rank.author.rank != 0) continue;
                         return std::optional<RecordBody>(
                             AbortRecord{number, StatusCode::kAborted, "restarted"});
                       }
                       return std::optional<RecordBody>();
                     })
        .ok();
  }

  // Saves as group_writer.cc does.
  Status Save(const Rank& rank, AttemptsTaken* taken, Claim* claim) {
    RankSave save(rank.log.get(), rank.author,
                  {.timeout = kWithoutEnd, .says_so_after = kWithoutEnd}, taken, claim->id);
    VARVE_ASSIGN_OR_RETURN(claim->attempt, save.Begin({.on_existing = on_existing_}));
    const GroupPart part{.member = rank.author.member, .root = {++num_parts_, 0}};
    claim->part = part.root;
    Status status = save.Prepare(part);
    if (status.ok() && rank.author.rank == 0) {
      auto parts = save.AwaitAllPrepared();
      status = parts.status();
      if (parts.ok()) indices_[claim->attempt] = *std::move(parts);
    }
    if (status.ok() && rank.author.rank == 0) {
      status = save.Commit({.attempt = claim->attempt, .catalogue = {}, .metrics = {}, .tags = {}});
    }
    if (!status.ok()) status = save.GiveUp(status);
    return status.ok() ? save.AwaitOutcome() : status;
  }

  void Train(Rank* rank) {
    if (!Join(*rank)) return;
    AttemptsTaken taken;
    rank->log->With([&](const GroupState& state) {
      for (const auto& [number, outcome] : state.outcomes) taken.Take(number);
    });
    for (const uint64_t step : kSteps) {
      Claim claim{.author = rank->author, .id = {"main", step}, .status = {}};
      claim.status = Save(*rank, &taken, &claim);
      if (rank->turns.is_killed()) return;  // nobody is told
      claims_.push_back(claim);
    }
  }

  std::mt19937_64 rng_;
  const OnExisting on_existing_;
  Records records_;
  std::vector<Claim> claims_;
  std::map<AttemptId, std::map<uint32_t, GroupPart>> indices_;  // that rank 0 would write
  uint64_t epoch_ = 0;
  uint32_t num_ranks_ = 0;
  const uint32_t version_;
  MemberId num_members_ = 0;
  uint64_t num_parts_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

void ExpectNoFalseReport(uint32_t version) {
  const uint64_t rounds = std::getenv("VARVE_FULL_SIZE") != nullptr ? 5000 : 300;
  size_t num_durable = 0, num_false = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    Round round(seed, version);
    round.Run();
    num_durable += round.num_durable();
    const std::string violation = round.Judge();
    if (violation.empty()) continue;
    if (++num_false <= 5) ADD_FAILURE() << "seed " << seed << ": " << violation;
  }
  std::printf("%llu rounds, %zu saves reported durable, %zu rounds with a false report\n",
              static_cast<unsigned long long>(rounds), num_durable, num_false);
  EXPECT_EQ(num_false, 0u);
  EXPECT_GE(num_durable, rounds);
}

TEST(StoppedRanksTest, NoneReportsASaveThatIsNotItsOwn) { ExpectNoFalseReport(kGroupVersion); }

// Parts are records of the log.
TEST(StoppedRanksTest, NorInAGroupWithoutSlots) { ExpectNoFalseReport(kVersionOfSlots - 1); }

}  // namespace
}  // namespace varve::internal::testing
