// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_record.h"

#include <algorithm>
#include <cstring>

#include "base/util.h"
#include "store/format/verified_buffer.h"
#include "store/group/group_state.h"
#include "store/group/packed_digest.h"
#include "store/group/snapshot.h"
#include "store/schema/group_generated.h"

namespace varve::internal {

namespace {

// docs/format.md, "A record of the log".
constexpr char kMagic[8] = {'v', 'a', 'r', 'v', 'e', 'l', '\n', '\x1a'};
constexpr size_t kHeaderBytes = 24;

// The kinds are stored. A kind is the index of the type in RecordBody + 1, so never reorder these.
// Two types have been given other kinds since.
constexpr uint8_t kIndexedCommit = 17;
constexpr uint8_t kCrewSnapshot = 18;
constexpr uint8_t kGatheredCommit = 19;
constexpr uint8_t kSnapshotFile = 20;
constexpr uint8_t kLastKind = kSnapshotFile;

template <typename T>
constexpr uint8_t IndexKind() {
  uint8_t kind = 0;
  [&]<size_t... I>(std::index_sequence<I...>) {
    ((std::is_same_v<T, std::variant_alternative_t<I, RecordBody>>
          ? void(kind = static_cast<uint8_t>(I + 1))
          : void()),
     ...);
  }
  (std::make_index_sequence<std::variant_size_v<RecordBody>>());
  return kind;
}

constexpr uint8_t kCommit = IndexKind<CommitRecord>();
constexpr uint8_t kSnapshot = IndexKind<SnapshotRecord>();
static_assert(kCommit == 5 && kSnapshot == 16 && std::variant_size_v<RecordBody> == 16);

template <typename T>
uint8_t KindOf(const T&) {
  return IndexKind<T>();
}
uint8_t KindOf(const CommitRecord& r) {
  if (r.gathered.has_value()) return kGatheredCommit;
  return r.has_index ? kIndexedCommit : kCommit;
}
uint8_t KindOf(const SnapshotRecord& r) {
  if (r.state == nullptr) return kSnapshotFile;
  return r.state->version < kVersionOfIndices ? kSnapshot : kCrewSnapshot;
}

Status DamagedRecord(const std::string& what) { return Status::Corruption("record: " + what); }

// The digest covers the number, so that a record in the place of another is noticed.
Digest Checksum(uint64_t seed, uint64_t number, std::string_view payload) {
  return ComputeDigest(seed ^ number, AsBytes(payload));
}

void PackId(const CheckpointId& id, fb::GroupRecordT* out) {
  out->run = id.run;
  out->step = id.step;
}
void PackStep(const NamedAttempt& step, fb::GroupRecordT* out) {
  PackId(step.id, out);
  out->attempt = step.attempt;
}
NamedAttempt UnpackStep(const fb::GroupRecordT& in) { return {{in.run, in.step}, in.attempt}; }

void PackMetrics(const std::map<std::string, double>& metrics, fb::GroupRecordT* out) {
  for (const auto& [name, value] : metrics) {
    auto& packed = *out->metrics.emplace_back(std::make_unique<fb::MetricT>());
    packed.name = name;
    packed.value = value;
  }
}
std::map<std::string, double> UnpackMetrics(const fb::GroupRecordT& in) {
  std::map<std::string, double> metrics;
  for (const auto& m : in.metrics) metrics[m->name] = m->value;
  return metrics;
}

Result<StatusCode> UnpackError(uint8_t code) {
  if (code == 0 || code > static_cast<uint8_t>(StatusCode::kAborted)) {
    return DamagedRecord("error code is " + std::to_string(code));
  }
  return static_cast<StatusCode>(code);
}

// --- the bodies, each packed and unpacked ---

void Pack(const EpochRecord& r, fb::GroupRecordT* out) {
  out->attempt = r.epoch;
  out->nonce = r.nonce;
  out->num_ranks = r.num_ranks;
  out->version = r.version;
}
Status Unpack(const fb::GroupRecordT& in, EpochRecord* r) {
  *r = {in.attempt, in.nonce, in.num_ranks, std::max(in.version, 1u)};
  if (r->version <= kGroupVersion) return Status::Ok();
  return Status::FailedPrecondition(
      "record: epoch " + std::to_string(r->epoch) + " has made the group one of version " +
      std::to_string(r->version) + ", this varve knows versions up to " +
      std::to_string(kGroupVersion) + "; use a newer varve");
}

void Pack(const OwnRecord& r, fb::GroupRecordT* out) { out->host = r.host; }
Status Unpack(const fb::GroupRecordT& in, OwnRecord* r) {
  r->host = in.host;
  return Status::Ok();
}

void Pack(const BeginRecord& r, fb::GroupRecordT* out) {
  PackStep({r.id, r.attempt}, out);
  out->nonce = r.nonce;
  out->base = r.base;
  out->on_existing = static_cast<uint8_t>(r.on_existing);
}
Status Unpack(const fb::GroupRecordT& in, BeginRecord* r) {
  if (in.on_existing > static_cast<uint8_t>(OnExisting::kFork)) {
    return DamagedRecord("on_existing is " + std::to_string(in.on_existing));
  }
  *r = {.attempt = in.attempt,
        .nonce = in.nonce,
        .id = {in.run, in.step},
        .base = in.base,
        .on_existing = static_cast<OnExisting>(in.on_existing)};
  return ValidateRun(in.run).ok() ? Status::Ok()
                                  : DamagedRecord("run \"" + in.run + "\" is no name");
}

void Pack(const PreparedRecord& r, fb::GroupRecordT* out) {
  out->attempt = r.attempt;
  out->part = std::make_unique<fb::GroupPart>(PackPart(r.part));
  out->digest = PackDigest(r.part.catalogue);
}
Status Unpack(const fb::GroupRecordT& in, PreparedRecord* r) {
  if (in.part == nullptr) return DamagedRecord("names no part");
  r->attempt = in.attempt;
  r->part = UnpackPart(*in.part);
  r->part.catalogue = UnpackDigest(in.digest);
  return Status::Ok();
}

void Pack(const CommitRecord& r, fb::GroupRecordT* out) {
  out->attempt = r.attempt;
  out->digest = PackDigest(r.catalogue);
  out->created_us = r.created_us;
  PackMetrics(r.metrics, out);
  out->tags = r.tags;
  if (!r.gathered.has_value()) return;
  const GroupTotals& totals = r.gathered->totals;
  out->part = std::make_unique<fb::GroupPart>(PackPart({.root = r.gathered->members,
                                                        .num_tensors = totals.num_tensors,
                                                        .logical_bytes = totals.logical_bytes,
                                                        .new_bytes = totals.new_bytes,
                                                        .stored_bytes = totals.stored_bytes,
                                                        .catalogue = {}}));
}
Status Unpack(const fb::GroupRecordT& in, CommitRecord* r) {
  *r = {.attempt = in.attempt,
        .catalogue = UnpackDigest(in.digest),
        .created_us = in.created_us,
        .metrics = UnpackMetrics(in),
        .tags = in.tags,
        .has_index = in.kind != kCommit};
  if (in.kind != kGatheredCommit) return Status::Ok();
  if (in.part == nullptr) return DamagedRecord("names no parts");
  const GroupPart sum = UnpackPart(*in.part);
  r->gathered = {.members = sum.root, .totals = {}};
  r->gathered->totals.Add(sum);
  return Status::Ok();
}

void Pack(const AbortRecord& r, fb::GroupRecordT* out) {
  out->attempt = r.attempt;
  out->code = static_cast<uint8_t>(r.code);
  out->message = r.message;
}
Status Unpack(const fb::GroupRecordT& in, AbortRecord* r) {
  VARVE_ASSIGN_OR_RETURN(r->code, UnpackError(in.code));
  r->attempt = in.attempt;
  r->message = in.message;
  return Status::Ok();
}

void Pack(const DropRecord& r, fb::GroupRecordT* out) {
  for (const NamedAttempt& step : r.steps) {
    auto& packed = *out->steps.emplace_back(std::make_unique<fb::GroupStepT>());
    packed.run = step.id.run;
    packed.step = step.id.step;
    packed.attempt = step.attempt;
  }
}
Status Unpack(const fb::GroupRecordT& in, DropRecord* r) {
  for (const auto& s : in.steps) r->steps.push_back({{s->run, s->step}, s->attempt});
  return Status::Ok();
}

void Pack(const TagRecord& r, fb::GroupRecordT* out) {
  PackStep(r.step, out);
  out->tags = {r.tag};
}
Status Unpack(const fb::GroupRecordT& in, TagRecord* r) {
  if (in.tags.size() != 1)
    return DamagedRecord(std::to_string(in.tags.size()) + " tags, expected 1");
  *r = {UnpackStep(in), in.tags[0]};
  return Status::Ok();
}

void Pack(const UntagRecord& r, fb::GroupRecordT* out) {
  out->run = r.run;
  out->tags = {r.tag};
}
Status Unpack(const fb::GroupRecordT& in, UntagRecord* r) {
  if (in.tags.size() != 1)
    return DamagedRecord(std::to_string(in.tags.size()) + " tags, expected 1");
  *r = {in.run, in.tags[0]};
  return Status::Ok();
}

void Pack(const MetricsRecord& r, fb::GroupRecordT* out) {
  PackStep(r.step, out);
  PackMetrics(r.metrics, out);
}
Status Unpack(const fb::GroupRecordT& in, MetricsRecord* r) {
  *r = {UnpackStep(in), UnpackMetrics(in)};
  return Status::Ok();
}

void Pack(const ForkRecord& r, fb::GroupRecordT* out) {
  PackStep(r.step, out);
  out->new_run = r.new_run;
}
Status Unpack(const fb::GroupRecordT& in, ForkRecord* r) {
  *r = {UnpackStep(in), in.new_run};
  return Status::Ok();
}

void Pack(const RewindRecord& r, fb::GroupRecordT* out) {
  PackStep(r.step, out);
  out->new_run = r.new_run;
}
Status Unpack(const fb::GroupRecordT& in, RewindRecord* r) {
  *r = {UnpackStep(in), in.new_run};
  return Status::Ok();
}

void Pack(const PinRecord& r, fb::GroupRecordT* out) {
  out->nonce = r.pin;
  out->attempt = r.attempt;
  out->life = r.life;
}
Status Unpack(const fb::GroupRecordT& in, PinRecord* r) {
  *r = {in.nonce, in.attempt, in.life};
  return Status::Ok();
}

void Pack(const UnpinRecord& r, fb::GroupRecordT* out) { out->nonce = r.pin; }
Status Unpack(const fb::GroupRecordT& in, UnpinRecord* r) {
  r->pin = in.nonce;
  return Status::Ok();
}

void Pack(const RemoveMemberRecord& r, fb::GroupRecordT* out) { out->nonce = r.member; }
Status Unpack(const fb::GroupRecordT& in, RemoveMemberRecord* r) {
  r->member = in.nonce;
  return Status::Ok();
}

void Pack(const SnapshotRecord& r, fb::GroupRecordT* out) {
  if (r.state == nullptr) {
    out->digest = PackDigest(r.file);
    return;
  }
  out->state = PackState(*r.state);
  if (r.state->version >= kVersionOfSlots) out->version = r.state->version;
}
Status Unpack(const fb::GroupRecordT& in, SnapshotRecord* r) {
  r->file = UnpackDigest(in.digest);
  if (in.kind == kSnapshotFile) return Status::Ok();
  if (in.state == nullptr) return DamagedRecord("a snapshot without a state");
  const uint32_t version =
      in.kind == kSnapshot ? 1 : std::max<uint32_t>(in.version, kVersionOfIndices);
  if (version > kGroupVersion) {
    return DamagedRecord("a snapshot of version " + std::to_string(version));
  }
  VARVE_ASSIGN_OR_RETURN(GroupState state, UnpackState(*in.state, version));
  r->state = std::make_shared<const GroupState>(std::move(state));
  return Status::Ok();
}

// Fills `body` with the alternative that has this kind.
template <size_t I = 0>
Status UnpackBody(const fb::GroupRecordT& in, uint8_t kind, RecordBody* body) {
  if constexpr (I == std::variant_size_v<RecordBody>) {
    return DamagedRecord("kind is " + std::to_string(in.kind) + ", expected 1 to " +
                         std::to_string(kLastKind) + "; a newer varve may know it");
  } else {
    if (kind != I + 1) return UnpackBody<I + 1>(in, kind, body);
    return Unpack(in, &body->emplace<I>());
  }
}

Status UnpackBody(const fb::GroupRecordT& in, RecordBody* body) {
  switch (in.kind) {
    case kIndexedCommit:
    case kGatheredCommit:
      return UnpackBody<0>(in, kCommit, body);
    case kCrewSnapshot:
    case kSnapshotFile:
      return UnpackBody<0>(in, kSnapshot, body);
    default:
      return UnpackBody<0>(in, in.kind, body);
  }
}

}  // namespace

Digest DigestOfMembers(const std::vector<MemberId>& members) {
  std::string bytes;
  for (const MemberId member : members) {
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(member >> (8 * i));
  }
  return ComputeDigest(0, AsBytes(bytes));
}

void GroupTotals::Add(const GroupPart& part) {
  num_tensors += part.num_tensors;
  logical_bytes += part.logical_bytes;
  new_bytes += part.new_bytes;
  stored_bytes += part.stored_bytes;
}

std::string EncodeGroupRecord(uint64_t seed, uint64_t number, const GroupRecord& record) {
  fb::GroupRecordT packed;
  packed.epoch = record.author.epoch;
  packed.rank = record.author.rank;
  packed.member = record.author.member;
  std::visit(
      [&](const auto& body) {
        packed.kind = KindOf(body);
        Pack(body, &packed);
      },
      record.body);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(fb::CreateGroupRecord(builder, &packed));
  const std::string_view payload(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                 builder.GetSize());
  const Digest digest = Checksum(seed, number, payload);
  std::string bytes(kHeaderBytes, '\0');
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  for (int i = 0; i < 8; ++i) {
    bytes[8 + i] = static_cast<char>(digest.lo >> (8 * i));
    bytes[16 + i] = static_cast<char>(digest.hi >> (8 * i));
  }
  return bytes.append(payload);
}

namespace {

bool IsAligned(const fb::GroupState* state) {
  if (state == nullptr) return true;
  if (!AreAligned(state->ranks(), state->pins())) return false;
  if (state->crews() == nullptr) return true;
  return std::all_of(state->crews()->begin(), state->crews()->end(),
                     [](const fb::GroupCrew* crew) { return AreAligned(crew->members()); });
}

}  // namespace

Result<GroupRecord> DecodeGroupRecord(uint64_t seed, uint64_t number, std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return DamagedRecord("not a record of a group (bad magic)");
  }
  const std::string_view payload = bytes.substr(kHeaderBytes);
  const Digest digest = Checksum(seed, number, payload);
  for (int i = 0; i < 8; ++i) {
    if (bytes[8 + i] != static_cast<char>(digest.lo >> (8 * i)) ||
        bytes[16 + i] != static_cast<char>(digest.hi >> (8 * i))) {
      return DamagedRecord("checksum does not match");
    }
  }
  const VerifiedBuffer<fb::GroupRecord> buffer(payload);
  if (buffer.root() == nullptr || !IsAligned(buffer.root()->state())) {
    return DamagedRecord("not a well-formed flatbuffer");
  }
  fb::GroupRecordT packed;
  buffer.root()->UnPackTo(&packed);
  GroupRecord record;
  record.author = {packed.epoch, packed.rank, packed.member};
  VARVE_RETURN_IF_ERROR(UnpackBody(packed, &record.body));
  return record;
}

}  // namespace varve::internal
