// SPDX-License-Identifier: Apache-2.0
//
// A frame is one encoded chunk: a header that says how to decode it, then the payload. This code
// uses no files and no threads. docs/frame.md describes every byte.
//
//   FrameEncoder encoder;                                        // one a thread: keeps scratch
//   encoder.Encode({.raw = chunk, .dtype = dtype, .digest = digest}, &frame);
//   FrameInfo info = *ParseFrame(frame);
//   FrameDecoder decoder;
//   decoder.Decode(frame, /*base_raw=*/{}, out);                 // out.size() == info.raw_bytes
//
// A frame never changes once it is stored. Decoding takes hostile bytes: it checks every length and
// table, and reads and writes nothing outside the buffers. The caller checks the digest of the
// result, because the caller knows the seed.
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

namespace varve::internal {

// Where a frame lives in its store. Every base has a smaller address than the frame that uses it.
struct ChunkAddress {
  uint64_t save_id = 0;
  uint32_t ordinal = 0;
  auto operator<=>(const ChunkAddress&) const = default;
};

// How a frame predicts its chunk. These numbers are on disk: never renumber.
enum class Predictor : uint8_t {
  kRaw = 0,          // the bytes themselves
  kKeyframe = 1,     // planes of the chunk alone
  kDelta = 2,        // planes of the difference to a base
  kScaledDelta = 3,  // planes of the difference to a base times a number
  kReplay = 4,       // kept for optimizer replay. No frame has it yet
};
inline constexpr int kNumPredictors = 5;
std::string_view PredictorName(Predictor predictor);  // "raw", "keyframe", ...

// The largest raw chunk a frame can hold.
inline constexpr uint32_t kMaxRawBytes = uint32_t{64} << 20;

struct FrameInfo {
  // 2 for frames that may hold rANS streams. Programs that do not know these refuse them.
  uint8_t version = 1;
  Predictor predictor = Predictor::kRaw;
  DType dtype = DType::kU8;
  uint32_t raw_bytes = 0;
  Digest digest;  // of the raw bytes
  // Only deltas have one.
  std::optional<ChunkAddress> base;
  Digest base_digest;
  // Frames to decode for this chunk, this one included, and their encoded bytes. A frame without a
  // base has 1 and its own size.
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

// A decoded chunk that a delta may be taken against. The caller has verified its digest.
struct FrameBase {
  ChunkAddress address;
  Digest digest;
  std::span<const std::byte>
      raw;  // of the same dtype. If its size differs from the chunk, no delta is made
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

struct EncodeInput {
  std::span<const std::byte> raw{};  // 1 to kMaxRawBytes bytes, whole elements
  DType dtype = DType::kU8;
  Digest digest{};                  // digest of `raw`, which is stored and not computed
  const FrameBase* base = nullptr;  // a candidate: the encoder decides whether it pays
  // By what F32 elements of the base are multiplied, if the caller knows it. Then no other scale is
  // tried, and no context: 1 is for a base that is a prediction.
  std::optional<float> scale{};
  Compression compression = Compression::kAuto;
  Entropy entropy = Entropy::kAuto;
  // No delta is made whose chain would exceed these limits (StoreOptions explains them).
  int max_depth = 8;
  double max_path_ratio = 2.0;
  // A delta is kept when it is at most this share of the keyframe.
  double max_delta_share = 0.975;
};

// Thread rule: an encoder is used by one thread at a time.
class FrameEncoder {
 public:
  FrameEncoder();
  ~FrameEncoder();
  // Replaces *frame by the encoded chunk, which has at most raw.size() + 64 bytes.
  // kInvalidArgument: the size of `raw` is out of range. It recognises incompressible data from a
  // sample and stores it raw.
  Status Encode(const EncodeInput& input, std::vector<std::byte>* frame);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// Reads and checks the header. kCorruption names the wrong field, what was found, and what was
// expected.
Result<FrameInfo> ParseFrame(std::span<const std::byte> frame);

// The planes of a frame that are stored by one coder.
struct PlaneUse {
  uint8_t num_planes = 0;
  uint32_t bytes = 0;  // of their streams, including nested ones
};
using PlaneUses = std::array<PlaneUse, kNumStreamCoders>;  // by StreamCoder

// Tells how the planes of a frame are stored, from the headers of its streams alone. A raw frame is
// one raw plane. All bytes of the frame that the uses do not count are headers.
Result<PlaneUses> ParsePlanes(std::span<const std::byte> frame);

// Returns the raw bytes within a frame that holds them unchanged, so that they can be used in
// place. It returns an empty span for all other frames. kCorruption as ParseFrame, or when the size
// differs from the header's.
Result<std::span<const std::byte>> RawPayload(std::span<const std::byte> frame);

// Thread rule: a decoder is used by one thread at a time.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  // `out` must have exactly the frame's raw_bytes. `base_raw` is the decoded base of a delta, and
  // empty for other frames. The caller has checked its digest against FrameInfo::base_digest.
  Status Decode(std::span<const std::byte> frame, std::span<const std::byte> base_raw,
                std::span<std::byte> out);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// True when all elements of `element_bytes` bytes (1, 2, 4, 8) have the same bit pattern.
// raw.size() must be a multiple of `element_bytes`.
bool IsConstant(std::span<const std::byte> raw, size_t element_bytes);

}  // namespace varve::internal
