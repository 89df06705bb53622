// SPDX-License-Identifier: Apache-2.0
//
// Verifies a group: its log, its catalogues, every member by itself, and that each member holds
// what the log says. As in a sweep, what a member holds is listed before the log is read.
#include <algorithm>
#include <set>
#include <tuple>

#include "base/util.h"
#include "store/group/attempt_names.h"
#include "store/group/catalogue_index.h"
#include "store/group/group_store.h"

namespace varve::internal {

namespace {

class GroupChecker {
 public:
  GroupChecker(const GroupStore* store, const CheckOptions& options, CheckReport* report)
      : store_(store), options_(options), report_(report) {}

  Status Run() {
    VARVE_RETURN_IF_ERROR(store_->log()->Refresh());
    const auto members = store_->log()->With([](const GroupState& s) { return s.members; });
    for (const auto& [id, member] : members) CheckMember(id);
    VARVE_RETURN_IF_ERROR(store_->log()->Refresh());
    state_ = store_->log()->With([](const GroupState& state) { return state; });
    for (const auto& [id, errors] : errors_of_) {
      if (!state_.members.contains(id)) continue;  // it was removed while it was looked at
      for (const std::string& error : errors) {
        Error("member " + MemberName(id) + ": " + NameAttempts(error, state_));
      }
    }
    for (const auto& [name, run] : state_.runs) report_->num_steps += run.steps.size();
    for (const auto& [number, attempt] : state_.attempts) {
      if (attempt.committed) CheckAttempt(number, attempt);
    }
    for (const AttemptId number : damaged_attempts_) {
      if (const auto id = state_.NameOf(number)) report_->damaged_steps.push_back(*id);
    }
    std::ranges::sort(report_->damaged_steps, {},
                      [](const CheckpointId& id) { return std::tie(id.run, id.step); });
    for (const auto& [member, held] : held_) {
      for (const auto& [number, root] : held) CheckKnown(member, number);
    }
    return Status::Ok();
  }

 private:
  void Error(std::string message) { report_->errors.push_back(std::move(message)); }

  std::string Name(AttemptId number, const GroupAttempt& attempt) const {
    const CheckpointId id = state_.NameOf(number).value_or(attempt.id);
    return StepName(id.run, id.step) + " (attempt " + std::to_string(number) + ")";
  }

  // Opens the member as a store, and lists what it holds.
  void CheckMember(MemberId id) {
    const auto member = store_->MemberForReading(id);
    if (!member.ok()) {
      unreadable_[id] = member.status();  // an error only if an attempt needs it
      return;
    }
    const Result<CheckReport> report = (*member)->Check(options_);
    if (!report.ok()) return errors_of_[id].push_back(report.status().ToString());
    errors_of_[id] = report->errors;
    for (const CheckpointId& step : report->damaged_steps) damaged_[id].insert(step.step);
    for (const std::string& warning : report->warnings) {
      report_->warnings.push_back("member " + MemberName(id) + ": " + warning);
    }
    report_->num_tensors += report->num_tensors;
    report_->num_chunks += report->num_chunks;
    report_->bytes_read += report->bytes_read;
    report_->is_sealed |= report->is_sealed;
    report_->num_sealed_files += report->num_sealed_files;
    const auto held = HeldAttempts(**member);
    if (!held.ok()) return errors_of_[id].push_back(held.status().ToString());
    for (const AttemptId number : *held) {
      const auto step = (*member)->RequireStep({std::string(kMemberRun), number});
      if (step.ok()) held_[id][number] = step->second.root;
    }
  }

  // Checks the attempt's catalogue, and that each part is in its member with the root digest that
  // the log says. If a part was committed after its member was looked at, it looks again.
  void CheckAttempt(AttemptId number, const GroupAttempt& attempt) {
    const GroupPlace& place = store_->place();
    const auto catalogue =
        CatalogueReader::Open({place.root, place.file.digest_seed, number}, attempt);
    if (!catalogue.ok()) ErrorUnlessClosed(number, attempt, catalogue.status().message());
    for (size_t i = 0; catalogue.ok() && i < (*catalogue)->num_sections(); ++i) {
      const Status section = (*catalogue)->Section(i).status();
      if (!section.ok()) ErrorUnlessClosed(number, attempt, section.message());
    }
    for (const auto& [rank, part] : catalogue.ok() ? (*catalogue)->parts() : attempt.parts) {
      const Result<Digest> root = FindRoot(part.member, number);
      const std::string where =
          "the part of rank " + std::to_string(rank) + " in member " + MemberName(part.member);
      if (damaged_[part.member].contains(number) && !IsClosed(number)) {
        damaged_attempts_.insert(number);
      }
      if (!root.ok()) {
        ErrorUnlessClosed(number, attempt, where + ": " + root.status().message());
      } else if (*root != part.root) {
        ErrorUnlessClosed(
            number, attempt,
            where + " has root digest " + ToHex(*root) + ", expected " + ToHex(part.root));
      }
    }
  }

  Result<Digest> FindRoot(MemberId member, AttemptId number) {
    if (const auto it = held_[member].find(number); it != held_[member].end()) return it->second;
    if (const auto it = unreadable_.find(member); it != unreadable_.end()) return it->second;
    VARVE_ASSIGN_OR_RETURN(const auto store, store_->MemberForReading(member));
    VARVE_RETURN_IF_ERROR(store->OpenCheckpoint(kMemberRun, number).status());
    VARVE_ASSIGN_OR_RETURN(const auto step, store->RequireStep({std::string(kMemberRun), number}));
    return step.second.root;
  }

  // Others save and drop during the check, so what they have removed meanwhile need not be there.
  bool IsClosed(AttemptId number) const {
    const Status refreshed = store_->log()->Refresh();
    return refreshed.ok() && store_->log()->With([&](const GroupState& state) {
      return state.FindAttempt(number) == nullptr;
    });
  }
  void ErrorUnlessClosed(AttemptId number, const GroupAttempt& attempt, const std::string& what) {
    if (IsClosed(number)) return;
    Error(Name(number, attempt) + ": " + what);
    damaged_attempts_.insert(number);
  }

  // Closed attempts wait for a sweep. An attempt that has not started yet cannot have been saved.
  void CheckKnown(MemberId member, AttemptId number) {
    if (number < state_.next_attempt) return;
    Error("member " + MemberName(member) + " holds attempt " + std::to_string(number) +
          ", which the log does not know; the next one is " + std::to_string(state_.next_attempt));
  }

  const GroupStore* const store_;
  const CheckOptions& options_;
  CheckReport* const report_;
  GroupState state_;
  std::map<MemberId, std::map<AttemptId, Digest>> held_;
  std::map<MemberId, Status> unreadable_;
  std::map<MemberId, std::vector<std::string>> errors_of_;
  std::map<MemberId, std::set<AttemptId>> damaged_;  // that a member cannot read whole
  std::set<AttemptId> damaged_attempts_;
};

}  // namespace

Result<CheckReport> GroupStore::Check(const CheckOptions& options) const {
  CheckReport report;
  const Status status = GroupChecker(this, options, &report).Run();
  if (status.code() == StatusCode::kCorruption) report.errors.push_back(status.message());
  if (!status.ok() && status.code() != StatusCode::kCorruption) return status;
  if (!GroupStore::options().key.empty() && report.num_sealed_files == 0) {
    report.errors.push_back(place().root.string() +
                            ": a key was given, and no member could be compared with a seal");
  }
  return report;
}

}  // namespace varve::internal
