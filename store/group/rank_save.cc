// SPDX-License-Identifier: Apache-2.0
#include "store/group/rank_save.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <random>
#include <utility>

#include "store/number_list.h"
#include "store/util.h"

namespace varve {
namespace {

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Status Replaced(const GroupState& state, const Author& author) {
  return Status::Aborted("rank " + std::to_string(author.rank) + " of epoch " +
                         std::to_string(author.epoch) + " has been replaced; the job is in epoch " +
                         std::to_string(state.epoch));
}

// Whose parts the attempt does not have.
std::vector<uint32_t> MissingRanks(const GroupState& state, const GroupAttempt& attempt) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < state.num_ranks; ++rank) {
    if (!attempt.parts.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// The newest step of the run, unless the caller names another; 0: none.
Result<AttemptId> FindBase(const GroupState& state, const SaveOptions& options) {
  const auto run = state.runs.find(options.run);
  if (options.parent.has_value()) {
    const GroupStep* step = state.FindStep({options.run, *options.parent});
    if (step != nullptr) return step->attempt;
    return Status::NotFound("the parent, " + StepName(options.run, *options.parent) +
                            ", does not exist");
  }
  if (run == state.runs.end() || run->second.steps.empty()) return AttemptId{0};
  return run->second.steps.rbegin()->second.attempt;
}

Status CheckMayBegin(const GroupState& state, const CheckpointId& id, const SaveOptions& options) {
  if (options.on_existing != OnExisting::kError || state.FindStep(id) == nullptr) {
    return Status::Ok();
  }
  return Status::AlreadyExists(StepName(id.run, id.step) + " exists already");
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
  // Another rank may give it up before this one has seen it. No outcome has a nonce; but while this
  // rank is current nobody else begins any.
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

RankSave::RankSave(GroupLog* log, const Author& author, RankPatience patience, AttemptsTaken* taken,
                   CheckpointId id)
    : log_(log),
      author_(author),
      patience_(std::move(patience)),
      taken_(taken),
      id_(std::move(id)),
      nonce_(RandomNumber()) {}

Result<AttemptId> RankSave::Begin(const SaveOptions& options) {
  if (has_begun_) return attempt_;
  Result<AttemptId> begun = author_.rank == 0 ? BeginAttempt(options) : AwaitAttempt(options);
  if (!begun.ok()) return begun.status();
  attempt_ = *begun;
  has_begun_ = true;
  taken_->Take(attempt_);
  return attempt_;
}

// Who is gone is asked before the log is read once more: what they wrote last is seen.
Result<AttemptId> RankSave::AwaitRanks(const std::string& what, const Awaited& awaited,
                                       const Look& look) {
  const auto begun = std::chrono::steady_clock::now();
  const std::string name = StepName(id_.run, id_.step);
  std::vector<uint32_t> gone, ranks;
  bool has_said_so = false;
  const Look look_or_give_up = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    std::optional<Result<AttemptId>> found = look(state);
    if (found.has_value()) return found;
    ranks = awaited(state);
    std::vector<uint32_t> lost;
    std::set_intersection(ranks.begin(), ranks.end(), gone.begin(), gone.end(),
                          std::back_inserter(lost));
    if (!lost.empty()) {
      return Status::Aborted(
          NumberList("rank", lost) + " did not " + what + " " + name + ": " +
          (lost.size() == 1 ? "its connection is closed" : "their connections are closed"));
    }
    if (patience_.gone) gone = patience_.gone();
    if (has_said_so || std::chrono::steady_clock::now() - begun < patience_.says_so_after) {
      return std::nullopt;
    }
    has_said_so = true;
    std::fprintf(stderr, "varve: rank %u waits for %s to %s %s, and gives up after %lld ms\n",
                 author_.rank, NumberList("rank", ranks).c_str(), what.c_str(), name.c_str(),
                 static_cast<long long>(patience_.timeout.count()));
    return std::nullopt;
  };
  VARVE_ASSIGN_OR_RETURN(const auto found,
                         log_->Await<Result<AttemptId>>(patience_.timeout, look_or_give_up));
  if (found.has_value()) return *found;
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

// The attempt for this step in which this rank has not taken part yet.
Result<AttemptId> RankSave::AwaitAttempt(const SaveOptions& options) {
  const Look look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    if (!state.IsCurrent(author_)) {
      return Status::Aborted("epoch " + std::to_string(state.epoch) +
                             " of the job has begun; this rank belongs to epoch " +
                             std::to_string(author_.epoch));
    }
    for (const auto& [number, attempt] : state.attempts) {
      if (attempt.committed || attempt.id != id_ || taken_->Has(number)) continue;
      return number;
    }
    for (const auto& [number, outcome] : state.outcomes) {  // given up before this rank came
      if (outcome.id != id_ || outcome.code == StatusCode::kOk || taken_->Has(number)) continue;
      taken_->Take(number);
      is_over_ = true;
      return OutcomeOf(state, number);
    }
    const Status status = CheckMayBegin(state, id_, options);
    return status.ok() ? std::nullopt : std::optional<Result<AttemptId>>(status);
  };
  const Awaited rank_zero = [](const GroupState&) { return std::vector<uint32_t>{0}; };
  Result<AttemptId> attempt = AwaitRanks("begin", rank_zero, look);
  is_over_ = is_over_ || (!attempt.ok() && attempt.status().code() != StatusCode::kIOError);
  return attempt;
}

Status RankSave::Prepare(const GroupPart& part) {
  is_over_ = true;
  part_ = part;
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

Status RankSave::AwaitAllPrepared() {
  const Look look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr) return WhyOver(state);
    if (attempt->committed) {
      VARVE_RETURN_IF_ERROR(Outcome(state));
      return attempt_;
    }
    if (attempt->parts.size() < state.num_ranks) return std::nullopt;
    return attempt_;
  };
  const Awaited awaited = [&](const GroupState& state) {
    return MissingRanks(state, *state.FindAttempt(attempt_));
  };
  return AwaitRanks("save", awaited, look).status();
}

Status RankSave::Commit(const CommitRecord& record) {
  return ProposeAs(log_, author_,
                   [&](const GroupState& state) -> Result<std::optional<RecordBody>> {
                     const GroupAttempt* attempt = state.FindAttempt(attempt_);
                     if (attempt == nullptr) return WhyOver(state);
                     if (attempt->committed) return std::optional<RecordBody>();
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
  const Awaited awaited = [&](const GroupState& state) {
    std::vector<uint32_t> ranks = MissingRanks(state, *state.FindAttempt(attempt_));
    if (ranks.empty() || ranks[0] != 0) ranks.insert(ranks.begin(), 0);
    return ranks;
  };
  const Status waited = AwaitRanks("finish", awaited, look).status();
  if (outcome.has_value()) return *outcome;
  VARVE_RETURN_IF_ERROR(GiveUp(waited));
  log_->With(look);
  return outcome.value_or(Status::Aborted("it is not known how it ended"));
}

Status RankSave::WhyOver(const GroupState& state) const {
  const Status outcome = OutcomeOf(state, attempt_);
  return outcome.ok() ? Dropped() : outcome;
}

// Of an attempt that is open no more.
Status RankSave::Outcome(const GroupState& state) const {
  VARVE_RETURN_IF_ERROR(OutcomeOf(state, attempt_));
  const GroupAttempt* attempt = state.FindAttempt(attempt_);
  if (attempt == nullptr) return is_in_ ? Status::Ok() : Dropped();
  return HasMyPart(*attempt) ? Status::Ok() : NotIn();
}

// Once the parts are in the index, the log has only their members; a member saves once in an
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

// It was committed and is there no more.
Status RankSave::Dropped() const {
  return Status::Aborted(
      StepName(id_.run, id_.step) +
      " was committed and dropped before this rank saw whether its part was in it");
}

std::string RankSave::Waited() const {
  return log_->is_hurried() ? "before this rank left"
                            : "within " + std::to_string(patience_.timeout.count()) + " ms";
}

}  // namespace varve
