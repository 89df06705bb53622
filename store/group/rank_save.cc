// SPDX-License-Identifier: Apache-2.0
#include "store/group/rank_save.h"

#include <random>
#include <utility>

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

// "rank 2", "ranks 2, 3".
std::string MissingRanks(const GroupState& state, const GroupAttempt& attempt) {
  std::string ranks;
  size_t n = 0;
  for (uint32_t rank = 0; rank < state.num_ranks; ++rank) {
    if (attempt.parts.contains(rank)) continue;
    ranks += (n++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return (n == 1 ? "rank " : "ranks ") + ranks;
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

RankSave::RankSave(GroupLog* log, const Author& author, std::chrono::milliseconds timeout,
                   AttemptsTaken* taken, CheckpointId id)
    : log_(log),
      author_(author),
      timeout_(timeout),
      taken_(taken),
      id_(std::move(id)),
      nonce_(RandomNumber()) {}

Result<AttemptId> RankSave::Begin(const SaveOptions& options) {
  VARVE_ASSIGN_OR_RETURN(attempt_,
                         author_.rank == 0 ? BeginAttempt(options) : AwaitAttempt(options));
  taken_->Take(attempt_);
  return attempt_;
}

Result<AttemptId> RankSave::BeginAttempt(const SaveOptions& options) {
  VARVE_RETURN_IF_ERROR(ProposeAs(log_, author_, [&](const GroupState& state) {
    return ProposeBegin(state, author_, id_, options, nonce_, &attempt_);
  }));
  return attempt_;
}

// The attempt for this step in which this rank has not taken part yet.
Result<AttemptId> RankSave::AwaitAttempt(const SaveOptions& options) {
  const auto look = [&](const GroupState& state) -> std::optional<Result<AttemptId>> {
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
      return OutcomeOf(state, number);
    }
    const Status status = CheckMayBegin(state, id_, options);
    return status.ok() ? std::nullopt : std::optional<Result<AttemptId>>(status);
  };
  VARVE_ASSIGN_OR_RETURN(const auto attempt, log_->Await<Result<AttemptId>>(timeout_, look));
  if (attempt.has_value()) return *attempt;
  return Status::Aborted("rank 0 did not begin " + StepName(id_.run, id_.step) + " " + Waited());
}

Status RankSave::Prepare(const GroupPart& part) {
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
  VARVE_ASSIGN_OR_RETURN(const auto status,
                         log_->Await<Status>(timeout_, [&](const GroupState& state) {
                           const GroupAttempt* attempt = state.FindAttempt(attempt_);
                           if (attempt == nullptr) return std::optional(WhyOver(state));
                           if (attempt->committed) return std::optional(Outcome(state));
                           const bool all = attempt->parts.size() == state.num_ranks;
                           return all ? std::optional(Status::Ok()) : std::nullopt;
                         }));
  if (status.has_value()) return *status;
  return log_->With([&](const GroupState& state) {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr) return WhyOver(state);
    return Status::Aborted(MissingRanks(state, *attempt) + " did not save " + Waited());
  });
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
  const std::string message = "rank " + std::to_string(author_.rank) + ": " + why.message();
  return log_->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt == nullptr || attempt->committed) return std::optional<GroupRecord>();
    if (!state.IsCurrent(author_)) return Replaced(state, author_);
    return std::optional(GroupRecord{author_, AbortRecord{attempt_, why.code(), message}});
  });
}

Status RankSave::AwaitOutcome() {
  const auto look = [&](const GroupState& state) -> std::optional<Status> {
    const GroupAttempt* attempt = state.FindAttempt(attempt_);
    if (attempt != nullptr && !attempt->committed) return std::nullopt;
    return Outcome(state);
  };
  VARVE_ASSIGN_OR_RETURN(auto status, log_->Await<Status>(timeout_, look));
  if (status.has_value()) return *status;
  VARVE_RETURN_IF_ERROR(GiveUp(Status::Aborted("rank 0 did not decide " + Waited())));
  status = log_->With(look);
  return status.value_or(Status::Aborted("it is not known how it ended"));
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
                            : "within " + std::to_string(timeout_.count()) + " ms";
}

}  // namespace varve
