// SPDX-License-Identifier: Apache-2.0
//
// A frame is one encoded chunk: a header that says how to decode it, then the payload. This code
// uses no files and no threads. docs/frame.md describes every byte.
//
//   FrameEncoder encoder;                                        // one a thread: keeps scratch
//   encoder.Encode({.raw = chunk, .dtype = dtype, .digest = digest}, &frame);
//   FrameInfo info = *ParseFrame(frame);
//   FrameDecoder decoder;
//   decoder.Decode(frame, /*sources=*/{}, out);                  // out.size() == info.raw_bytes
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
#include "codec/predict/adam_replay.h"
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
  kReplay = 4,       // planes of the difference to what an optimizer's step makes of its sources
};
inline constexpr int kNumPredictors = 5;
std::string_view PredictorName(Predictor predictor);  // "raw", "keyframe", ...

// The largest raw chunk a frame can hold.
inline constexpr uint32_t kMaxRawBytes = uint32_t{64} << 20;

// A chunk that another one is predicted from.
struct FrameSource {
  ChunkAddress address;
  Digest digest;  // of its raw bytes
};
inline constexpr size_t kMaxSources = 3;

// Which of its tensors a step is replayed for (adam_replay.h), and from which sources, in their
// order. A prime marks what is after the step. These numbers are on disk: never renumber.
enum class ReplayTarget : uint8_t {
  kMoment = 0,  // m', from m. The frame also has the BF16 gradient
  kSquare = 1,  // v', from m, m', v
  kWeight = 2,  // w', from m', v', w
};
inline constexpr int kNumReplayTargets = 3;
inline constexpr size_t NumSources(ReplayTarget target) {
  return target == ReplayTarget::kMoment ? 1 : 3;
}

struct FrameReplay {
  ReplayTarget target{};
  AdamRecipe recipe;
};

struct FrameInfo {
  // 2 for frames that may hold rANS streams, 3 for replays. Programs that do not know these refuse
  // them.
  uint8_t version = 1;
  Predictor predictor = Predictor::kRaw;
  DType dtype = DType::kU8;
  uint32_t raw_bytes = 0;
  Digest digest;  // of the raw bytes
  // Only replays have one.
  std::optional<FrameReplay> replay;
  // Frames on the longest way to a frame without sources, both ends included.
  uint32_t depth = 1;
  // Encoded bytes of all frames to decode for this chunk, this one included. Each counts once.
  uint64_t path_bytes = 0;

  // What the chunk is predicted from. A delta has one source, its base. A replay has those of its
  // target. Others have none.
  std::span<const FrameSource> sources() const { return std::span(all_sources).first(num_sources); }
  // The last source: the chunk of the same tensor before. Null: there are no sources.
  const FrameSource* base() const {
    return num_sources == 0 ? nullptr : &all_sources[num_sources - 1];
  }
  void AddSource(const FrameSource& source) { all_sources.at(num_sources++) = source; }

  uint8_t num_sources = 0;
  std::array<FrameSource, kMaxSources> all_sources{};
};

// A decoded chunk that another may be predicted from. The caller has verified its digest.
struct FrameBase {
  ChunkAddress address;
  Digest digest;
  std::span<const std::byte>
      raw;  // of the same dtype. If its size differs from the chunk, no delta is made
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

// A step that may predict a chunk.
struct ReplayInput {
  FrameReplay replay;
  // Those of the target, all of F32 and of the size of the chunk.
  std::span<const FrameBase> sources{};
  // Of all sources together. Frames that several of them need count once.
  uint32_t depth = 1;
  uint64_t path_bytes = 0;
};

struct EncodeInput {
  std::span<const std::byte> raw{};  // 1 to kMaxRawBytes bytes, whole elements
  DType dtype = DType::kU8;
  Digest digest{};                  // digest of `raw`, which is stored and not computed
  const FrameBase* base = nullptr;  // a candidate: the encoder decides whether it pays
  // Another candidate, for F32. One whose recipe has no numbers is none. Its path may be as long as
  // the caller likes: a step needs several tensors, so its path is not compared with one keyframe.
  const ReplayInput* replay = nullptr;
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
// one raw plane. A replay without a residual is one constant plane. All bytes of the frame that the
// uses do not count are headers.
Result<PlaneUses> ParsePlanes(std::span<const std::byte> frame);

// Returns the raw bytes within a frame that holds them unchanged, so that they can be used in
// place. It returns an empty span for all other frames. kCorruption as ParseFrame, or when the size
// differs from the header's.
Result<std::span<const std::byte>> RawPayload(std::span<const std::byte> frame);

// The raw bytes of a frame's sources, in their order.
using FrameSourceBytes = std::array<std::span<const std::byte>, kMaxSources>;

// Thread rule: a decoder is used by one thread at a time.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  // `out` must have exactly the frame's raw_bytes. `sources` are decoded already. The caller has
  // checked their digests against FrameInfo::sources. Those that the frame does not have are empty.
  Status Decode(std::span<const std::byte> frame, const FrameSourceBytes& sources,
                std::span<std::byte> out);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// True when all elements of `element_bytes` bytes (1, 2, 4, 8) have the same bit pattern.
// raw.size() must be a multiple of `element_bytes`.
bool IsConstant(std::span<const std::byte> raw, size_t element_bytes);

}  // namespace varve::internal
