// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/byte_buffer.h"
#include "base/told_accesses.h"
#include "codec/entropy/size_error.h"
#include "codec/entropy/stream_decoder.h"
#include "codec/frame.h"
#include "codec/frame_header.h"
#include "codec/frame_replay.h"
#include "codec/planes/class_kernel.h"
#include "codec/planes/layout.h"
#include "codec/planes/plane_kernel.h"
#include "codec/planes/residual_kernel.h"

namespace varve::internal {

namespace {

constexpr size_t kRoundBytes = 8192;

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
    case Predictor::kReplay:
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
  return HasSources(info.predictor) ? ParseThresholds(info, reader, &header->thresholds)
                                    : Status::Ok();
}

// The gradient in the payload of a replayed moment.
struct GradientPart {
  FrameInfo info;  // as if it were a frame of its own, as far as decoding needs it
  std::span<const std::byte> payload;
};

// predictor 1, bytes of the payload 4, payload.
Status TakeGradient(const FrameInfo& info, ByteReader* reader, GradientPart* part) {
  uint32_t bytes = 0;
  if (!reader->Take(&part->info.predictor) || !reader->Take(&bytes) ||
      !reader->TakeSpan(bytes, &part->payload)) {
    return Status::Corruption("gradient is cut short");
  }
  part->info.dtype = DType::kBF16;
  part->info.raw_bytes = info.raw_bytes / 2;
  const Predictor predictor = part->info.predictor;
  if (predictor == Predictor::kKeyframe) return Status::Ok();
  if (predictor == Predictor::kRaw) {
    if (part->payload.size() == part->info.raw_bytes) return Status::Ok();
    return SizeError("raw gradient has", part->payload.size(), part->info.raw_bytes);
  }
  return Status::Corruption("predictor of the gradient is " +
                            std::to_string(static_cast<int>(predictor)) + ", expected 0 or 1");
}

// Takes the mark that a chunk is exactly its prediction, if it is there.
Result<bool> TakeNoResidual(ByteReader* reader) {
  if (reader->rest().empty()) return Status::Corruption("payload is empty");
  if (static_cast<Transform>(reader->rest()[0]) != Transform::kNone) return false;
  if (reader->rest().size() == 1) return true;
  return SizeError("rest of the payload has", reader->rest().size() - 1, 0);
}

void AddRaw(size_t bytes, PlaneUses* uses) {
  PlaneUse& use = (*uses)[static_cast<size_t>(StreamCoder::kRaw)];
  ++use.num_planes;
  use.bytes += static_cast<uint32_t>(bytes);
}

Status AddPlanes(const FrameInfo& info, ByteReader* reader, PlaneUses* uses) {
  PayloadHeader header;
  VARVE_RETURN_IF_ERROR(ParsePayload(info, reader, &header));
  for (size_t p = 0; p < header.transform.element_bytes; ++p) {
    StreamCoder coder{};
    std::span<const std::byte> body;
    VARVE_RETURN_IF_ERROR(
        StreamDecoder::TakeStream(reader, &coder, &body).WithContext("plane " + std::to_string(p)));
    PlaneUse& use = (*uses)[static_cast<size_t>(coder)];
    ++use.num_planes;
    use.bytes += static_cast<uint32_t>(kStreamHeaderBytes + body.size());
  }
  if (!reader->rest().empty()) {
    return SizeError("rest of the payload has", reader->rest().size(), 0);
  }
  return Status::Ok();
}

}  // namespace

Result<PlaneUses> ParsePlanes(std::span<const std::byte> frame) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  PlaneUses uses{};
  ByteReader reader(frame.subspan(HeaderBytes(info)));
  if (info.predictor == Predictor::kRaw) {
    AddRaw(reader.rest().size(), &uses);
    return uses;
  }
  if (info.replay.has_value()) {
    if (info.replay->target == ReplayTarget::kMoment) {
      GradientPart part;
      VARVE_RETURN_IF_ERROR(TakeGradient(info, &reader, &part));
      if (part.info.predictor == Predictor::kRaw) {
        AddRaw(part.payload.size(), &uses);
      } else {
        ByteReader gradient(part.payload);
        VARVE_RETURN_IF_ERROR(AddPlanes(part.info, &gradient, &uses).WithContext("gradient"));
      }
    }
    VARVE_ASSIGN_OR_RETURN(const bool is_exact, TakeNoResidual(&reader));
    if (is_exact) {
      // All that is left of the chunk is one byte, as of a constant plane.
      if (info.replay->target != ReplayTarget::kMoment) {
        uses[static_cast<size_t>(StreamCoder::kConstant)] = {.num_planes = 1, .bytes = 1};
      }
      return uses;
    }
  }
  VARVE_RETURN_IF_ERROR(AddPlanes(info, &reader, &uses));
  return uses;
}

struct FrameDecoder::Scratch {
  CpuLevel level = DetectCpu();
  StreamDecoder streams{level};
  ByteBuffer planes;
  ByteBuffer classes;
  ByteBuffer parts;
  ByteBuffer gradient;    // of a replayed moment
  ByteBuffer prediction;  // of a replay
  std::array<size_t, kMaxClasses> class_counts{};
  bool classified = false;

  Status DecodeReplay(const FrameInfo& info, const FrameSourceBytes& sources, ByteReader* reader,
                      std::span<std::byte> out);
  // The rest of a payload. `base_raw` is empty for a keyframe.
  Status DecodePlanes(const FrameInfo& info, std::span<const std::byte> base_raw,
                      ByteReader* reader, std::span<std::byte> out);
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
  const std::span<const std::byte> payload = frame.subspan(HeaderBytes(info));
  if (payload.size() != info.raw_bytes) {
    return SizeError("raw payload has", payload.size(), info.raw_bytes);
  }
  return payload;
}

Status FrameDecoder::Decode(std::span<const std::byte> frame, const FrameSourceBytes& sources,
                            std::span<std::byte> out) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  if (out.size() != info.raw_bytes) return SizeError("output has", out.size(), info.raw_bytes);
  for (size_t i = 0; i < info.num_sources; ++i) {
    if (sources[i].size() != out.size()) {
      return SizeError("source has", sources[i].size(), out.size());
    }
  }
  TellRead(frame);
  for (size_t i = 0; i < info.num_sources; ++i) TellRead(sources[i]);
  TellWritten(out);
  if (info.predictor == Predictor::kRaw) {
    VARVE_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, RawPayload(frame));
    std::memcpy(out.data(), payload.data(), out.size());
    return Status::Ok();
  }
  ByteReader reader(frame.subspan(HeaderBytes(info)));
  if (info.replay.has_value()) return scratch_->DecodeReplay(info, sources, &reader, out);
  const bool has_base = HasSources(info.predictor);
  return scratch_->DecodePlanes(info, has_base ? sources[0] : std::span<const std::byte>(), &reader,
                                out);
}

Status FrameDecoder::Scratch::DecodeReplay(const FrameInfo& info, const FrameSourceBytes& sources,
                                           ByteReader* reader, std::span<std::byte> out) {
  std::span<const std::byte> of_step;
  if (info.replay->target == ReplayTarget::kMoment) {
    GradientPart part;
    VARVE_RETURN_IF_ERROR(TakeGradient(info, reader, &part));
    of_step = part.payload;
    if (part.info.predictor == Predictor::kKeyframe) {
      gradient.Truncate(0);
      const std::span decoded(reinterpret_cast<std::byte*>(gradient.Room(part.info.raw_bytes)),
                              part.info.raw_bytes);
      ByteReader planes_of_gradient(part.payload);
      VARVE_RETURN_IF_ERROR(
          DecodePlanes(part.info, {}, &planes_of_gradient, decoded).WithContext("gradient"));
      of_step = decoded;
    }
  }
  VARVE_ASSIGN_OR_RETURN(const bool is_exact, TakeNoResidual(reader));
  if (is_exact) {
    PredictReplay(*info.replay, sources, of_step, out, level);
    return Status::Ok();
  }
  prediction.Truncate(0);
  const std::span predicted(reinterpret_cast<std::byte*>(prediction.Room(out.size())), out.size());
  PredictReplay(*info.replay, sources, of_step, predicted, level);
  return DecodePlanes(info, predicted, reader, out);
}

Status FrameDecoder::Scratch::DecodePlanes(const FrameInfo& info,
                                           std::span<const std::byte> base_raw, ByteReader* reader,
                                           std::span<std::byte> out) {
  PayloadHeader header;
  VARVE_RETURN_IF_ERROR(ParsePayload(info, reader, &header));
  const size_t unit_bytes = header.transform.element_bytes;
  const size_t num_units = out.size() / unit_bytes;
  planes.Truncate(0);
  classified = false;
  uint8_t* const room = planes.Room(out.size());
  const uint8_t* pointers[kMaxPlanes];
  for (size_t p = 0; p < unit_bytes; ++p) {
    VARVE_RETURN_IF_ERROR(DecodePlane(reader, info, header, base_raw,
                                      std::span(room + p * num_units, num_units), &pointers[p])
                              .WithContext("plane " + std::to_string(p)));
  }
  if (!reader->rest().empty()) {
    return SizeError("rest of the payload has", reader->rest().size(), 0);
  }
  JoinResidual(header, pointers, base_raw, out);
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
    return JoinRotated(level, std::span(pointers, unit_bytes), num_units, Data(out));
  }
  const size_t round_units = kRoundBytes / unit_bytes;
  alignas(64) uint8_t residual[kRoundBytes];
  for (size_t i = 0; i < num_units; i += round_units) {
    const size_t count = std::min(round_units, num_units - i);
    const uint8_t* from[kMaxPlanes];
    for (size_t p = 0; p < unit_bytes; ++p) from[p] = pointers[p] + i;
    uint8_t* const to = Data(out) + i * unit_bytes;
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
