// SPDX-License-Identifier: Apache-2.0
#include "store/format/record.h"

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <tuple>

#include "base/bytes_of.h"
#include "store/format/stored_layout.h"
#include "store/format/verified_buffer.h"
#include "store/schema/record_generated.h"

namespace varve::internal {

namespace {

using flatbuffers::FlatBufferBuilder;

std::string Finish(FlatBufferBuilder* builder, flatbuffers::Offset<void> root) {
  builder->Finish(flatbuffers::Offset<flatbuffers::Table>(root.o));
  return {reinterpret_cast<const char*>(builder->GetBufferPointer()), builder->GetSize()};
}

Status Damaged(std::string_view record, const std::string& what) {
  return Status::Corruption(std::string(record) + " record: " + what);
}

Status NotABuffer(std::string_view record) {
  return Damaged(record, "not a well-formed flatbuffer");
}

fb::Digest ToFb(const Digest& d) { return {d.lo, d.hi}; }
Digest FromFb(const fb::Digest& d) { return {d.lo(), d.hi()}; }

Result<Predictor> CheckPredictor(std::string_view record, uint8_t value) {
  if (value >= kNumPredictors) {
    return Damaged(record, "predictor is " + std::to_string(value) + ", expected less than " +
                               std::to_string(kNumPredictors));
  }
  return static_cast<Predictor>(value);
}

Result<ChunkRef> DecodeRef(const fb::ChunkRef& in, std::string_view literals) {
  ChunkRef ref;
  ref.digest = FromFb(in.digest());
  if (in.kind() > static_cast<uint8_t>(ChunkKind::kDerived)) {
    return Damaged("list", "chunk kind is " + std::to_string(in.kind()) + ", expected at most 3");
  }
  ref.kind = static_cast<ChunkKind>(in.kind());
  VARVE_ASSIGN_OR_RETURN(ref.predictor, CheckPredictor("list", in.predictor()));
  ref.raw_bytes = in.raw_bytes();
  if (ref.raw_bytes == 0 || ref.raw_bytes > kMaxRawBytes) {
    return Damaged("list", "chunk of " + std::to_string(ref.raw_bytes) + " raw bytes");
  }
  if (ref.NamesFrame()) {
    ref.stored_bytes = in.stored_bytes();
    ref.address = {in.birth(), in.ordinal()};
    return ref;
  }
  if (in.ordinal() > literals.size() || in.stored_bytes() > literals.size() - in.ordinal()) {
    return Damaged("list", "literal at " + std::to_string(in.ordinal()) + " of " +
                               std::to_string(in.stored_bytes()) + " bytes lies outside the " +
                               std::to_string(literals.size()) + " literal bytes");
  }
  ref.literal = literals.substr(in.ordinal(), in.stored_bytes());
  const bool whole = ref.kind == ChunkKind::kConstant
                         ? !ref.literal.empty() && ref.raw_bytes % ref.literal.size() == 0
                         : ref.literal.size() == ref.raw_bytes;
  if (!whole) {
    return Damaged("list", "literal of " + std::to_string(ref.literal.size()) +
                               " bytes for a chunk of " + std::to_string(ref.raw_bytes));
  }
  return ref;
}

// Fills the front of `out`.
Status DecodeTotals(const flatbuffers::Vector<const fb::CodecTotals*>& in, const char* what,
                    std::span<CodecTotals> out) {
  if (in.size() > out.size()) {
    return Damaged("save", std::to_string(in.size()) + " " + what + ", expected at most " +
                               std::to_string(out.size()));
  }
  for (uint32_t i = 0; i < in.size(); ++i) {
    out[i] = {in.Get(i)->count(), in.Get(i)->raw_bytes(), in.Get(i)->stored_bytes()};
  }
  return Status::Ok();
}

// Planes are parts of the live frames.
Status CheckCoders(const SaveRecord& record) {
  if (!record.live_coders.has_value()) return Status::Ok();
  CodecTotals left = record.Live();
  for (CodecTotals planes : *record.live_coders) {
    planes.count = 0;
    if (left.Take(planes)) continue;
    return Damaged("save", "more bytes in live planes than in live frames");
  }
  return Status::Ok();
}

Result<std::vector<BaseEdge>> DecodeEdges(const flatbuffers::Vector<const fb::BaseEdge*>& in) {
  std::vector<BaseEdge> out;
  for (const fb::BaseEdge* e : in) {
    BaseEdge edge;
    edge.ordinal = e->ordinal();
    edge.base = {e->base_birth(), e->base_ordinal()};
    edge.base_digest = FromFb(e->base_digest());
    edge.base_raw_bytes = e->base_raw_bytes();
    edge.base_stored_bytes = e->base_stored_bytes();
    VARVE_ASSIGN_OR_RETURN(edge.base_predictor, CheckPredictor("save block", e->base_predictor()));
    if (!out.empty() && out.back().ordinal > edge.ordinal) {
      return Damaged("save block", "ordinals of deltas fall");
    }
    if (out.size() >= kMaxSources && out[out.size() - kMaxSources].ordinal == edge.ordinal) {
      return Damaged("save block",
                     "a frame has more than " + std::to_string(kMaxSources) + " sources");
    }
    out.push_back(edge);
  }
  return out;
}

Result<std::vector<CodedPlanes>> DecodePlanes(
    const flatbuffers::Vector<const fb::CodedPlanes*>& in) {
  std::vector<CodedPlanes> out;
  for (const fb::CodedPlanes* p : in) {
    if (p->coder() >= kNumStreamCoders || p->num_planes() == 0) {
      return Damaged("save block", std::to_string(p->num_planes()) + " planes of coder " +
                                       std::to_string(p->coder()));
    }
    const CodedPlanes planes{.ordinal = p->ordinal(),
                             .coder = static_cast<StreamCoder>(p->coder()),
                             .num_planes = p->num_planes(),
                             .bytes = p->bytes()};
    if (!out.empty() &&
        std::tie(out.back().ordinal, out.back().coder) >= std::tie(planes.ordinal, planes.coder)) {
      return Damaged("save block", "planes are out of order");
    }
    out.push_back(planes);
  }
  return out;
}

}  // namespace

std::string EncodeChunkList(const std::vector<ChunkRef>& refs) {
  FlatBufferBuilder builder(refs.size() * sizeof(fb::ChunkRef) + 64);
  std::vector<fb::ChunkRef> out;
  std::string literals;
  out.reserve(refs.size());
  for (const ChunkRef& ref : refs) {
    const bool literal = !ref.NamesFrame();
    const auto offset = static_cast<uint32_t>(literals.size());
    literals += ref.literal;
    out.emplace_back(
        ToFb(ref.digest), literal ? 0 : ref.address.save_id, literal ? offset : ref.address.ordinal,
        literal ? static_cast<uint32_t>(ref.literal.size()) : ref.stored_bytes, ref.raw_bytes,
        static_cast<uint8_t>(ref.kind), static_cast<uint8_t>(ref.predictor));
  }
  const auto refs_offset = builder.CreateVectorOfStructs(out);
  flatbuffers::Offset<flatbuffers::Vector<uint8_t>> literals_offset;
  if (!literals.empty()) {
    literals_offset =
        builder.CreateVector(reinterpret_cast<const uint8_t*>(literals.data()), literals.size());
  }
  return Finish(&builder, fb::CreateChunkList(builder, refs_offset, literals_offset).Union());
}

Result<std::vector<ChunkRef>> DecodeChunkList(std::string_view value) {
  std::vector<ChunkRef> refs;
  VARVE_RETURN_IF_ERROR(AppendChunkList(value, &refs));
  return refs;
}

Status CheckFits(std::span<const ChunkRef> refs, const ListGeometry& geometry) {
  if (refs.size() != geometry.num_chunks) {
    return Status::Corruption("names " + std::to_string(refs.size()) + " chunks, expected " +
                              std::to_string(geometry.num_chunks));
  }
  for (size_t i = 0; i < refs.size(); ++i) {
    const bool is_last = i + 1 == refs.size();
    const uint64_t expected = is_last ? geometry.last_chunk_bytes : geometry.chunk_bytes;
    if (refs[i].raw_bytes == expected) continue;
    return Status::Corruption("entry " + std::to_string(i) + " has " +
                              std::to_string(refs[i].raw_bytes) + " raw bytes, expected " +
                              std::to_string(expected));
  }
  return Status::Ok();
}

Status AppendChunkList(std::string_view value, std::vector<ChunkRef>* refs) {
  const VerifiedBuffer<fb::ChunkList> buffer(value);
  const auto* list = buffer.root();
  if (list == nullptr || list->refs() == nullptr || !AreAligned(list->refs())) {
    return NotABuffer("list");
  }
  if (list->refs()->size() == 0 || list->refs()->size() > kChunksPerList) {
    return Damaged("list", std::to_string(list->refs()->size()) + " chunks, expected 1 to " +
                               std::to_string(kChunksPerList));
  }
  std::string_view literals;
  if (list->literals() != nullptr) {
    literals = {reinterpret_cast<const char*>(list->literals()->data()), list->literals()->size()};
  }
  refs->reserve(refs->size() + list->refs()->size());
  for (const fb::ChunkRef* in : *list->refs()) {
    VARVE_ASSIGN_OR_RETURN(ChunkRef ref, DecodeRef(*in, literals));
    refs->push_back(std::move(ref));
  }
  return Status::Ok();
}

ChunkGeometry GeometryOf(DType dtype, std::span<const int64_t> shape, uint32_t elements_per_chunk) {
  uint64_t n = 1;
  for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
  return {n, dtype, elements_per_chunk};
}

uint64_t ChunkGeometry::LogicalBytes() const { return BytesOf(dtype, num_elements); }

uint64_t ChunkGeometry::NumChunks() const {
  return (num_elements + elements_per_chunk - 1) / elements_per_chunk;
}

uint64_t ChunkGeometry::ChunkOffset(uint64_t i) const {
  return i * BytesOf(dtype, elements_per_chunk);
}

uint64_t ChunkGeometry::ChunkBytes(uint64_t i) const {
  return std::min(ChunkOffset(i + 1), LogicalBytes()) - ChunkOffset(i);
}

ListGeometry TensorRecord::GeometryOfList(size_t index) const {
  const ChunkGeometry geometry = Geometry();
  const uint64_t first = index * kChunksPerList;
  const uint64_t end = std::min(first + kChunksPerList, geometry.NumChunks());
  return {end - first, geometry.ChunkBytes(first), geometry.ChunkBytes(end - 1)};
}

TensorRecordView TensorRecord::View() const {
  return {TensorSpec::View(), save_id, elements_per_chunk, content, lists};
}

std::string EncodeTensorRecord(const TensorRecordView& record) {
  FlatBufferBuilder builder(256);
  const auto shape = builder.CreateVector(record.shape.data(), record.shape.size());
  const auto list_offset = builder.CreateVectorOfStructs<fb::ListAddress>(
      record.lists.size(), [&](size_t i, fb::ListAddress* list) {
        *list = {record.lists[i].save_id, record.lists[i].number};
      });
  flatbuffers::Offset<flatbuffers::String> alias, derived;
  if (!record.alias_of.empty()) {
    alias = builder.CreateString(record.alias_of.data(), record.alias_of.size());
  }
  if (!record.derived_from.empty()) {
    derived = builder.CreateString(record.derived_from.data(), record.derived_from.size());
  }
  flatbuffers::Offset<fb::ShardLayout> layout;
  if (record.layout != nullptr) layout = EncodeLayout(*record.layout, &builder);
  const fb::Digest content = ToFb(record.content);
  return Finish(&builder,
                fb::CreateTensorRecord(builder, record.save_id, static_cast<uint8_t>(record.dtype),
                                       record.elements_per_chunk, shape, &content, list_offset,
                                       layout, alias, derived, static_cast<uint8_t>(record.role))
                    .Union());
}

Result<TensorRecord> DecodeTensorRecord(std::string_view value) {
  TensorRecord record;
  VARVE_RETURN_IF_ERROR(DecodeTensorRecord(value, &record));
  return record;
}

Status DecodeTensorRecord(std::string_view value, TensorRecord* out) {
  const VerifiedBuffer<fb::TensorRecord> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr || in->shape() == nullptr || in->lists() == nullptr ||
      in->content() == nullptr || !AreAligned(in->shape(), in->lists())) {
    return NotABuffer("tensor");
  }
  out->save_id = in->birth();
  out->dtype = static_cast<DType>(in->dtype());
  const auto bits = static_cast<uint64_t>(DTypeBits(out->dtype));
  if (bits == 0) return Damaged("tensor", "dtype is " + std::to_string(in->dtype()));
  out->elements_per_chunk = in->elements_per_chunk();
  const uint64_t chunk_bits = uint64_t{out->elements_per_chunk} * bits;
  if (chunk_bits == 0 || chunk_bits % 8 != 0 || chunk_bits / 8 > kMaxRawBytes) {
    return Damaged("tensor",
                   std::to_string(out->elements_per_chunk) + " elements a chunk is out of range");
  }
  out->shape.assign(in->shape()->begin(), in->shape()->end());
  if (Result<uint64_t> bytes = NumBytes(out->dtype, out->shape); !bytes.ok()) {
    return Damaged("tensor", bytes.status().message());
  }
  out->content = FromFb(*in->content());
  out->lists.clear();
  for (const fb::ListAddress* list : *in->lists()) {
    out->lists.push_back({list->birth(), list->number()});
  }
  const uint64_t expected = (out->NumChunks() + kChunksPerList - 1) / kChunksPerList;
  if (out->lists.size() != expected) {
    return Damaged("tensor", std::to_string(out->lists.size()) + " lists for " +
                                 std::to_string(out->NumChunks()) + " chunks, expected " +
                                 std::to_string(expected));
  }
  out->alias_of = in->alias_of() != nullptr ? in->alias_of()->string_view() : std::string_view();
  out->derived_from =
      in->derived_from() != nullptr ? in->derived_from()->string_view() : std::string_view();
  const bool is_role_known = in->role() < kNumTensorRoles;
  out->role = is_role_known ? static_cast<TensorRole>(in->role()) : TensorRole::kOther;
  out->layout.reset();
  if (in->layout() != nullptr) {
    Result<ShardLayout> layout = DecodeLayout(*in->layout());
    if (!layout.ok()) return Damaged("tensor", layout.status().message());
    if (layout->LocalShape() != out->shape || !NumBytes(out->dtype, layout->global_shape).ok()) {
      return Damaged("tensor", "the shape does not fit the layout " + ToString(*layout));
    }
    out->layout = *std::move(layout);
  }
  return Status::Ok();
}

std::string EncodeStepRecord(const StepRecord& record) {
  FlatBufferBuilder builder(256);
  builder.ForceDefaults(true);  // a metric of -0.0 keeps its sign
  std::vector<flatbuffers::Offset<fb::Metric>> metrics;
  for (const auto& [name, value] : record.metrics) {
    metrics.push_back(fb::CreateMetric(builder, builder.CreateString(name), value));
  }
  const auto metrics_offset = builder.CreateVector(metrics);
  const fb::Digest root = ToFb(record.root);
  const StepKey parent = record.parent.value_or(StepKey{});
  return Finish(&builder,
                fb::CreateStepRecord(builder, record.save_id, record.created_us,
                                     record.parent.has_value(), parent.run, parent.step,
                                     record.num_tensors, record.num_items, record.logical_bytes,
                                     record.new_bytes, record.stored_bytes, &root, metrics_offset)
                    .Union());
}

Result<StepRecord> DecodeStepRecord(std::string_view value) {
  const VerifiedBuffer<fb::StepRecord> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr || in->root() == nullptr) return NotABuffer("step");
  StepRecord out;
  out.save_id = in->birth();
  out.created_us = in->created_us();
  if (in->has_parent()) out.parent = StepKey{in->parent_run(), in->parent_step()};
  out.num_tensors = in->num_tensors();
  out.num_items = in->num_items();
  out.logical_bytes = in->logical_bytes();
  out.new_bytes = in->new_bytes();
  out.stored_bytes = in->stored_bytes();
  out.root = FromFb(*in->root());
  if (in->metrics() != nullptr) {
    for (const fb::Metric* metric : *in->metrics()) {
      out.metrics[metric->name()->str()] = metric->value();
    }
  }
  return out;
}

std::string EncodeRunRecord(const RunRecord& record) {
  FlatBufferBuilder builder(64);
  const StepKey from = record.forked_from.value_or(StepKey{});
  return Finish(&builder, fb::CreateRunRecord(builder, record.id, record.forked_from.has_value(),
                                              from.run, from.step)
                              .Union());
}

Result<RunRecord> DecodeRunRecord(std::string_view value) {
  const VerifiedBuffer<fb::RunRecord> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr) return NotABuffer("run");
  RunRecord out;
  out.id = in->id();
  if (in->is_fork()) out.forked_from = StepKey{in->parent_run(), in->parent_step()};
  return out;
}

void CodecTotals::Add(const CodecTotals& other) {
  count += other.count;
  raw_bytes += other.raw_bytes;
  stored_bytes += other.stored_bytes;
}

bool CodecTotals::Take(const CodecTotals& other) {
  if (count < other.count || raw_bytes < other.raw_bytes || stored_bytes < other.stored_bytes) {
    return false;
  }
  count -= other.count;
  raw_bytes -= other.raw_bytes;
  stored_bytes -= other.stored_bytes;
  return true;
}

CodecTotals SaveRecord::Live() const {
  CodecTotals all;
  for (const CodecTotals& totals : live) all.Add(totals);
  return all;
}

std::string EncodeSaveRecord(const SaveRecord& record) {
  FlatBufferBuilder builder(256);
  const auto add = [&builder](std::span<const CodecTotals> totals) {
    std::vector<fb::CodecTotals> out;
    for (const CodecTotals& t : totals) out.emplace_back(t.count, t.raw_bytes, t.stored_bytes);
    return builder.CreateVectorOfStructs(out);
  };
  const auto live = add(record.live);
  decltype(add(record.live)) live_coders;
  if (record.live_coders.has_value()) {
    // Programs that know only the first coders refuse more, even when nothing uses them.
    const bool any_rans = record.live_coders->back() != CodecTotals{};
    live_coders =
        add(std::span(*record.live_coders).first(any_rans ? kNumStreamCoders : kFirstCoders));
  }
  return Finish(&builder,
                fb::CreateBirthRecord(builder, record.chunks, record.lists, record.stored_bytes,
                                      record.raw_bytes, record.live_chunks, record.live_lists, live,
                                      live_coders)
                    .Union());
}

Result<SaveRecord> DecodeSaveRecord(std::string_view value) {
  const VerifiedBuffer<fb::BirthRecord> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr || in->live() == nullptr || !AreAligned(in->live(), in->live_coders())) {
    return NotABuffer("save");
  }
  SaveRecord out;
  out.chunks = in->chunks();
  out.lists = in->lists();
  out.stored_bytes = in->stored_bytes();
  out.raw_bytes = in->raw_bytes();
  out.live_chunks = in->live_chunks();
  out.live_lists = in->live_lists();
  VARVE_RETURN_IF_ERROR(DecodeTotals(*in->live(), "codecs", out.live));
  if (in->live_coders() != nullptr) {
    out.live_coders.emplace();
    VARVE_RETURN_IF_ERROR(DecodeTotals(*in->live_coders(), "coders", *out.live_coders));
  }
  if (out.live_chunks > out.chunks || out.live_lists > out.lists) {
    return Damaged("save", "more live than stored");
  }
  // Every frame has a header, so a count that the bytes cannot hold is false. No loop or allocation
  // may follow it.
  if (out.chunks > out.stored_bytes / kMinFrameBytes) {
    return Damaged("save", std::to_string(out.chunks) + " chunks in " +
                               std::to_string(out.stored_bytes) + " bytes");
  }
  VARVE_RETURN_IF_ERROR(CheckCoders(out));
  return out;
}

std::span<const BaseEdge> SaveBlock::EdgesOf(uint32_t ordinal) const {
  const auto begin = std::ranges::lower_bound(edges, ordinal, {}, &BaseEdge::ordinal);
  const auto end = std::ranges::upper_bound(edges, ordinal, {}, &BaseEdge::ordinal);
  return {begin, end};
}

CoderTotals SaveBlock::PlanesOf(uint32_t ordinal, uint32_t raw_bytes) const {
  const auto begin = std::ranges::lower_bound(planes, ordinal, {}, &CodedPlanes::ordinal);
  uint64_t num_planes = 0;
  auto end = begin;
  for (; end != planes.end() && end->ordinal == ordinal; ++end) num_planes += end->num_planes;
  CoderTotals totals{};
  uint64_t planes_before = 0;
  for (auto it = begin; it != end; ++it) {
    // All planes of a frame have the same length. Those of a replayed moment may not, and then this
    // is a share.
    const auto raw_of = [&](uint64_t n) { return raw_bytes * n / num_planes; };
    const uint64_t planes_here = planes_before + it->num_planes;
    totals[static_cast<size_t>(it->coder)] = {
        it->num_planes, raw_of(planes_here) - raw_of(planes_before), it->bytes};
    planes_before = planes_here;
  }
  return totals;
}

std::string EncodeSaveBlock(const SaveBlock& block) {
  FlatBufferBuilder builder(block.edges.size() * sizeof(fb::BaseEdge) +
                            block.planes.size() * sizeof(fb::CodedPlanes) + 64);
  std::vector<fb::BaseEdge> edges;
  edges.reserve(block.edges.size());
  for (const BaseEdge& e : block.edges) {
    edges.emplace_back(ToFb(e.base_digest), e.base.save_id, e.base.ordinal, e.ordinal,
                       e.base_raw_bytes, e.base_stored_bytes,
                       static_cast<uint8_t>(e.base_predictor));
  }
  std::vector<fb::CodedPlanes> planes;
  planes.reserve(block.planes.size());
  for (const CodedPlanes& p : block.planes) {
    planes.emplace_back(p.ordinal, p.bytes, static_cast<uint8_t>(p.coder), p.num_planes);
  }
  const auto edges_offset = builder.CreateVectorOfStructs(edges);
  const auto planes_offset = builder.CreateVectorOfStructs(planes);
  return Finish(&builder, fb::CreateBirthBlock(builder, edges_offset, planes_offset).Union());
}

Result<SaveBlock> DecodeSaveBlock(std::string_view value) {
  const VerifiedBuffer<fb::BirthBlock> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr || in->edges() == nullptr || !AreAligned(in->edges(), in->planes())) {
    return NotABuffer("save block");
  }
  SaveBlock out;
  VARVE_ASSIGN_OR_RETURN(out.edges, DecodeEdges(*in->edges()));
  if (in->planes() != nullptr) {
    VARVE_ASSIGN_OR_RETURN(out.planes, DecodePlanes(*in->planes()));
  }
  return out;
}

std::string EncodeItemRecord(const Digest& digest, std::span<const std::byte> value) {
  FlatBufferBuilder builder(value.size() + 64);
  const auto bytes =
      builder.CreateVector(reinterpret_cast<const uint8_t*>(value.data()), value.size());
  const fb::Digest fb_digest = ToFb(digest);
  return Finish(&builder, fb::CreateItemRecord(builder, &fb_digest, bytes).Union());
}

Result<ItemRecord> DecodeItemRecord(std::string_view value) {
  const VerifiedBuffer<fb::ItemRecord> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr || in->digest() == nullptr || in->value() == nullptr) {
    return NotABuffer("item");
  }
  return ItemRecord{
      FromFb(*in->digest()),
      std::string(reinterpret_cast<const char*>(in->value()->data()), in->value()->size())};
}

}  // namespace varve::internal
