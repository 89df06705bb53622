// SPDX-License-Identifier: Apache-2.0
#include "store/group/snapshot.h"

#include <map>
#include <vector>

#include "store/group/packed_digest.h"
#include "store/schema/group_generated.h"

namespace varve::internal {

namespace {

Status DamagedSnapshot(const std::string& what) { return Status::Corruption("snapshot: " + what); }

std::string AttemptName(AttemptId attempt) { return "attempt " + std::to_string(attempt); }

std::vector<std::unique_ptr<fb::MetricT>> PackMetrics(const std::map<std::string, double>& in) {
  std::vector<std::unique_ptr<fb::MetricT>> out;
  for (const auto& [name, value] : in) {
    auto metric = std::make_unique<fb::MetricT>();
    metric->name = name;
    metric->value = value;
    out.push_back(std::move(metric));
  }
  return out;
}

// Each crew once.
class CrewPacker {
 public:
  explicit CrewPacker(fb::GroupStateT* out) : out_(out) {}

  // Number + 1, or 0 = none.
  uint32_t Pack(const GroupCrew& crew) {
    if (crew.members == nullptr) return 0;
    if (crew.members == last_) return last_number_;  // in most cases
    last_ = crew.members;
    const auto next = static_cast<uint32_t>(out_->crews.size() + 1);
    const auto [it, is_new] = numbers_.try_emplace(*crew.members, next);
    if (is_new) {
      out_->crews.push_back(std::make_unique<fb::GroupCrewT>());
      out_->crews.back()->members = *crew.members;
    }
    return last_number_ = it->second;
  }

 private:
  fb::GroupStateT* const out_;
  std::map<std::vector<MemberId>, uint32_t> numbers_;
  std::shared_ptr<const std::vector<MemberId>> last_;
  uint32_t last_number_ = 0;
};

std::unique_ptr<fb::GroupAttemptT> PackAttempt(AttemptId number, const GroupAttempt& in,
                                               CrewPacker* crews) {
  auto out = std::make_unique<fb::GroupAttemptT>();
  out->number = number;
  out->committed = in.committed;
  out->nonce = in.nonce;
  out->run = in.id.run;
  out->step = in.id.step;
  out->base = in.base;
  out->on_existing = static_cast<uint8_t>(in.on_existing);
  out->created_us = in.created_us;
  out->catalogue = PackDigest(in.catalogue);
  for (const auto& [rank, part] : in.parts) {
    auto& packed = *out->ranks.emplace_back(std::make_unique<fb::GroupRankT>());
    packed.rank = rank;
    packed.part = std::make_unique<fb::GroupPart>(PackPart(part));
    packed.digest = PackDigest(part.catalogue);
  }
  out->crew = crews->Pack(in.crew);
  out->num_tensors = in.crew_totals.num_tensors;
  out->logical_bytes = in.crew_totals.logical_bytes;
  out->new_bytes = in.crew_totals.new_bytes;
  out->stored_bytes = in.crew_totals.stored_bytes;
  return out;
}

std::unique_ptr<fb::GroupRunT> PackRun(const std::string& name, const GroupRun& in) {
  auto out = std::make_unique<fb::GroupRunT>();
  out->name = name;
  out->is_fork = in.forked_from.has_value();
  if (out->is_fork) {
    out->parent_run = in.forked_from->run;
    out->parent_step = in.forked_from->step;
  }
  for (const auto& [step, entry] : in.steps) {
    auto& packed = *out->steps.emplace_back(std::make_unique<fb::GroupRunStepT>());
    packed.step = step;
    packed.attempt = entry.attempt;
    if (entry.parent.has_value()) {
      packed.parent_run = entry.parent->run;
      packed.parent_step = entry.parent->step;
    }
    packed.metrics = PackMetrics(entry.metrics);
  }
  for (const auto& [tag, step] : in.tags) {
    auto& packed = *out->tags.emplace_back(std::make_unique<fb::GroupTagT>());
    packed.name = tag;
    packed.step = step;
  }
  return out;
}

// Reads the parts in an order in which each names only earlier ones.
class Unpacker {
 public:
  Unpacker(const fb::GroupStateT& in, uint32_t version) : in_(in) { state_.version = version; }

  Result<GroupState> Run() {
    state_.next = in_.next;
    state_.snapshot = in_.snapshot;
    state_.snapshot_before = in_.snapshot_before;
    state_.epoch = in_.epoch;
    state_.epoch_nonce = in_.epoch_nonce;
    state_.num_ranks = in_.num_ranks;
    state_.next_attempt = in_.next_attempt;
    state_.num_closed = in_.num_closed;
    if (state_.next == 0 || state_.snapshot >= state_.next ||
        (state_.snapshot_before >= state_.snapshot && state_.snapshot != 0)) {
      return DamagedSnapshot("its place in the log is impossible");
    }
    VARVE_RETURN_IF_ERROR(Members());
    VARVE_RETURN_IF_ERROR(Crews());
    VARVE_RETURN_IF_ERROR(Attempts());
    VARVE_RETURN_IF_ERROR(Runs());
    VARVE_RETURN_IF_ERROR(PinsAndOutcomes());
    for (const auto& [number, attempt] : state_.attempts) {
      if (attempt.committed == (attempt.names > 0)) continue;
      return DamagedSnapshot(AttemptName(number) + " is " +
                             (attempt.committed ? "committed" : "open") + " and has " +
                             std::to_string(attempt.names) + " names");
    }
    return std::move(state_);
  }

 private:
  Status Members() {
    for (const auto& m : in_.members) {
      if (m->id == 0 || m->epoch > state_.epoch) {
        return DamagedSnapshot("member " + MemberName(m->id) + " of epoch " +
                               std::to_string(m->epoch) + " in epoch " +
                               std::to_string(state_.epoch));
      }
      state_.members[m->id] = {m->host, m->epoch, m->rank};
    }
    for (const fb::GroupRankMember& r : in_.ranks) {
      if (!state_.members.contains(r.member()) || r.rank() >= state_.num_ranks) {
        return DamagedSnapshot("rank " + std::to_string(r.rank()) + " has no member");
      }
      state_.ranks[r.rank()] = r.member();
    }
    return Status::Ok();
  }

  Status Crews() {
    for (const auto& c : in_.crews) {
      for (size_t rank = 0; rank < c->members.size(); ++rank) {
        if (state_.members.contains(c->members[rank])) continue;
        return DamagedSnapshot("a crew names no member for rank " + std::to_string(rank));
      }
      crews_.push_back({std::make_shared<const std::vector<MemberId>>(c->members)});
    }
    return Status::Ok();
  }

  // The crew of an attempt that was committed with an index. Other attempts must not have its
  // fields.
  Status Crew(const fb::GroupAttemptT& in, GroupAttempt* attempt) {
    if (in.crew == 0) return Status::Ok();
    if (state_.version < 2 || in.crew > crews_.size() || !in.committed || !in.ranks.empty()) {
      return DamagedSnapshot(AttemptName(in.number) + " cannot have crew " +
                             std::to_string(in.crew) + " of " + std::to_string(crews_.size()));
    }
    attempt->crew = crews_[in.crew - 1];
    attempt->crew_totals = {.num_tensors = in.num_tensors,
                            .logical_bytes = in.logical_bytes,
                            .new_bytes = in.new_bytes,
                            .stored_bytes = in.stored_bytes};
    return Status::Ok();
  }

  Status Attempts() {
    for (const auto& a : in_.attempts) {
      if (a->number == 0 || a->number >= state_.next_attempt || a->on_existing > 2) {
        return DamagedSnapshot(AttemptName(a->number) + " is not below the next one, " +
                               std::to_string(state_.next_attempt));
      }
      GroupAttempt attempt{.committed = a->committed,
                           .nonce = a->nonce,
                           .id = {a->run, a->step},
                           .base = a->base,
                           .on_existing = static_cast<OnExisting>(a->on_existing),
                           .catalogue = UnpackDigest(a->catalogue),
                           .created_us = a->created_us};
      VARVE_RETURN_IF_ERROR(Crew(*a, &attempt));
      for (const auto& r : a->ranks) {
        if (r->part == nullptr || !state_.members.contains(r->part->member())) {
          return DamagedSnapshot(AttemptName(a->number) + " names no member for rank " +
                                 std::to_string(r->rank));
        }
        GroupPart part = UnpackPart(*r->part);
        part.catalogue = UnpackDigest(r->digest);
        attempt.parts[r->rank] = part;
      }
      if (!attempt.committed) state_.derived.open.insert(a->number);
      state_.attempts[a->number] = std::move(attempt);
    }
    return Status::Ok();
  }

  Status Runs() {
    for (const auto& r : in_.runs) {
      GroupRun& run = state_.runs[r->name];
      if (r->is_fork) run.forked_from = CheckpointId{r->parent_run, r->parent_step};
      for (const auto& s : r->steps) VARVE_RETURN_IF_ERROR(Step(*s, r->name, &run));
      for (const auto& t : r->tags) {
        if (!run.steps.contains(t->step)) {
          return DamagedSnapshot("tag " + t->name + " of run " + r->name + " names no step");
        }
        run.tags[t->name] = t->step;
      }
    }
    return Status::Ok();
  }

  Status Step(const fb::GroupRunStepT& s, const std::string& run_name, GroupRun* run) {
    if (!CountName(s.attempt)) {
      return DamagedSnapshot("step " + std::to_string(s.step) + " of run " + run_name + " names " +
                             AttemptName(s.attempt) + ", which is not committed");
    }
    GroupStep step{.attempt = s.attempt, .parent = {}, .metrics = {}};
    if (!s.parent_run.empty()) step.parent = CheckpointId{s.parent_run, s.parent_step};
    for (const auto& m : s.metrics) step.metrics[m->name] = m->value;
    if (!run->steps.emplace(s.step, std::move(step)).second) {
      return DamagedSnapshot("step " + std::to_string(s.step) + " of run " + run_name +
                             " occurs twice");
    }
    return Status::Ok();
  }

  bool CountName(AttemptId attempt) {
    const auto it = state_.attempts.find(attempt);
    if (it == state_.attempts.end() || !it->second.committed) return false;
    ++it->second.names;
    return true;
  }

  Status PinsAndOutcomes() {
    for (const fb::GroupPin& pin : in_.pins) {
      if (!CountName(pin.attempt()) ||
          !state_.pins.emplace(pin.id(), GroupPin{pin.attempt(), pin.last()}).second) {
        return DamagedSnapshot("a pin names " + AttemptName(pin.attempt()) +
                               ", which is not committed");
      }
    }
    for (const auto& o : in_.outcomes) {
      if (o->code > static_cast<uint8_t>(StatusCode::kAborted)) {
        return DamagedSnapshot(AttemptName(o->attempt) + " ended with code " +
                               std::to_string(o->code));
      }
      state_.outcomes[o->attempt] = {
          {o->run, o->step}, static_cast<StatusCode>(o->code), o->message};
    }
    return Status::Ok();
  }

  const fb::GroupStateT& in_;
  GroupState state_;
  std::vector<GroupCrew> crews_;
};

}  // namespace

fb::GroupPart PackPart(const GroupPart& part) {
  return {part.member,      {part.root.lo, part.root.hi},
          part.num_tensors, part.logical_bytes,
          part.new_bytes,   part.stored_bytes};
}

GroupPart UnpackPart(const fb::GroupPart& in) {
  return {.member = in.member(),
          .root = {in.root().lo(), in.root().hi()},
          .num_tensors = in.num_tensors(),
          .logical_bytes = in.logical_bytes(),
          .new_bytes = in.new_bytes(),
          .stored_bytes = in.stored_bytes()};
}

std::unique_ptr<fb::GroupStateT> PackState(const GroupState& state) {
  auto out = std::make_unique<fb::GroupStateT>();
  out->next = state.next;
  out->snapshot = state.snapshot;
  out->snapshot_before = state.snapshot_before;
  out->epoch = state.epoch;
  out->epoch_nonce = state.epoch_nonce;
  out->num_ranks = state.num_ranks;
  out->next_attempt = state.next_attempt;
  out->num_closed = state.num_closed;
  for (const auto& [id, member] : state.members) {
    auto& packed = *out->members.emplace_back(std::make_unique<fb::GroupMemberT>());
    packed.id = id;
    packed.host = member.host;
    packed.epoch = member.epoch;
    packed.rank = member.rank;
  }
  for (const auto& [rank, member] : state.ranks) out->ranks.emplace_back(rank, member);
  CrewPacker crews(out.get());
  for (const auto& [number, attempt] : state.attempts) {
    out->attempts.push_back(PackAttempt(number, attempt, &crews));
  }
  for (const auto& [name, run] : state.runs) out->runs.push_back(PackRun(name, run));
  for (const auto& [id, pin] : state.pins) out->pins.emplace_back(id, pin.attempt, pin.last);
  for (const auto& [attempt, outcome] : state.outcomes) {
    auto& packed = *out->outcomes.emplace_back(std::make_unique<fb::GroupOutcomeT>());
    packed.attempt = attempt;
    packed.run = outcome.id.run;
    packed.step = outcome.id.step;
    packed.code = static_cast<uint8_t>(outcome.code);
    packed.message = outcome.message;
  }
  return out;
}

Result<GroupState> UnpackState(const fb::GroupStateT& in, uint32_t version) {
  return Unpacker(in, version).Run();
}

}  // namespace varve::internal
