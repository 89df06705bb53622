// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_state.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/digest.h"
#include "base/util.h"
#include "store/group/mutation.h"

namespace varve::internal {

namespace {

// Records of the trainer's saves. A command writes none of them.
template <typename T>
constexpr bool kIsOfRank = std::is_same_v<T, OwnRecord> || std::is_same_v<T, BeginRecord> ||
                           std::is_same_v<T, PreparedRecord> || std::is_same_v<T, CommitRecord> ||
                           std::is_same_v<T, AbortRecord>;
// Those of them that only rank 0 writes.
template <typename T>
constexpr bool kIsOfCoordinator = std::is_same_v<T, BeginRecord> || std::is_same_v<T, CommitRecord>;

}  // namespace

std::string MemberName(MemberId member) { return Hex16(member); }

const GroupAttempt* GroupState::FindAttempt(AttemptId attempt) const {
  const auto it = attempts.find(attempt);
  return it == attempts.end() ? nullptr : &it->second;
}

const GroupStep* GroupState::FindStep(const CheckpointId& id) const {
  const auto run = runs.find(id.run);
  if (run == runs.end()) return nullptr;
  const auto step = run->second.steps.find(id.step);
  return step == run->second.steps.end() ? nullptr : &step->second;
}

bool GroupState::Names(const NamedAttempt& step) const {
  const GroupStep* found = FindStep(step.id);
  return found != nullptr && found->attempt == step.attempt;
}

bool GroupState::IsCurrent(const Author& author) const {
  if (author.epoch == 0) return true;
  const auto it = ranks.find(author.rank);
  return author.epoch == epoch && it != ranks.end() && it->second == author.member;
}

std::vector<MemberId> GroupState::MembersOfRanks() const {
  std::vector<MemberId> crew;
  if (ranks.size() != num_ranks) return crew;
  for (const auto& [rank, member] : ranks) crew.push_back(member);
  return crew;
}

bool GroupState::IsInUse(MemberId member) const {
  const std::vector<MemberId>* last = nullptr;  // most have the crew of the one before
  return std::any_of(attempts.begin(), attempts.end(), [&](const auto& entry) {
    const auto& parts = entry.second.parts;
    const std::vector<MemberId>* crew = entry.second.crew.members.get();
    const bool is_new = crew != nullptr && crew != last;
    if (is_new) last = crew;
    return (is_new && std::find(crew->begin(), crew->end(), member) != crew->end()) ||
           std::any_of(parts.begin(), parts.end(),
                       [&](const auto& part) { return part.second.member == member; });
  });
}

GroupTotals GroupAttempt::Totals() const {
  GroupTotals totals = crew_totals;
  for (const auto& [rank, part] : parts) totals.Add(part);
  return totals;
}

std::vector<MemberId> GroupAttempt::Members() const {
  if (has_index()) return *crew.members;
  std::vector<MemberId> members;
  for (const auto& [rank, part] : parts) members.push_back(part.member);
  return members;
}

std::string GroupState::FreeForkName(std::string_view run) const {
  for (uint64_t k = 1;; ++k) {
    std::string name = std::string(run) + "~" + std::to_string(k);
    if (!runs.contains(name)) return name;
  }
}

bool GroupState::MayApply(const GroupRecord& record) const {
  return std::visit(
      [&](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        const Author& author = record.author;
        if constexpr (std::is_same_v<Body, OwnRecord>) {  // makes its author current
          return author.epoch != 0 && author.epoch == epoch && author.rank < num_ranks;
        }
        if (kIsOfRank<Body> && author.epoch == 0) return false;
        if (kIsOfCoordinator<Body> && author.rank != 0) return false;
        return IsCurrent(author);
      },
      record.body);
}

void GroupState::Apply(const GroupRecord& record) {
  if (MayApply(record)) {
    std::visit([&](const auto& body) { Do(record.author, body); }, record.body);
  }
  ExpirePins();
  ++next;
}

void GroupState::Do(const Author&, const EpochRecord& r) {
  if (r.epoch != epoch + 1 || r.num_ranks == 0) return;
  epoch = r.epoch;
  epoch_nonce = r.nonce;
  num_ranks = r.num_ranks;
  version = std::max(version, r.version);
  ranks.clear();
  derived.crew = {};
  const std::set<AttemptId> open = derived.open;
  for (const AttemptId number : open) {
    Abort(number, StatusCode::kAborted, "epoch " + std::to_string(epoch) + " of the job began");
  }
}

void GroupState::Do(const Author& author, const OwnRecord& r) {
  const auto it = members.find(author.member);
  if (author.member == 0 || (it != members.end() && it->second.host != r.host)) return;
  members[author.member] = {r.host, author.epoch, author.rank};
  ranks[author.rank] = author.member;
  derived.crew = {};
}

void GroupState::Do(const Author&, const BeginRecord& r) {
  if (r.attempt != next_attempt) return;
  if (r.on_existing == OnExisting::kError && FindStep(r.id) != nullptr) return;
  ++next_attempt;
  attempts[r.attempt] = {
      .nonce = r.nonce, .id = r.id, .base = r.base, .on_existing = r.on_existing};
  derived.open.insert(r.attempt);
}

void GroupState::Do(const Author& author, const PreparedRecord& r) {
  const auto it = attempts.find(r.attempt);
  if (it == attempts.end() || it->second.committed || r.part.member != author.member) return;
  it->second.parts.try_emplace(author.rank, r.part);
}

void GroupState::Do(const Author&, const CommitRecord& r) {
  const auto it = attempts.find(r.attempt);
  if (it == attempts.end() || it->second.committed) return;
  if (r.gathered.has_value()) {
    // Another process has taken the place of a rank since its part was gathered.
    if (!IsCrew(r.gathered->members)) return;
  } else if (it->second.parts.size() != num_ranks) {
    return;
  }
  const CheckpointId id = it->second.id;
  if (!MakeRoom(it->second)) {
    Abort(r.attempt, StatusCode::kAlreadyExists,
          "another writer has committed " + StepName(id.run, id.step) + " meanwhile");
    return;
  }
  it->second.committed = true;
  derived.open.erase(r.attempt);
  it->second.catalogue = r.catalogue;
  it->second.created_us = r.created_us;
  it->second.names = 1;
  if (r.gathered.has_value()) {
    it->second.crew_totals = r.gathered->totals;
    SetCrew(derived.crew, &it->second);
    derived.crew = it->second.crew;
    version = std::max(version, kVersionOfSlots);
  } else if (r.has_index) {
    GivePartsToIndex(&it->second);
    version = std::max(version, kVersionOfIndices);
  }
  GroupRun& run = runs[id.run];
  run.steps[id.step] = {
      .attempt = r.attempt, .parent = NameOf(it->second.base), .metrics = r.metrics};
  for (const std::string& tag : r.tags) run.tags[tag] = id.step;
  SetOutcome(r.attempt, id, StatusCode::kOk, "");
}

void GroupState::GivePartsToIndex(GroupAttempt* attempt) const {
  attempt->crew_totals = attempt->Totals();
  SetCrew({std::make_shared<const std::vector<MemberId>>(attempt->Members())}, attempt);
}

// True when the members of all ranks have this digest.
bool GroupState::IsCrew(const Digest& digest) {
  if (derived.crew.members == nullptr) {
    std::vector<MemberId> all = MembersOfRanks();
    if (all.empty()) return false;
    derived.crew_digest = DigestOfMembers(all);
    derived.crew.members = std::make_shared<const std::vector<MemberId>>(std::move(all));
  }
  return derived.crew_digest == digest;
}

// Instead of parts.
void GroupState::SetCrew(GroupCrew crew, GroupAttempt* attempt) const {
  attempt->parts.clear();
  attempt->crew = std::move(crew);
  for (auto other = attempts.rbegin(); other != attempts.rend(); ++other) {
    if (&other->second == attempt || !other->second.has_index()) continue;
    if (other->second.crew == attempt->crew) attempt->crew = other->second.crew;
    break;
  }
}

// Returns a step that names the attempt: the step it was saved as, if that still names it.
std::optional<CheckpointId> GroupState::NameOf(AttemptId attempt) const {
  const GroupAttempt* found = FindAttempt(attempt);
  if (found == nullptr || !found->committed) return std::nullopt;
  if (Names({found->id, attempt})) return found->id;
  for (const auto& [name, run] : runs) {
    for (const auto& [step, entry] : run.steps) {
      if (entry.attempt == attempt) return CheckpointId{name, step};
    }
  }
  return std::nullopt;
}

// Removes what has the name of the attempt's step. Returns false when the save did not allow that.
bool GroupState::MakeRoom(const GroupAttempt& attempt) {
  const GroupStep* existing = FindStep(attempt.id);
  if (existing == nullptr) return true;
  switch (attempt.on_existing) {
    case OnExisting::kReplace: {  // tags stay with the step
      const AttemptId replaced = existing->attempt;
      runs[attempt.id.run].steps.erase(attempt.id.step);
      ReleaseName(replaced);
      return true;
    }
    case OnExisting::kFork:
      MoveSteps(attempt.id.run, attempt.id.step, FreeForkName(attempt.id.run));
      return true;
    case OnExisting::kError:
      break;
  }
  return false;
}

void GroupState::Do(const Author&, const AbortRecord& r) {
  if (r.code != StatusCode::kOk) Abort(r.attempt, r.code, r.message);
}

void GroupState::Abort(AttemptId attempt, StatusCode code, const std::string& message) {
  const auto it = attempts.find(attempt);
  if (it == attempts.end() || it->second.committed) return;
  SetOutcome(attempt, it->second.id, code, message);
  attempts.erase(it);
  derived.open.erase(attempt);
  ++num_closed;
  // This is the mistake that a test makes on purpose: an address gets a second meaning.
  if (IsMutated(Mutation::kReuseAttempt) && attempt + 1 == next_attempt) --next_attempt;
}

void GroupState::SetOutcome(AttemptId attempt, const CheckpointId& id, StatusCode code,
                            std::string message) {
  outcomes[attempt] = {id, code, std::move(message)};
  if (outcomes.size() > kMaxOutcomes) outcomes.erase(outcomes.begin());
}

void GroupState::Do(const Author&, const DropRecord& r) {
  std::map<std::string, std::set<uint64_t>> removed;
  for (const NamedAttempt& step : r.steps) {
    if (!Names(step)) continue;
    runs[step.id.run].steps.erase(step.id.step);
    ReleaseName(step.attempt);
    removed[step.id.run].insert(step.id.step);
  }
  for (const auto& [run, steps] : removed) TidyRun(run, steps);
}

// Called after steps of a run were removed.
void GroupState::TidyRun(const std::string& name, const std::set<uint64_t>& removed) {
  const auto run = runs.find(name);
  std::erase_if(run->second.tags, [&](const auto& tag) { return removed.contains(tag.second); });
  // A fork without a step is useless. Other runs stay, and keep their names.
  if (run->second.steps.empty() && run->second.forked_from.has_value()) runs.erase(run);
}

void GroupState::ReleaseName(AttemptId attempt) {
  const auto it = attempts.find(attempt);
  if (--it->second.names > 0) return;
  attempts.erase(it);
  ++num_closed;
}

void GroupState::Do(const Author&, const TagRecord& r) {
  if (Names(r.step)) runs[r.step.id.run].tags[r.tag] = r.step.id.step;
}

void GroupState::Do(const Author&, const UntagRecord& r) {
  const auto run = runs.find(r.run);
  if (run != runs.end()) run->second.tags.erase(r.tag);
}

void GroupState::Do(const Author&, const MetricsRecord& r) {
  if (!Names(r.step)) return;
  GroupStep& step = runs[r.step.id.run].steps[r.step.id.step];
  for (const auto& [name, value] : r.metrics) step.metrics[name] = value;
}

void GroupState::Do(const Author&, const ForkRecord& r) {
  if (!Names(r.step) || runs.contains(r.new_run)) return;
  const GroupStep original = *FindStep(r.step.id);
  ++attempts[original.attempt].names;
  GroupRun& run = runs[r.new_run];
  run.forked_from = r.step.id;
  run.steps[r.step.id.step] = {
      .attempt = original.attempt, .parent = r.step.id, .metrics = original.metrics};
}

void GroupState::Do(const Author&, const RewindRecord& r) {
  if (!Names(r.step) || runs.contains(r.new_run) || r.step.id.step == UINT64_MAX) return;
  MoveSteps(r.step.id.run, r.step.id.step + 1, r.new_run);
}

// Gives the steps of a run from `first` on, with their tags, to the new run `to`.
void GroupState::MoveSteps(const std::string& run, uint64_t first, const std::string& to) {
  GroupRun& from = runs.at(run);
  if (from.steps.lower_bound(first) == from.steps.end()) return;
  GroupRun moved;
  moved.forked_from = CheckpointId{run, 0};
  const auto begin = from.steps.lower_bound(first);
  if (begin != from.steps.begin()) moved.forked_from->step = std::prev(begin)->first;
  moved.steps.insert(begin, from.steps.end());
  from.steps.erase(begin, from.steps.end());
  for (auto it = from.tags.begin(); it != from.tags.end();) {
    if (it->second >= first) {
      moved.tags.insert(*it);
      it = from.tags.erase(it);
    } else {
      ++it;
    }
  }
  runs[to] = std::move(moved);
  const auto rename = [&](std::optional<CheckpointId>* id) {
    if (id->has_value() && (*id)->run == run && (*id)->step >= first) (*id)->run = to;
  };
  for (auto& [name, other] : runs) {
    if (name != to) rename(&other.forked_from);
    for (auto& [step, entry] : other.steps) rename(&entry.parent);
  }
}

void GroupState::Do(const Author&, const PinRecord& r) {
  const auto it = attempts.find(r.attempt);
  if (it == attempts.end() || !it->second.committed || r.life > UINT64_MAX - next) return;
  if (pins.try_emplace(r.pin, GroupPin{r.attempt, next + r.life}).second) ++it->second.names;
}

void GroupState::Do(const Author&, const UnpinRecord& r) {
  const auto it = pins.find(r.pin);
  if (it == pins.end()) return;
  const AttemptId attempt = it->second.attempt;
  pins.erase(it);
  ReleaseName(attempt);
}

void GroupState::ExpirePins() {
  for (auto it = pins.begin(); it != pins.end();) {
    if (it->second.last > next) {
      ++it;
      continue;
    }
    const AttemptId attempt = it->second.attempt;
    it = pins.erase(it);
    ReleaseName(attempt);
  }
}

void GroupState::Do(const Author&, const RemoveMemberRecord& r) {
  const auto it = members.find(r.member);
  if (it == members.end() || it->second.epoch == epoch || IsInUse(r.member)) return;
  members.erase(it);
  ++num_closed;
}

void GroupState::Do(const Author&, const SnapshotRecord& r) {
  if (r.state == nullptr) version = std::max(version, kVersionOfSlots);
  snapshot_before = snapshot;
  snapshot = next;
}

}  // namespace varve::internal
