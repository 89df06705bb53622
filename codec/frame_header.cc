// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_header.h"

#include <xxhash.h>

#include <string>

#include "base/coding.h"

namespace varve::internal {

namespace {

constexpr uint8_t kMagic = 0xF5;  // no ASCII, no UTF-8
constexpr uint8_t kMaxVersion = 2;
constexpr size_t kChecksumBytes = 8;

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
    return Bad("depth of a delta is " + std::to_string(info.depth) + ", expected at least 2");
  }
  if (info.path_bytes <= frame_bytes) {
    return Bad("path is " + std::to_string(info.path_bytes) + " bytes, expected more than the " +
               std::to_string(frame_bytes) + " of the delta itself");
  }
  return Status::Ok();
}

Status CheckStart(std::span<const std::byte> frame) {
  if (frame.size() < kPlainHeaderBytes) {
    return Bad("frame has " + std::to_string(frame.size()) + " bytes, expected at least " +
               std::to_string(kPlainHeaderBytes));
  }
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
  if (predictor > static_cast<uint8_t>(Predictor::kScaledDelta)) {
    return Bad("predictor is " + std::to_string(predictor) + ", expected 0 to 3");
  }
  if (frame.size() < HeaderBytes(static_cast<Predictor>(predictor))) {
    return Bad("delta frame has " + std::to_string(frame.size()) + " bytes, expected at least " +
               std::to_string(kBaseHeaderBytes));
  }
  return Status::Ok();
}

}  // namespace

// magic 1, version 1, predictor 1, dtype 1, raw bytes 4, digest 16,
// [base save 8, base ordinal 4, depth 4, base digest 16, path bytes 8], checksum 8.
void WriteHeader(const FrameInfo& info, std::span<std::byte> out) {
  std::byte* to = out.data();
  auto put = [&to](auto value) {
    StoreLittle(value, to);
    to += sizeof(value);
  };
  put(kMagic);
  put(info.version);
  put(info.predictor);
  put(info.dtype);
  put(info.raw_bytes);
  put(info.digest.lo);
  put(info.digest.hi);
  if (HasBase(info.predictor)) {
    put(info.base->save_id);
    put(info.base->ordinal);
    put(info.depth);
    put(info.base_digest.lo);
    put(info.base_digest.hi);
    put(info.path_bytes);
  }
  put(HeaderChecksum(out.first(HeaderBytes(info.predictor) - kChecksumBytes)));
}

Result<FrameInfo> ParseFrame(std::span<const std::byte> frame) {
  VARVE_RETURN_IF_ERROR(CheckStart(frame));
  FrameInfo info;
  info.version = static_cast<uint8_t>(frame[1]);
  info.predictor = static_cast<Predictor>(frame[2]);
  info.dtype = static_cast<DType>(frame[3]);
  const size_t header_bytes = HeaderBytes(info.predictor);
  const auto stored = LoadLittle<uint64_t>(&frame[header_bytes - kChecksumBytes]);
  const uint64_t computed = HeaderChecksum(frame.first(header_bytes - kChecksumBytes));
  if (stored != computed) {
    return Bad("checksum is " + std::to_string(stored) + ", expected " + std::to_string(computed));
  }
  info.raw_bytes = LoadLittle<uint32_t>(&frame[4]);
  info.digest = {.lo = LoadLittle<uint64_t>(&frame[8]), .hi = LoadLittle<uint64_t>(&frame[16])};
  info.path_bytes = frame.size();
  VARVE_RETURN_IF_ERROR(CheckFields(info));
  if (!HasBase(info.predictor)) return info;
  info.base = {.save_id = LoadLittle<uint64_t>(&frame[24]),
               .ordinal = LoadLittle<uint32_t>(&frame[32])};
  info.depth = LoadLittle<uint32_t>(&frame[36]);
  info.base_digest = {.lo = LoadLittle<uint64_t>(&frame[40]),
                      .hi = LoadLittle<uint64_t>(&frame[48])};
  info.path_bytes = LoadLittle<uint64_t>(&frame[56]);
  VARVE_RETURN_IF_ERROR(CheckChain(info, frame.size()));
  return info;
}

}  // namespace varve::internal
