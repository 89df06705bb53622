// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/byte_buffer.h"
#include "codec/entropy/size_error.h"
#include "codec/entropy/stream_decoder.h"
#include "codec/frame.h"
#include "codec/frame_header.h"
#include "codec/planes/class_kernel.h"
#include "codec/planes/layout.h"
#include "codec/planes/plane_kernel.h"
#include "codec/planes/residual_kernel.h"

namespace varve::internal {

namespace {

constexpr size_t kRoundBytes = 8192;

const uint8_t* Data(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

// The front of a payload.
struct PayloadHeader {
  TransformArgs transform;
  std::span<const uint8_t> thresholds;
};

Status CheckTransform(const FrameInfo& info, const TransformArgs& args) {
  const Transform transform = args.transform;
  bool fits = false;
  switch (info.predictor) {
    case Predictor::kKeyframe:
      fits = transform <= Transform::kRotate;
      break;
    case Predictor::kDelta:
      fits = transform == Transform::kSubtract || transform == Transform::kSubtractOrd;
      break;
    case Predictor::kScaledDelta:
      fits = transform == Transform::kSubtractScale && info.dtype == DType::kF32;
      break;
    default:
      break;
  }
  if (fits) return Status::Ok();
  return Status::Corruption("transform is " + std::to_string(static_cast<int>(transform)) +
                            ", which no " + std::string(PredictorName(info.predictor)) + " of " +
                            std::string(DTypeName(info.dtype)) + " has");
}

Status ParseThresholds(const FrameInfo& info, ByteReader* reader,
                       std::span<const uint8_t>* thresholds) {
  uint8_t count = 0;
  std::span<const std::byte> bytes;
  if (!reader->Take(&count) || !reader->TakeSpan(count, &bytes)) {
    return Status::Corruption("classes are cut short");
  }
  if (count >= kMaxClasses || (count > 0 && !ContextField(info.dtype))) {
    return Status::Corruption("payload has " + std::to_string(count + 1) + " classes of " +
                              std::string(DTypeName(info.dtype)) + ", expected at most " +
                              std::to_string(ContextField(info.dtype) ? kMaxClasses : 1));
  }
  *thresholds = std::span(Data(bytes), bytes.size());
  for (size_t t = 1; t < count; ++t) {
    if ((*thresholds)[t] >= (*thresholds)[t - 1]) {
      return Status::Corruption("threshold " + std::to_string(t) + " is " +
                                std::to_string((*thresholds)[t]) + ", expected below " +
                                std::to_string((*thresholds)[t - 1]));
    }
  }
  return Status::Ok();
}

Status ParsePayload(const FrameInfo& info, ByteReader* reader, PayloadHeader* header) {
  TransformArgs& args = header->transform;
  args.element_bytes = UnitBytes(info.dtype);
  if (!reader->Take(&args.transform)) return Status::Corruption("payload is empty");
  VARVE_RETURN_IF_ERROR(CheckTransform(info, args));
  if (args.transform == Transform::kSubtractScale) {
    if (!reader->Take(&args.scale)) return Status::Corruption("scale is cut short");
    if (!std::isfinite(args.scale) || args.scale <= 0) {
      return Status::Corruption("scale is " + std::to_string(args.scale) +
                                ", expected a positive number");
    }
  }
  return HasBase(info.predictor) ? ParseThresholds(info, reader, &header->thresholds)
                                 : Status::Ok();
}

}  // namespace

Result<PlaneUses> ParsePlanes(std::span<const std::byte> frame) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  PlaneUses uses{};
  ByteReader reader(frame.subspan(HeaderBytes(info.predictor)));
  if (info.predictor == Predictor::kRaw) {
    uses[static_cast<size_t>(StreamCoder::kRaw)] = {
        .num_planes = 1, .bytes = static_cast<uint32_t>(reader.rest().size())};
    return uses;
  }
  PayloadHeader header;
  VARVE_RETURN_IF_ERROR(ParsePayload(info, &reader, &header));
  for (size_t p = 0; p < header.transform.element_bytes; ++p) {
    StreamCoder coder{};
    std::span<const std::byte> body;
    VARVE_RETURN_IF_ERROR(StreamDecoder::TakeStream(&reader, &coder, &body)
                              .WithContext("plane " + std::to_string(p)));
    PlaneUse& use = uses[static_cast<size_t>(coder)];
    ++use.num_planes;
    use.bytes += static_cast<uint32_t>(kStreamHeaderBytes + body.size());
  }
  if (!reader.rest().empty()) return SizeError("rest of the payload has", reader.rest().size(), 0);
  return uses;
}

struct FrameDecoder::Scratch {
  CpuLevel level = DetectCpu();
  StreamDecoder streams{level};
  ByteBuffer planes;
  ByteBuffer classes;
  ByteBuffer parts;
  std::array<size_t, kMaxClasses> class_counts{};
  bool classified = false;

  Status DecodePlane(ByteReader* reader, const FrameInfo& info, const PayloadHeader& header,
                     std::span<const std::byte> base_raw, std::span<uint8_t> scratch,
                     const uint8_t** plane);
  Status DecodeByClass(std::span<const std::byte> body, const PayloadHeader& header,
                       std::span<uint8_t> plane);
  // *part is null when the whole class is zero.
  Status DecodeClass(ByteReader* reader, std::span<uint8_t> room, const uint8_t** part);
  void JoinResidual(const PayloadHeader& header, const uint8_t* const* pointers,
                    std::span<const std::byte> base_raw, std::span<std::byte> out);
};

FrameDecoder::FrameDecoder() : scratch_(std::make_unique<Scratch>()) {}
FrameDecoder::~FrameDecoder() = default;

Result<std::span<const std::byte>> RawPayload(std::span<const std::byte> frame) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  if (info.predictor != Predictor::kRaw) return std::span<const std::byte>();
  const std::span<const std::byte> payload = frame.subspan(HeaderBytes(info.predictor));
  if (payload.size() != info.raw_bytes) {
    return SizeError("raw payload has", payload.size(), info.raw_bytes);
  }
  return payload;
}

Status FrameDecoder::Decode(std::span<const std::byte> frame, std::span<const std::byte> base_raw,
                            std::span<std::byte> out) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  if (out.size() != info.raw_bytes) return SizeError("output has", out.size(), info.raw_bytes);
  if (HasBase(info.predictor) && base_raw.size() != out.size()) {
    return SizeError("base has", base_raw.size(), out.size());
  }
  if (info.predictor == Predictor::kRaw) {
    VARVE_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, RawPayload(frame));
    std::memcpy(out.data(), payload.data(), out.size());
    return Status::Ok();
  }
  ByteReader reader(frame.subspan(HeaderBytes(info.predictor)));
  PayloadHeader header;
  VARVE_RETURN_IF_ERROR(ParsePayload(info, &reader, &header));
  const size_t unit_bytes = header.transform.element_bytes;
  const size_t num_units = out.size() / unit_bytes;
  scratch_->planes.Truncate(0);
  scratch_->classified = false;
  uint8_t* const room = scratch_->planes.Room(out.size());
  const uint8_t* pointers[kMaxPlanes];
  for (size_t p = 0; p < unit_bytes; ++p) {
    VARVE_RETURN_IF_ERROR(scratch_
                              ->DecodePlane(&reader, info, header, base_raw,
                                            std::span(room + p * num_units, num_units),
                                            &pointers[p])
                              .WithContext("plane " + std::to_string(p)));
  }
  if (!reader.rest().empty()) return SizeError("rest of the payload has", reader.rest().size(), 0);
  scratch_->JoinResidual(header, pointers, base_raw, out);
  return Status::Ok();
}

Status FrameDecoder::Scratch::DecodePlane(ByteReader* reader, const FrameInfo& info,
                                          const PayloadHeader& header,
                                          std::span<const std::byte> base_raw,
                                          std::span<uint8_t> room, const uint8_t** plane) {
  StreamCoder coder{};
  std::span<const std::byte> body;
  VARVE_RETURN_IF_ERROR(StreamDecoder::TakeStream(reader, &coder, &body));
  *plane = room.data();
  if (coder == StreamCoder::kRaw && body.size() == room.size()) {
    *plane = Data(body);  // joined straight from the frame
    return Status::Ok();
  }
  if (coder != StreamCoder::kClasses) return streams.DecodeBody(coder, body, room);
  if (header.thresholds.empty()) return Status::Corruption("stream of classes without classes");
  if (!classified) {
    classes.Truncate(0);
    uint8_t* const ids = classes.Room(room.size());
    ClassifyElements(level, *ContextField(info.dtype), header.thresholds, Data(base_raw),
                     room.size(), ids, &class_counts);
    classified = true;
  }
  return DecodeByClass(body, header, room);
}

Status FrameDecoder::Scratch::DecodeByClass(std::span<const std::byte> body,
                                            const PayloadHeader& header, std::span<uint8_t> plane) {
  const size_t num_classes = header.thresholds.size() + 1;
  parts.Truncate(0);
  uint8_t* room = parts.Room(plane.size() + num_classes * kClassSlack);
  const uint8_t* from[kMaxClasses];
  ByteReader reader(body);
  for (size_t c = 0; c < num_classes; ++c) {
    VARVE_RETURN_IF_ERROR(DecodeClass(&reader, std::span(room, class_counts[c]), &from[c])
                              .WithContext("class " + std::to_string(c)));
    room += class_counts[c] + kClassSlack;
  }
  if (!reader.rest().empty()) return SizeError("rest of the classes has", reader.rest().size(), 0);
  MergeByClass(level, classes.data(), std::span(from, num_classes), plane.size(), plane.data());
  return Status::Ok();
}

Status FrameDecoder::Scratch::DecodeClass(ByteReader* reader, std::span<uint8_t> room,
                                          const uint8_t** part) {
  StreamCoder coder{};
  std::span<const std::byte> body;
  VARVE_RETURN_IF_ERROR(StreamDecoder::TakeStream(reader, &coder, &body));
  const bool zeros = coder == StreamCoder::kConstant && body.size() == 1 && body[0] == std::byte{0};
  *part = zeros ? nullptr : room.data();
  return zeros ? Status::Ok() : streams.DecodeBody(coder, body, room);
}

void FrameDecoder::Scratch::JoinResidual(const PayloadHeader& header,
                                         const uint8_t* const* pointers,
                                         std::span<const std::byte> base_raw,
                                         std::span<std::byte> out) {
  const size_t unit_bytes = header.transform.element_bytes;
  const size_t num_units = out.size() / unit_bytes;
  if (header.transform.transform == Transform::kRotate && (unit_bytes == 2 || unit_bytes == 4)) {
    return JoinRotated(level, std::span(pointers, unit_bytes), num_units,
                       reinterpret_cast<uint8_t*>(out.data()));
  }
  const size_t round_units = kRoundBytes / unit_bytes;
  alignas(64) uint8_t residual[kRoundBytes];
  for (size_t i = 0; i < num_units; i += round_units) {
    const size_t count = std::min(round_units, num_units - i);
    const uint8_t* from[kMaxPlanes];
    for (size_t p = 0; p < unit_bytes; ++p) from[p] = pointers[p] + i;
    uint8_t* const to = reinterpret_cast<uint8_t*>(out.data()) + i * unit_bytes;
    if (header.transform.transform == Transform::kPlain) {
      JoinPlanes(level, std::span(from, unit_bytes), count, to);
      continue;
    }
    JoinPlanes(level, std::span(from, unit_bytes), count, residual);
    InverseTransform(level, header.transform, residual,
                     base_raw.empty() ? nullptr : Data(base_raw) + i * unit_bytes, count, to);
  }
}

}  // namespace varve::internal
