// SPDX-License-Identifier: Apache-2.0
#include "store/group/rank_save.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/number_list.h"
#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

namespace {

Status Replaced(const GroupState& state, const Author& author) {
  return Status::Aborted("rank " + std::to_string(author.rank) + " of epoch " +
                         std::to_string(author.epoch) + " has been replaced; the job is in epoch " +
                         std::to_string(state.epoch) + "; end this process");
}

std::vector<uint32_t> AllRanks(const GroupState& state) {
  std::vector<uint32_t> ranks(state.num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

// The most ranks that each look at all slots when a save fails.
constexpr uint32_t kMaxRanksThatLookAtAll = 256;

// Returns the newest step of the run, unless the caller names another. 0 = none.
Result<AttemptId> FindBase(const GroupState& state, const SaveOptions& options) {
  const auto run = state.runs.find(options.run);
  if (options.parent.has_value()) {
    const GroupStep* step = state.FindStep({options.run, *options.parent});
    if (step != nullptr) return step->attempt;
    return Status::NotFound("the parent, " + StepName(options.run, *options.parent) +
                            ", does not exist; name a step of this run, or none");
  }
  if (run == state.runs.end() || run->second.steps.empty()) return AttemptId{0};
  return run->second.steps.rbegin()->second.attempt;
}

Status CheckMayBegin(const GroupState& state, const CheckpointId& id, const SaveOptions& options) {
  if (options.on_existing != OnExisting::kError || state.FindStep(id) == nullptr) {
    return Status::Ok();
  }
  return Status::AlreadyExists(StepName(id.run, id.step) +
                               " exists already; save another step, or let "
                               "SaveOptions::on_existing (--on-existing) replace or fork it");
}

}  // namespace

Status OutcomeOf(const GroupState& state, AttemptId attempt) {
  const GroupAttempt* found = state.FindAttempt(attempt);
  if (found != nullptr && found->committed) return Status::Ok();
  const auto it = state.outcomes.find(attempt);
  if (it != state.outcomes.end()) return {it->second.code, it->second.message};
  return Status::Aborted("it ended too long ago for the log to say how");
}

Result<std::optional<RecordBody>> ProposeBegin(const GroupState& state, const Author& author,
                                               const CheckpointId& id, const SaveOptions& options,
                                               uint64_t nonce, AttemptId* proposed) {
  const GroupAttempt* attempt = state.FindAttempt(*proposed);
  if (attempt != nullptr && attempt->nonce == nonce) return std::optional<RecordBody>();
  if (!state.IsCurrent(author)) return Replaced(state, author);
  // Another rank may give it up before this one has seen it. Outcomes have no nonce, but while this
  // rank is current no other rank starts an attempt.
  const auto outcome = state.outcomes.find(*proposed);
  const bool is_over = outcome != state.outcomes.end() && outcome->second.id == id;
  if (is_over) return std::optional<RecordBody>();
  VARVE_RETURN_IF_ERROR(CheckMayBegin(state, id, options));
  BeginRecord record{.attempt = state.next_attempt, .nonce = nonce, .id = id};
  VARVE_ASSIGN_OR_RETURN(record.base, FindBase(state, options));
  record.on_existing = options.on_existing;
  *proposed = record.attempt;
  return std::optional<RecordBody>(std::move(record));
}

Status ProposeAs(GroupLog* log, const Author& author, const GroupChange& change) {
  bool has_appended = false;  // or may have
  return log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
    VARVE_ASSIGN_OR_RETURN(std::optional<RecordBody> body, change(state));
    const bool is_current = state.IsCurrent(author);
    // The last record of this author may have come just before it was replaced.
    const bool is_done = !body.has_value() && (is_current || has_appended);
    if (is_done) return std::optional<GroupRecord>();
    if (!is_current) return Replaced(state, author);
    has_appended = true;
    return std::optional(GroupRecord{author, *std::move(body)});
  });
}

void AttemptsTaken::Take(AttemptId attempt) {
  const std::lock_guard lock(mutex_);
  taken_.insert(attempt);
  if (taken_.size() > 2 * GroupState::kMaxOutcomes) taken_.erase(taken_.begin());
}

bool AttemptsTaken::Has(AttemptId attempt) const {
  const std::lock_guard lock(mutex_);
  return taken_.contains(attempt);
}

void AttemptsTaken::SetMissed(const CheckpointId& id, size_t num_missed) {
  const std::lock_guard lock(mutex_);
  missed_.erase({id.run, id.step});
  if (num_missed > 0) missed_[{id.run, id.step}] = num_missed;
  if (missed_.size() > GroupState::kMaxOutcomes) missed_.erase(missed_.begin());
}

size_t AttemptsTaken::NumMissed(const CheckpointId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = missed_.find({id.run, id.step});
  return found == missed_.end() ? 0 : found->second;
}

RankSave::RankSave(GroupLog* log, const Author& author, RankPatience patience, AttemptsTaken* taken,
                   CheckpointId id)
    : log_(log),
      author_(author),
      patience_(std::move(patience)),
      taken_(taken),
      id_(std::move(id)),
      nonce_(author.rank == 0 ? RandomNumber() : 0),
      num_missed_(taken->NumMissed(id_)) {}

Result<AttemptId> RankSave::Begin(const SaveOptions& options) {
  if (has_begun_) return attempt_;
  Result<AttemptId> begun = author_.rank == 0 ? BeginAttempt(options) : AwaitAttempt(options);
  if (!begun.ok()) return begun.status();
  attempt_ = *begun;
  has_begun_ = true;
  taken_->Take(attempt_);
  log_->With([&](const GroupState& state) {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr || state.version < kVersionOfSlots) return;
    slot_key_ = {log_->seed(), attempt_, attempt->nonce};
    slots_.emplace(log_->records(), slot_key_);
  });
  return attempt_;
}

// Rank 0 is a single rank, and all wait for it, so it looks often. The other ranks together look as
// often in a large group as in a small one. They spread their looks, from the first one on.
GroupLog::Pace RankSave::Pace() const {
  constexpr uint32_t kRanksPerMs = 16;
  constexpr uint32_t kLongestMs = 1000;
  if (author_.rank == 0) return {};
  const uint32_t num_ranks = log_->With([](const GroupState& state) { return state.num_ranks; });
  const uint32_t ms = std::clamp(num_ranks / kRanksPerMs, 1u, kLongestMs);
  GroupLog::Pace pace;
  pace.first = std::chrono::milliseconds(1 + author_.rank % ms);
  pace.shortest = std::chrono::milliseconds(ms);
  pace.longest = std::max(pace.longest, pace.shortest);
  return pace;
}

// It asks which ranks are gone before it reads the log once more, so it sees what they wrote last.
Result<AttemptId> RankSave::AwaitRanks(const std::string& what, const Awaited& awaited,
                                       const Look& look) {
  const auto begun = std::chrono::steady_clock::now();
  const std::string name = StepName(id_.run, id_.step);
  std::vector<uint32_t> gone;
  bool has_said_so = false;
  const Look look_or_give_up = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    std::optional<Result<AttemptId>> found = look(state);
    if (found.has_value()) return found;
    const std::vector<uint32_t> lost =
        gone.empty() ? std::vector<uint32_t>() : awaited(state, gone);
    if (!lost.empty()) {
      return Status::Aborted(
          NumberList("rank", lost) + " did not " + what + " " + name + ": " +
          (lost.size() == 1 ? "its connection is closed" : "their connections are closed"));
    }
    if (patience_.gone) gone = patience_.gone();
    std::sort(gone.begin(), gone.end());
    if (has_said_so || std::chrono::steady_clock::now() - begun < patience_.says_so_after) {
      return std::nullopt;
    }
    has_said_so = true;
    std::fprintf(stderr, "varve: rank %u waits for %s to %s %s, and gives up after %lld ms\n",
                 author_.rank, NumberList("rank", awaited(state, AllRanks(state))).c_str(),
                 what.c_str(), name.c_str(), static_cast<long long>(patience_.timeout.count()));
    return std::nullopt;
  };
  VARVE_ASSIGN_OR_RETURN(
      const auto found, log_->Await<Result<AttemptId>>(patience_.timeout, look_or_give_up, Pace()));
  if (found.has_value()) return *found;
  const auto ranks =
      log_->With([&](const GroupState& state) { return awaited(state, AllRanks(state)); });
  return Status::Aborted(NumberList("rank", ranks) + " did not " + what + " " + name + " " +
                         Waited());
}

Result<AttemptId> RankSave::BeginAttempt(const SaveOptions& options) {
  const Status status = ProposeAs(log_, author_, [&](const GroupState& state) {
    return ProposeBegin(state, author_, id_, options, nonce_, &attempt_);
  });
  is_over_ = !status.ok() && status.code() != StatusCode::kIOError;
  if (!status.ok()) return status;
  return attempt_;
}

// Passes over as many attempts that have ended as earlier saves of this step have missed.
Status RankSave::PassOverMissed() {
  if (first_.has_value()) return Status::Ok();
  if (num_missed_ == 0) {
    first_ = 0;
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(log_->Refresh());
  first_ = log_->With([&](const GroupState& state) {
    for (const auto& [number, outcome] : state.outcomes) {
      if (num_missed_ == 0 || outcome.id != id_ || taken_->Has(number)) continue;
      taken_->Take(number);
      --num_missed_;
    }
    return state.next_attempt;
  });
  return Status::Ok();
}

// An attempt that was open before this save may be an earlier one's. Then this one's is missed.
// Rank 0 begins no attempt of a save that is refused.
void RankSave::NoteMissed(const Result<AttemptId>& attempt, bool is_refused) {
  const bool has_found = attempt.ok() || is_over_;
  const bool is_of_this_save = attempt.ok() && *attempt >= *first_;
  const bool is_missed = !has_found && !is_refused;
  taken_->SetMissed(id_, is_of_this_save ? 0 : num_missed_ + (is_missed ? 1 : 0));
}

// Returns the attempt for this step in which this rank has not taken part yet.
Result<AttemptId> RankSave::AwaitAttempt(const SaveOptions& options) {
  uint64_t seen = 0;  // the state changes only with a record
  bool is_refused = false;
  const Look look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    if (std::exchange(seen, state.next) == state.next) return std::nullopt;
    if (!state.IsCurrent(author_)) {
      is_refused = true;
      if (state.epoch == author_.epoch) return Replaced(state, author_);
      return Status::Aborted("epoch " + std::to_string(state.epoch) +
                             " of the job has begun; this rank belongs to epoch " +
                             std::to_string(author_.epoch));
    }
    for (const AttemptId number : state.derived.open) {
      const GroupAttempt* attempt = state.FindAttempt(number);
      if (attempt != nullptr && attempt->id == id_ && !taken_->Has(number)) return number;
    }
    for (const auto& [number, outcome] : state.outcomes) {  // given up before this rank came
      if (outcome.id != id_ || outcome.code == StatusCode::kOk || taken_->Has(number)) continue;
      taken_->Take(number);
      is_over_ = true;
      return OutcomeOf(state, number);
    }
    const Status status = CheckMayBegin(state, id_, options);
    is_refused = !status.ok();
    return status.ok() ? std::nullopt : std::optional<Result<AttemptId>>(status);
  };
  const Awaited rank_zero = [](const GroupState&, const std::vector<uint32_t>& ranks) {
    return ranks.empty() || ranks[0] != 0 ? std::vector<uint32_t>() : std::vector<uint32_t>{0};
  };
  const Status passed = PassOverMissed();
  taken_->SetMissed(id_, num_missed_ + 1);  // unless what follows returns, and finds it
  Result<AttemptId> attempt = passed.ok() ? AwaitRanks("begin", rank_zero, look) : passed;
  NoteMissed(attempt, is_refused);
  is_over_ = is_over_ || (!attempt.ok() && attempt.status().code() != StatusCode::kIOError);
  return attempt;
}

Status RankSave::Prepare(const GroupPart& part) {
  is_over_ = true;
  part_ = part;
  if (slots_.has_value()) return PrepareInSlot(part);
  VARVE_RETURN_IF_ERROR(
      ProposeAs(log_, author_, [&](const GroupState& state) -> Result<std::optional<RecordBody>> {
        const GroupAttempt* attempt = state.FindAttempt(attempt_);
        if (attempt == nullptr) return WhyOver(state);
        if (!attempt->committed && !attempt->parts.contains(author_.rank)) {
          return std::optional<RecordBody>(PreparedRecord{attempt_, part});
        }
        if (!HasMyPart(*attempt)) return NotIn();
        return std::optional<RecordBody>();
      }));
  is_in_ = true;
  return Status::Ok();
}

// A process whose place another has taken must not say so, even though rank 0 would ignore it.
Status RankSave::PrepareInSlot(const GroupPart& part) {
  VARVE_RETURN_IF_ERROR(log_->Refresh());
  VARVE_RETURN_IF_ERROR(log_->With([&](const GroupState& state) -> Status {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr) return WhyOver(state);
    if (attempt->committed) return NotIn();
    return state.IsCurrent(author_) ? Status::Ok() : Replaced(state, author_);
  }));
  if (author_.rank == 0) slots_->Add(author_.rank, part);  // need not be read back
  return WriteSlot(log_->records(), slot_key_, author_, part);
}

// Returns those of some ranks whose parts the attempt does not have.
std::vector<uint32_t> RankSave::Unprepared(const GroupState& state,
                                           const std::vector<uint32_t>& ranks) {
  if (slots_.has_value()) return slots_->Missing(state, ranks);
  const GroupAttempt* attempt = state.FindAttempt(attempt_);
  std::vector<uint32_t> missing;
  for (const uint32_t rank : ranks) {
    if (attempt == nullptr || !attempt->parts.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

Result<std::map<uint32_t, GroupPart>> RankSave::AwaitAllPrepared() {
  std::map<uint32_t, GroupPart> parts;
  const Look look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr) return WhyOver(state);
    if (attempt->committed) {
      VARVE_RETURN_IF_ERROR(Outcome(state));
      return attempt_;
    }
    if (slots_.has_value()) {
      if (!state.IsCurrent(author_)) return Replaced(state, author_);
      VARVE_ASSIGN_OR_RETURN(const bool has_all, slots_->Gather(state));
      if (!has_all) return std::nullopt;
      parts = slots_->parts();
      return attempt_;
    }
    if (attempt->parts.size() < state.num_ranks) return std::nullopt;
    parts = attempt->parts;
    return attempt_;
  };
  const Awaited awaited = [&](const GroupState& state, const std::vector<uint32_t>& ranks) {
    return Unprepared(state, ranks);
  };
  VARVE_RETURN_IF_ERROR(AwaitRanks("save", awaited, look).status());
  return parts;
}

Status RankSave::Commit(CommitRecord record) {
  if (slots_.has_value()) record.gathered = SumOf(slots_->parts());
  return ProposeAs(log_, author_,
                   [&](const GroupState& state) -> Result<std::optional<RecordBody>> {
                     const GroupAttempt* attempt = state.FindAttempt(attempt_);
                     if (attempt == nullptr) return WhyOver(state);
                     if (attempt->committed) return std::optional<RecordBody>();
                     if (record.gathered.has_value() &&
                         DigestOfMembers(state.MembersOfRanks()) != record.gathered->members) {
                       return Status::Aborted("another process has taken the place of a rank");
                     }
                     return std::optional<RecordBody>(record);
                   });
}

Status RankSave::GiveUp(const Status& why) {
  is_over_ = true;
  const std::string message = "rank " + std::to_string(author_.rank) + ": " + why.message();
  return log_->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr || attempt->committed) return std::optional<GroupRecord>();
    if (!state.IsCurrent(author_)) return Replaced(state, author_);
    return std::optional(GroupRecord{author_, AbortRecord{attempt_, why.code(), message}});
  });
}

Status RankSave::AwaitOutcome() {
  std::optional<Status> outcome;
  const Look look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt != nullptr && !attempt->committed) return std::nullopt;
    outcome = Outcome(state);
    return attempt_;
  };
  const Awaited awaited = [&](const GroupState& state, const std::vector<uint32_t>& ranks) {
    const bool has_zero = !ranks.empty() && ranks[0] == 0;
    const bool is_too_many = slots_.has_value() && ranks.size() > kMaxRanksThatLookAtAll;
    std::vector<uint32_t> missing;
    if (!is_too_many) missing = Unprepared(state, ranks);
    if (has_zero && (missing.empty() || missing[0] != 0)) missing.insert(missing.begin(), 0);
    return missing;
  };
  const Status waited = AwaitRanks("finish", awaited, look).status();
  if (!outcome.has_value()) {
    VARVE_RETURN_IF_ERROR(GiveUp(waited));
    log_->With(look);
  }
  if (outcome.has_value() && outcome->ok()) taken_->SetMissed(id_, 0);
  return outcome.value_or(Status::Aborted("outcome unknown; check the step before retrying"));
}

Status RankSave::WhyOver(const GroupState& state) const {
  const Status outcome = OutcomeOf(state, attempt_);
  return outcome.ok() ? Dropped() : outcome;
}

// Returns the outcome of an attempt that is not open any more.
Status RankSave::Outcome(const GroupState& state) const {
  VARVE_RETURN_IF_ERROR(OutcomeOf(state, attempt_));
  const GroupAttempt* attempt = state.FindAttempt(attempt_);
  if (attempt == nullptr) return is_in_ || MustBeIn(state) ? Status::Ok() : Dropped();
  return HasMyPart(*attempt) ? Status::Ok() : NotIn();
}

// True when this rank's part must be in an attempt that was committed. A current process has been
// its rank's process since it joined, and a commit takes only the slots of current processes.
bool RankSave::MustBeIn(const GroupState& state) const {
  return slots_.has_value() && part_.has_value() && state.IsCurrent(author_);
}

// Once the parts are in the index, the log has only their members. A member saves once in an
// attempt.
bool RankSave::HasMyPart(const GroupAttempt& attempt) const {
  if (attempt.has_index()) {
    const std::vector<MemberId> members = attempt.Members();
    return author_.rank < members.size() && members[author_.rank] == author_.member;
  }
  const auto mine = attempt.parts.find(author_.rank);
  return mine != attempt.parts.end() && part_ == mine->second;
}

Status RankSave::NotIn() const {
  return Status::Aborted("another process has saved as rank " + std::to_string(author_.rank) +
                         "; what this one has stored is not in " + StepName(id_.run, id_.step));
}

// The attempt was committed, and has been removed since.
Status RankSave::Dropped() const {
  return Status::Aborted(
      StepName(id_.run, id_.step) +
      " was committed and dropped before this rank saw whether its part was in it");
}

std::string RankSave::Waited() const {
  return log_->is_hurried() ? "before this rank left"
                            : "within " + std::to_string(patience_.timeout.count()) + " ms";
}

}  // namespace varve::internal
