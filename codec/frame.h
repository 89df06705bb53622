// SPDX-License-Identifier: Apache-2.0
//
// A frame is one encoded chunk: a header that says how to decode it, then the payload. Bytes in,
// bytes out: no files, no threads. docs/frame.md describes every byte.
//
//   FrameEncoder encoder;                                        // one a thread: keeps scratch
//   encoder.Encode({.raw = chunk, .dtype = dtype, .digest = digest}, &frame);
//   FrameInfo info = *ParseFrame(frame);
//   FrameDecoder decoder;
//   decoder.Decode(frame, /*base_raw=*/{}, out);                 // out.size() == info.raw_bytes
//
// A frame never changes once it is stored. Decoding takes hostile bytes: every length and table is
// checked and nothing outside the buffers is read or written. The digest of the result is checked
// by the caller, who knows the seed.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "codec/entropy/stream_format.h"
#include "varve/options.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve {

// Where a frame lives in its store. Every base has a smaller address than the frame that uses it.
struct ChunkAddress {
  uint64_t save_id = 0;
  uint32_t ordinal = 0;
  auto operator<=>(const ChunkAddress&) const = default;
};

// How a frame predicts its chunk. Stored on disk; never renumber.
enum class Predictor : uint8_t {
  kRaw = 0,          // the bytes themselves
  kKeyframe = 1,     // planes of the chunk alone
  kDelta = 2,        // planes of the difference to a base
  kScaledDelta = 3,  // planes of the difference to a base times a number
  kReplay = 4,       // kept for optimizer replay; no frame has it yet
};
inline constexpr int kNumPredictors = 5;
std::string_view PredictorName(Predictor predictor);  // "raw", "keyframe", ...

// The largest raw chunk a frame can hold.
inline constexpr uint32_t kMaxRawBytes = uint32_t{64} << 20;

struct FrameInfo {
  Predictor predictor = Predictor::kRaw;
  DType dtype = DType::kU8;
  uint32_t raw_bytes = 0;
  Digest digest;  // of the raw bytes
  // Deltas only.
  std::optional<ChunkAddress> base;
  Digest base_digest;
  // Frames and encoded bytes to decode for this chunk, this frame included: 1 and its own size
  // unless it has a base.
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

// A decoded chunk that a delta may be taken against. The caller has verified its digest.
struct FrameBase {
  ChunkAddress address;
  Digest digest;
  std::span<const std::byte> raw;  // same dtype; a size other than the chunk's rules a delta out
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

struct EncodeInput {
  std::span<const std::byte> raw{};  // 1 to kMaxRawBytes bytes, whole elements
  DType dtype = DType::kU8;
  Digest digest{};                  // of raw; stored, not computed
  const FrameBase* base = nullptr;  // a candidate; the encoder decides whether it pays
  Compression compression = Compression::kAuto;
  // No delta whose chain would exceed these (StoreOptions says what they mean).
  int max_depth = 8;
  double max_path_ratio = 2.0;
  // A delta is taken when it is at most this share of the keyframe.
  double max_delta_share = 0.975;
};

// Thread rule: one thread at a time an encoder.
class FrameEncoder {
 public:
  FrameEncoder();
  ~FrameEncoder();
  // Replaces *frame by the encoded chunk, at most raw + 64 bytes. kInvalidArgument: raw size out of
  // range. Incompressible data is recognised from a sample and stored raw.
  Status Encode(const EncodeInput& input, std::vector<std::byte>* frame);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// Reads and checks the header. kCorruption says which field is wrong, found and expected.
Result<FrameInfo> ParseFrame(std::span<const std::byte> frame);

// The planes of a frame that are stored by one coder.
struct PlaneUse {
  uint8_t num_planes = 0;
  uint32_t bytes = 0;  // of their streams, with what is nested in these
};
using PlaneUses = std::array<PlaneUse, kNumStreamCoders>;  // by StreamCoder

// How the planes of a frame are stored, from the headers of its streams alone. A raw frame is one
// raw plane. What the uses leave over of the frame is headers.
Result<PlaneUses> ParsePlanes(std::span<const std::byte> frame);

// The raw bytes within a frame that holds them as they are, so that they can be used where they
// lie; empty for all other frames. kCorruption as ParseFrame, or when the size is not the header's.
Result<std::span<const std::byte>> RawPayload(std::span<const std::byte> frame);

// Thread rule: one thread at a time a decoder.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  // `out` must have exactly the frame's raw_bytes. `base_raw` is the decoded base of a delta (its
  // digest checked against FrameInfo::base_digest by the caller), empty otherwise.
  Status Decode(std::span<const std::byte> frame, std::span<const std::byte> base_raw,
                std::span<std::byte> out);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// True when all elements of `element_bytes` (1, 2, 4, 8) are the same bit pattern. raw.size() must
// be a multiple of it.
bool IsConstant(std::span<const std::byte> raw, size_t element_bytes);

}  // namespace varve
