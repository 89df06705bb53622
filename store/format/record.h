// SPDX-License-Identifier: Apache-2.0
//
// The records of the database as plain structs, and their encoding as flatbuffers
// (store/schema/record.fbs). Decode verifies the buffer and checks every range before it returns.
// kCorruption says which field is wrong. All types are plain values, and all functions are
// stateless.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/frame.h"
#include "store/format/keys.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal {

enum class ChunkKind : uint8_t {
  kStored = 0,    // a frame at `address`
  kConstant = 1,  // one element, repeated: in the list itself
  kInline = 2,    // up to kMaxInlineBytes raw bytes: in the list itself
  kDerived = 3,   // the rounded copy of the FP32 chunk stored at `address`
};
inline constexpr size_t kMaxInlineBytes = 64;

// One chunk of a tensor.
struct ChunkRef {
  Digest digest;  // of the raw bytes
  ChunkKind kind = ChunkKind::kStored;
  Predictor predictor = Predictor::kRaw;  // of the frame at `address`
  uint32_t raw_bytes = 0;
  uint32_t stored_bytes = 0;  // of the frame at `address`
  ChunkAddress address;       // stored: its frame. Derived: its source's frame
  std::string literal;        // constant: one element. Inline: all bytes

  bool NamesFrame() const { return kind == ChunkKind::kStored || kind == ChunkKind::kDerived; }
  bool operator==(const ChunkRef&) const = default;
};

std::string EncodeChunkList(const std::vector<ChunkRef>& refs);
Result<std::vector<ChunkRef>> DecodeChunkList(std::string_view value);
// Appends the chunks of a list to what is in `refs`. After an error, some may have been appended.
Status AppendChunkList(std::string_view value, std::vector<ChunkRef>* refs);

// What the chunks of a list must be, so that they fit a tensor.
struct ListGeometry {
  uint64_t num_chunks = 0;
  uint64_t chunk_bytes = 0;  // raw bytes of each chunk but the last
  uint64_t last_chunk_bytes = 0;

  auto operator<=>(const ListGeometry&) const = default;
};
// kCorruption says what does not fit.
Status CheckFits(std::span<const ChunkRef> refs, const ListGeometry& geometry);

// How a tensor is cut into chunks.
struct ChunkGeometry {
  uint64_t num_elements = 0;
  DType dtype = DType::kF32;
  uint32_t elements_per_chunk = 0;

  uint64_t LogicalBytes() const;
  uint64_t NumChunks() const;
  // ChunkBytes returns the raw bytes of chunk `i`, the next where the chunk starts in the tensor.
  uint64_t ChunkBytes(uint64_t i) const;
  uint64_t ChunkOffset(uint64_t i) const;
};
// The shape must be valid.
ChunkGeometry GeometryOf(DType dtype, std::span<const int64_t> shape, uint32_t elements_per_chunk);

// The content of a shard's record. Its name and number are in its key, and `data` and `strides` are
// not recorded. A layout is canonical, and its local shape is `shape`.
struct TensorRecordView : TensorView {
  uint64_t save_id = 0;
  uint32_t elements_per_chunk = 0;
  Digest content;
  std::span<const ListAddress> lists;
};

struct TensorRecord : TensorSpec {  // its name is in its key, and empty here
  uint64_t save_id = 0;
  uint32_t elements_per_chunk = 0;
  Digest content;
  std::vector<ListAddress> lists;

  ChunkGeometry Geometry() const { return GeometryOf(dtype, shape, elements_per_chunk); }
  uint64_t NumElements() const { return Geometry().num_elements; }
  uint64_t LogicalBytes() const { return Geometry().LogicalBytes(); }
  uint64_t NumChunks() const { return Geometry().NumChunks(); }
  uint64_t ChunkBytes(uint64_t i) const { return Geometry().ChunkBytes(i); }
  uint64_t ChunkOffset(uint64_t i) const { return Geometry().ChunkOffset(i); }
  ListGeometry GeometryOfList(size_t index) const;
  TensorRecordView View() const;  // valid as long as this does not change
};
std::string EncodeTensorRecord(const TensorRecordView& record);
inline std::string EncodeTensorRecord(const TensorRecord& record) {
  return EncodeTensorRecord(record.View());
}
// Checks shape, sizes, chunk geometry and that the number of lists fits the number of chunks.
Result<TensorRecord> DecodeTensorRecord(std::string_view value);
// The same into `out`, whose memory is reused. After an error `out` may hold anything.
Status DecodeTensorRecord(std::string_view value, TensorRecord* out);

struct StepRecord {
  uint64_t save_id = 0;
  int64_t created_us = 0;
  std::optional<StepKey> parent;
  uint64_t num_tensors = 0;
  uint64_t num_items = 0;
  uint64_t logical_bytes = 0;
  uint64_t new_bytes = 0;
  uint64_t stored_bytes = 0;
  Digest root;
  std::map<std::string, double> metrics;
};
std::string EncodeStepRecord(const StepRecord& record);
Result<StepRecord> DecodeStepRecord(std::string_view value);

struct RunRecord {
  RunId id = 0;
  std::optional<StepKey> forked_from;
};
std::string EncodeRunRecord(const RunRecord& record);
Result<RunRecord> DecodeRunRecord(std::string_view value);

struct CodecTotals {
  uint64_t count = 0;  // chunks, or planes
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  void Add(const CodecTotals& other);
  // Subtracts `other`. When there is not as much, it returns false and changes nothing.
  [[nodiscard]] bool Take(const CodecTotals& other);
  bool operator==(const CodecTotals&) const = default;
};
using PredictorTotals = std::array<CodecTotals, kNumPredictors>;  // of chunks
using CoderTotals = std::array<CodecTotals, kNumStreamCoders>;    // of planes

// No frame is smaller, because its header alone is longer (docs/frame.md).
inline constexpr uint64_t kMinFrameBytes = 16;

// What one save stored, and how much of it lives.
struct SaveRecord {
  uint32_t chunks = 0;
  uint32_t lists = 0;
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  uint32_t live_chunks = 0;
  uint32_t live_lists = 0;
  PredictorTotals live{};
  // The planes of the live frames. The bytes by which they fall short of `live` are headers of
  // frames. Unknown for saves of an older varve, which did not count them.
  std::optional<CoderTotals> live_coders;

  CodecTotals Live() const;  // all of `live`
  bool operator==(const SaveRecord&) const = default;
};
std::string EncodeSaveRecord(const SaveRecord& record);
Result<SaveRecord> DecodeSaveRecord(std::string_view value);

// The frame at `ordinal` is predicted from `base`.
struct BaseEdge {
  uint32_t ordinal = 0;
  ChunkAddress base;
  Digest base_digest;
  uint32_t base_raw_bytes = 0;
  uint32_t base_stored_bytes = 0;
  Predictor base_predictor = Predictor::kRaw;
};

// The planes of the frame at `ordinal` that one coder made.
struct CodedPlanes {
  uint32_t ordinal = 0;
  StreamCoder coder = StreamCoder::kRaw;
  uint8_t num_planes = 0;
  uint32_t bytes = 0;  // of their streams
};

// What 4,096 frames of a save are made of.
struct SaveBlock {
  // By rising ordinal. A frame has as many as it has sources, in their order.
  std::vector<BaseEdge> edges;
  std::vector<CodedPlanes> planes;  // by rising ordinal, then coder. Empty when unknown

  // Returns the edges of a frame.
  std::span<const BaseEdge> EdgesOf(uint32_t ordinal) const;
  // Returns the planes of a frame that holds `raw_bytes`.
  CoderTotals PlanesOf(uint32_t ordinal, uint32_t raw_bytes) const;
};
std::string EncodeSaveBlock(const SaveBlock& block);
Result<SaveBlock> DecodeSaveBlock(std::string_view value);

struct ItemRecord {
  Digest digest;
  std::string value;
};
std::string EncodeItemRecord(const Digest& digest, std::span<const std::byte> value);
Result<ItemRecord> DecodeItemRecord(std::string_view value);

}  // namespace varve::internal
