// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_header.h"

#include <xxhash.h>

#include <bit>
#include <string>

#include "base/coding.h"

namespace varve::internal {

namespace {

constexpr uint8_t kMagic = 0xF5;  // no ASCII, no UTF-8
constexpr uint8_t kMaxVersion = 3;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kReplayAt = 24;  // in the header

uint64_t HeaderChecksum(std::span<const std::byte> fields) {
  return XXH3_64bits(fields.data(), fields.size());
}

Status Bad(const std::string& what) { return Status::Corruption("frame header: " + what); }

Status CheckFields(const FrameInfo& info) {
  const int bits = DTypeBits(info.dtype);
  if (bits == 0) {
    return Bad("dtype is " + std::to_string(static_cast<int>(info.dtype)) + ", expected 0 to " +
               std::to_string(kNumDTypes - 1));
  }
  if (info.raw_bytes == 0 || info.raw_bytes > kMaxRawBytes) {
    return Bad("raw size is " + std::to_string(info.raw_bytes) + ", expected 1 to " +
               std::to_string(kMaxRawBytes));
  }
  if (bits % 8 == 0 && info.raw_bytes % static_cast<uint32_t>(bits / 8) != 0) {
    return Bad("raw size is " + std::to_string(info.raw_bytes) + ", expected whole elements of " +
               std::to_string(bits / 8) + " bytes");
  }
  return Status::Ok();
}

Status CheckChain(const FrameInfo& info, size_t frame_bytes) {
  if (info.depth < 2) {
    return Bad("depth is " + std::to_string(info.depth) + ", expected at least 2");
  }
  if (info.path_bytes <= frame_bytes) {
    return Bad("path is " + std::to_string(info.path_bytes) + " bytes, expected more than the " +
               std::to_string(frame_bytes) + " of the frame itself");
  }
  return Status::Ok();
}

Status CheckRecipe(const AdamRecipe& recipe) {
  const auto formula = [](const char* of, auto value, int count) {
    if (static_cast<int>(value) < count) return Status::Ok();
    return Bad(std::string("formula of the ") + of + " is " +
               std::to_string(static_cast<int>(value)) + ", expected 0 to " +
               std::to_string(count - 1));
  };
  VARVE_RETURN_IF_ERROR(formula("moment", recipe.moment, kNumMomentFormulas));
  VARVE_RETURN_IF_ERROR(formula("square", recipe.square, kNumSquareFormulas));
  VARVE_RETURN_IF_ERROR(formula("weight", recipe.weight, kNumWeightFormulas));
  return recipe.IsFinite() ? Status::Ok() : Bad("a constant of the step is no number");
}

Status CheckBytes(std::span<const std::byte> frame, const char* kind, size_t at_least) {
  if (frame.size() >= at_least) return Status::Ok();
  return Bad(kind + ("frame has " + std::to_string(frame.size())) + " bytes, expected at least " +
             std::to_string(at_least));
}

Status CheckStart(std::span<const std::byte> frame) {
  VARVE_RETURN_IF_ERROR(CheckBytes(frame, "", kPlainHeaderBytes));
  const auto magic = LoadLittle<uint8_t>(&frame[0]);
  if (magic != kMagic) {
    return Bad("magic is " + std::to_string(magic) + ", expected " + std::to_string(kMagic));
  }
  const auto version = LoadLittle<uint8_t>(&frame[1]);
  if (version == 0 || version > kMaxVersion) {
    return Bad("version is " + std::to_string(version) + ", expected 1 to " +
               std::to_string(kMaxVersion) + "; a newer varve may have written it");
  }
  const auto predictor = LoadLittle<uint8_t>(&frame[2]);
  if (predictor >= kNumPredictors) {
    return Bad("predictor is " + std::to_string(predictor) + ", expected 0 to " +
               std::to_string(kNumPredictors - 1));
  }
  if (static_cast<Predictor>(predictor) == Predictor::kReplay) {
    if (version < 3) {
      return Bad("version of a replay is " + std::to_string(version) + ", expected 3");
    }
    VARVE_RETURN_IF_ERROR(CheckBytes(frame, "replay ", ReplayHeaderBytes(ReplayTarget::kMoment)));
    const auto target = LoadLittle<uint8_t>(&frame[kReplayAt]);
    if (target >= kNumReplayTargets) {
      return Bad("target is " + std::to_string(target) + ", expected 0 to " +
                 std::to_string(kNumReplayTargets - 1));
    }
    return CheckBytes(frame, "replay ", ReplayHeaderBytes(static_cast<ReplayTarget>(target)));
  }
  if (!HasSources(static_cast<Predictor>(predictor))) return Status::Ok();
  return CheckBytes(frame, "delta ", kBaseHeaderBytes);
}

class FieldWriter {
 public:
  explicit FieldWriter(std::byte* to) : to_(to) {}
  template <typename T>
  void Put(T value) {
    StoreLittle(value, to_);
    to_ += sizeof(value);
  }
  void Put(const Digest& digest) {
    Put(digest.lo);
    Put(digest.hi);
  }
  void Put(ChunkAddress address) {
    Put(address.save_id);
    Put(address.ordinal);
  }
  void Put(float value) { Put(std::bit_cast<uint32_t>(value)); }

 private:
  std::byte* to_;
};

// Takes fields of a frame whose size is known to suffice.
class FieldReader {
 public:
  explicit FieldReader(const std::byte* from) : from_(from) {}
  template <typename T>
  T Take() {
    const T value = LoadLittle<T>(from_);
    from_ += sizeof(T);
    return value;
  }
  Digest TakeDigest() {
    Digest digest;
    digest.lo = Take<uint64_t>();
    digest.hi = Take<uint64_t>();
    return digest;
  }
  ChunkAddress TakeAddress() {
    ChunkAddress address;
    address.save_id = Take<uint64_t>();
    address.ordinal = Take<uint32_t>();
    return address;
  }
  float TakeFloat() { return std::bit_cast<float>(Take<uint32_t>()); }

 private:
  const std::byte* from_;
};

// target 1, formulas of moment, square and weight 1 each, nine constants 4 each, has a BF16
// gradient 1, zero 3, depth 4, path bytes 8, [source save 8, source ordinal 4, source digest 16].
void WriteReplay(const FrameInfo& info, FieldWriter* out) {
  const AdamRecipe& recipe = info.replay->recipe;
  out->Put(static_cast<uint8_t>(info.replay->target));
  out->Put(static_cast<uint8_t>(recipe.moment));
  out->Put(static_cast<uint8_t>(recipe.square));
  out->Put(static_cast<uint8_t>(recipe.weight));
  for (const auto constant : AdamRecipe::kConstants) out->Put(recipe.*constant);
  out->Put(static_cast<uint32_t>(recipe.has_bf16_gradient ? 1 : 0));
  out->Put(info.depth);
  out->Put(info.path_bytes);
  for (const FrameSource& source : info.sources()) {
    out->Put(source.address);
    out->Put(source.digest);
  }
}

Status ParseReplay(std::span<const std::byte> frame, FrameInfo* info) {
  FieldReader in(&frame[kReplayAt]);
  FrameReplay& replay = info->replay.emplace();
  AdamRecipe& recipe = replay.recipe;
  replay.target = static_cast<ReplayTarget>(in.Take<uint8_t>());
  recipe.moment = static_cast<MomentFormula>(in.Take<uint8_t>());
  recipe.square = static_cast<SquareFormula>(in.Take<uint8_t>());
  recipe.weight = static_cast<WeightFormula>(in.Take<uint8_t>());
  for (const auto constant : AdamRecipe::kConstants) recipe.*constant = in.TakeFloat();
  VARVE_RETURN_IF_ERROR(CheckRecipe(recipe));
  const auto has_bf16_gradient = in.Take<uint32_t>();
  if (has_bf16_gradient > 1) {
    return Bad("mark of a BF16 gradient is " + std::to_string(has_bf16_gradient) +
               ", expected 0 or 1");
  }
  recipe.has_bf16_gradient = has_bf16_gradient == 1;
  info->depth = in.Take<uint32_t>();
  info->path_bytes = in.Take<uint64_t>();
  for (size_t i = 0; i < NumSources(replay.target); ++i) {
    FrameSource source;
    source.address = in.TakeAddress();
    source.digest = in.TakeDigest();
    info->AddSource(source);
  }
  if (info->dtype == DType::kF32) return Status::Ok();
  return Bad("replay of " + std::string(DTypeName(info->dtype)) + ", expected F32");
}

void ParseBase(std::span<const std::byte> frame, FrameInfo* info) {
  FieldReader in(&frame[kPlainHeaderBytes - kChecksumBytes]);
  FrameSource base;
  base.address = in.TakeAddress();
  info->depth = in.Take<uint32_t>();
  base.digest = in.TakeDigest();
  info->path_bytes = in.Take<uint64_t>();
  info->AddSource(base);
}

// Of a frame that passed CheckStart.
size_t HeaderBytesOf(std::span<const std::byte> frame) {
  const auto predictor = static_cast<Predictor>(frame[2]);
  if (predictor == Predictor::kReplay) {
    return ReplayHeaderBytes(static_cast<ReplayTarget>(frame[kReplayAt]));
  }
  return HasSources(predictor) ? kBaseHeaderBytes : kPlainHeaderBytes;
}

}  // namespace

// magic 1, version 1, predictor 1, dtype 1, raw bytes 4, digest 16,
// [base save 8, base ordinal 4, depth 4, base digest 16, path bytes 8] or [a replay], checksum 8.
void WriteHeader(const FrameInfo& info, std::span<std::byte> out) {
  const size_t fields_bytes = HeaderBytes(info) - kChecksumBytes;
  FieldWriter fields(out.data());
  fields.Put(kMagic);
  fields.Put(info.version);
  fields.Put(static_cast<uint8_t>(info.predictor));
  fields.Put(static_cast<uint8_t>(info.dtype));
  fields.Put(info.raw_bytes);
  fields.Put(info.digest);
  if (info.replay.has_value()) {
    WriteReplay(info, &fields);
  } else if (HasSources(info.predictor)) {
    fields.Put(info.base()->address);
    fields.Put(info.depth);
    fields.Put(info.base()->digest);
    fields.Put(info.path_bytes);
  }
  StoreLittle(HeaderChecksum(out.first(fields_bytes)), out.data() + fields_bytes);
}

Result<FrameInfo> ParseFrame(std::span<const std::byte> frame) {
  VARVE_RETURN_IF_ERROR(CheckStart(frame));
  FrameInfo info;
  info.version = static_cast<uint8_t>(frame[1]);
  info.predictor = static_cast<Predictor>(frame[2]);
  info.dtype = static_cast<DType>(frame[3]);
  const size_t fields_bytes = HeaderBytesOf(frame) - kChecksumBytes;
  const auto stored = LoadLittle<uint64_t>(&frame[fields_bytes]);
  const uint64_t computed = HeaderChecksum(frame.first(fields_bytes));
  if (stored != computed) {
    return Bad("checksum is " + std::to_string(stored) + ", expected " + std::to_string(computed));
  }
  info.raw_bytes = LoadLittle<uint32_t>(&frame[4]);
  info.digest = {.lo = LoadLittle<uint64_t>(&frame[8]), .hi = LoadLittle<uint64_t>(&frame[16])};
  info.path_bytes = frame.size();
  VARVE_RETURN_IF_ERROR(CheckFields(info));
  if (!HasSources(info.predictor)) return info;
  if (info.predictor == Predictor::kReplay) {
    VARVE_RETURN_IF_ERROR(ParseReplay(frame, &info));
  } else {
    ParseBase(frame, &info);
  }
  VARVE_RETURN_IF_ERROR(CheckChain(info, frame.size()));
  return info;
}

}  // namespace varve::internal
