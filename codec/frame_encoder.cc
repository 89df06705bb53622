// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/byte_buffer.h"
#include "base/told_accesses.h"
#include "codec/entropy/stream_encoder.h"
#include "codec/frame.h"
#include "codec/frame_header.h"
#include "codec/frame_replay.h"
#include "codec/plan.h"
#include "codec/planes/class_kernel.h"
#include "codec/planes/layout.h"
#include "codec/planes/plane_kernel.h"
#include "codec/planes/residual_kernel.h"

namespace varve::internal {

namespace {

// Units per round of transform and split: in and out stay in the L1 cache.
constexpr size_t kRoundBytes = 8192;

// A replay of at most this share of the keyframe is taken without a look at the delta. One of a
// wrong hint is larger.
constexpr double kGoodReplay = 0.25;

Status CheckReplay(const EncodeInput& input) {
  if (input.replay == nullptr) return Status::Ok();
  if (input.dtype != DType::kF32) {
    return Status::InvalidArgument("a replay of " + std::string(DTypeName(input.dtype)) +
                                   ", expected F32");
  }
  const auto [replay, sources, depth, path_bytes] = *input.replay;
  const size_t wanted = NumSources(replay.target);
  bool fit = sources.size() == wanted;
  for (const FrameBase& source : sources) fit = fit && source.raw.size() == input.raw.size();
  if (fit) return Status::Ok();
  return Status::InvalidArgument("a replay of " + std::to_string(input.raw.size()) +
                                 " bytes, expected " + std::to_string(wanted) +
                                 " sources of that size");
}

Status CheckInput(const EncodeInput& input) {
  const float scale = input.scale.value_or(1.0f);
  if (scale != 1.0f && !(input.dtype == DType::kF32 && std::isfinite(scale) && scale > 0)) {
    return Status::InvalidArgument("the scale of a base of " + std::string(DTypeName(input.dtype)) +
                                   " is " + std::to_string(scale) +
                                   ", expected a positive number for F32 and 1 for others");
  }
  VARVE_RETURN_IF_ERROR(CheckReplay(input));
  const size_t raw_bytes = input.raw.size();
  const auto element_bytes = static_cast<size_t>(std::max(DTypeBits(input.dtype) / 8, 1));
  if (DTypeBits(input.dtype) > 0 && raw_bytes > 0 && raw_bytes <= kMaxRawBytes &&
      raw_bytes % element_bytes == 0) {
    return Status::Ok();
  }
  return Status::InvalidArgument("chunk has " + std::to_string(raw_bytes) + " bytes of " +
                                 std::string(DTypeName(input.dtype)) + ", expected 1 to " +
                                 std::to_string(kMaxRawBytes) + " bytes of whole elements");
}

FrameInfo InfoOf(const EncodeInput& input, Predictor predictor, size_t payload_bytes) {
  FrameInfo info;
  info.predictor = predictor;
  info.dtype = input.dtype;
  info.raw_bytes = static_cast<uint32_t>(input.raw.size());
  info.digest = input.digest;
  if (predictor == Predictor::kReplay) {
    info.replay = input.replay->replay;
    for (const FrameBase& source : input.replay->sources) {
      info.AddSource({source.address, source.digest});
    }
    info.depth = input.replay->depth + 1;
    info.path_bytes = input.replay->path_bytes;
  } else if (HasSources(predictor)) {
    info.AddSource({input.base->address, input.base->digest});
    info.depth = input.base->depth + 1;
    info.path_bytes = input.base->path_bytes;
  }
  info.path_bytes += HeaderBytes(info) + payload_bytes;
  return info;
}

void WriteFrame(const EncodeInput& input, uint8_t version, Predictor predictor,
                std::span<const std::byte> payload, std::vector<std::byte>* frame) {
  std::byte header[kMaxHeaderBytes];
  FrameInfo info = InfoOf(input, predictor, payload.size());
  info.version = version;
  const size_t header_bytes = HeaderBytes(info);
  WriteHeader(info, header);
  frame->clear();
  frame->reserve(header_bytes + payload.size());
  frame->insert(frame->end(), header, header + header_bytes);
  frame->insert(frame->end(), payload.begin(), payload.end());
}

bool IsInteger(DType dtype) { return !IsSignedFloat(dtype) && dtype != DType::kF8E8M0; }

bool MayUseDepth(const EncodeInput& input, uint32_t depth) {
  const bool wanted =
      input.compression == Compression::kAuto || input.compression == Compression::kMax;
  return wanted && static_cast<int64_t>(depth) + 1 <= input.max_depth;
}

// True when a base may be used at all: the codec wants one, sizes agree, and the chain is not too
// deep.
bool MayUseBase(const EncodeInput& input) {
  return input.base != nullptr && input.base->raw.size() == input.raw.size() &&
         MayUseDepth(input, input.base->depth);
}
bool MayReplay(const EncodeInput& input) {
  return input.replay != nullptr && input.replay->replay.recipe.IsFinite() &&
         MayUseDepth(input, input.replay->depth);
}

FrameSourceBytes SourcesOf(const ReplayInput& replay) {
  FrameSourceBytes sources;
  for (size_t i = 0; i < replay.sources.size(); ++i) sources[i] = replay.sources[i].raw;
  return sources;
}

// True when the chain stays cheap to restore, and the delta is worth a second read.
bool DeltaPays(const EncodeInput& input, double delta_bytes, double keyframe_bytes) {
  const double path_bytes = static_cast<double>(input.base->path_bytes) + delta_bytes;
  return delta_bytes <= input.max_delta_share * keyframe_bytes &&
         path_bytes <= input.max_path_ratio * keyframe_bytes;
}

}  // namespace

struct FrameEncoder::Scratch {
  CpuLevel level = DetectCpu();
  RansUse rans = RansUse::kNever;
  Planner planner{level};
  StreamEncoder streams{level};
  ByteBuffer planes;
  ByteBuffer classes;
  ByteBuffer parts;       // one plane, class by class
  ByteBuffer payload;     // of the frame
  ByteBuffer trial;       // one that may replace it
  ByteBuffer replayed;    // the payload of a replay
  ByteBuffer gradient;    // of a moment, as it is
  ByteBuffer prediction;  // of a replay
  std::array<size_t, kMaxClasses> class_counts{};

  // Both leave the payload in `payload`, unless they return kRaw. The first follows the estimates
  // of a sample. The second makes every frame and keeps the smallest.
  Predictor EncodeEstimated(const EncodeInput& input);
  Predictor EncodeSmallest(const EncodeInput& input);
  double ReplayBytes(const EncodeInput& input) const;  // of the frame
  // Leaves the payload in `replayed`.
  void EncodeReplay(const EncodeInput& input);
  // Appends the predictor of the gradient, the bytes of its payload, and this.
  void AppendGradient(const EncodeInput& input, ByteBuffer* out);
  // Appends a payload. `base` is empty for a keyframe.
  void AppendPayload(const EncodeInput& input, std::span<const std::byte> base, const Plan& plan,
                     ByteBuffer* out);
  // Appends the streams of the raw planes at the front, for SplitResidual to fill in. Returns their
  // number.
  static size_t PlaceRawPlanes(const EncodeInput& input, const Plan& plan, size_t num_units,
                               uint8_t** pointers, ByteBuffer* out);
  void SplitResidual(const EncodeInput& input, std::span<const std::byte> base, const Plan& plan,
                     uint8_t* const* pointers);
  void Classify(DType dtype, std::span<const std::byte> base, const Plan& plan, size_t num_units);
  void AppendByClass(const Plan& plan, size_t p, const uint8_t* plane, size_t num_units,
                     ByteBuffer* out);
};

FrameEncoder::FrameEncoder() : scratch_(std::make_unique<Scratch>()) {}
FrameEncoder::~FrameEncoder() = default;

Status FrameEncoder::Encode(const EncodeInput& input, std::vector<std::byte>* frame) {
  VARVE_RETURN_IF_ERROR(CheckInput(input));
  TellRead(input.raw);
  if (input.base != nullptr) TellRead(input.base->raw);
  if (MayReplay(input)) {
    for (const FrameBase& source : input.replay->sources) TellRead(source.raw);
  }
  Predictor predictor = Predictor::kRaw;
  const uint64_t rans_before = scratch_->streams.num_rans();
  const bool plain_look =
      !MayUseBase(input) && !MayReplay(input) && input.compression != Compression::kMax;
  if (input.compression != Compression::kNone &&
      !(plain_look && LooksIncompressible(input.raw, input.dtype))) {
    const RansUse rans = RansUseAt(scratch_->level, input.entropy);
    scratch_->rans = rans;
    scratch_->streams.SetRans(rans);
    if (MayReplay(input)) scratch_->EncodeReplay(input);
    scratch_->planner.Look(input.raw, input.dtype, rans);
    predictor = input.compression == Compression::kMax ? scratch_->EncodeSmallest(input)
                                                       : scratch_->EncodeEstimated(input);
  }
  const bool raw = predictor == Predictor::kRaw;
  const bool has_rans = !raw && scratch_->streams.num_rans() > rans_before;
  const int version = predictor == Predictor::kReplay ? 3 : has_rans ? 2 : 1;
  WriteFrame(input, static_cast<uint8_t>(version), predictor,
             raw ? input.raw : scratch_->payload.bytes(), frame);
  TellWritten(*frame);
  return Status::Ok();
}

Predictor FrameEncoder::Scratch::EncodeEstimated(const EncodeInput& input) {
  const auto raw_bytes = static_cast<double>(input.raw.size());
  const Plan keyframe = planner.Keyframe();
  const double keyframe_bytes = std::min(keyframe.estimated_bytes, raw_bytes) + kPlainHeaderBytes;
  const double replay_bytes =
      MayReplay(input) ? ReplayBytes(input) : std::numeric_limits<double>::infinity();
  const auto take_replay = [this] {
    std::swap(payload, replayed);
    return Predictor::kReplay;
  };
  if (replay_bytes <= kGoodReplay * keyframe_bytes) return take_replay();
  if (MayUseBase(input)) {
    const Plan delta = planner.Delta(input.base->raw, input.scale);
    const double delta_bytes = delta.estimated_bytes + kBaseHeaderBytes;
    if (delta_bytes < replay_bytes && DeltaPays(input, delta_bytes, keyframe_bytes)) {
      payload.Truncate(0);
      AppendPayload(input, input.base->raw, delta, &payload);
      const auto made_bytes = static_cast<double>(payload.size() + kBaseHeaderBytes);
      if (DeltaPays(input, made_bytes, keyframe_bytes)) return delta.predictor;
    }
  }
  if (replay_bytes <= input.max_delta_share * keyframe_bytes) return take_replay();
  // Integers may still repeat themselves, and the estimate does not see that.
  if (keyframe.estimated_bytes >= 0.99 * raw_bytes && !IsInteger(input.dtype)) {
    return Predictor::kRaw;
  }
  payload.Truncate(0);
  AppendPayload(input, {}, keyframe, &payload);
  return payload.size() < input.raw.size() ? Predictor::kKeyframe : Predictor::kRaw;
}

Predictor FrameEncoder::Scratch::EncodeSmallest(const EncodeInput& input) {
  payload.Truncate(0);
  AppendPayload(input, {}, planner.Keyframe(), &payload);
  Predictor best = payload.size() < input.raw.size() ? Predictor::kKeyframe : Predictor::kRaw;
  size_t best_bytes = kPlainHeaderBytes + std::min(payload.size(), input.raw.size());
  const double max_path_bytes = input.max_path_ratio * static_cast<double>(best_bytes);
  if (MayReplay(input) && ReplayBytes(input) < static_cast<double>(best_bytes)) {
    best = Predictor::kReplay;
    best_bytes = static_cast<size_t>(ReplayBytes(input));
    std::swap(payload, replayed);
  }
  if (!MayUseBase(input)) return best;
  for (const Plan& plan : planner.Deltas(input.base->raw, input.scale)) {
    trial.Truncate(0);
    AppendPayload(input, input.base->raw, plan, &trial);
    const size_t bytes = kBaseHeaderBytes + trial.size();
    const double path_bytes =
        static_cast<double>(input.base->path_bytes) + static_cast<double>(bytes);
    if (bytes >= best_bytes || path_bytes > max_path_bytes) continue;
    std::swap(payload, trial);
    best_bytes = bytes;
    best = plan.predictor;
  }
  return best;
}

double FrameEncoder::Scratch::ReplayBytes(const EncodeInput& input) const {
  const size_t header_bytes = ReplayHeaderBytes(input.replay->replay.target);
  return static_cast<double>(replayed.size() + header_bytes);
}

// [gradient], a payload against the prediction, or that there is none because it is exact.
void FrameEncoder::Scratch::EncodeReplay(const EncodeInput& input) {
  const FrameReplay& replay = input.replay->replay;
  const FrameSourceBytes sources = SourcesOf(*input.replay);
  replayed.Truncate(0);
  gradient.Truncate(0);
  if (replay.target == ReplayTarget::kMoment) AppendGradient(input, &replayed);
  if (IsPredicted(replay, sources, gradient.bytes(), input.raw, level)) {
    replayed.Append(Transform::kNone);
    return;
  }
  prediction.Truncate(0);
  auto* const room = reinterpret_cast<std::byte*>(prediction.Room(input.raw.size()));
  const std::span predicted(room, input.raw.size());
  PredictReplay(replay, sources, gradient.bytes(), predicted, level);
  planner.Look(input.raw, input.dtype, rans);
  AppendPayload(input, predicted, planner.Delta(predicted, 1.0f), &replayed);
}

void FrameEncoder::Scratch::AppendGradient(const EncodeInput& input, ByteBuffer* out) {
  const size_t bytes = input.raw.size() / 2;
  auto* const room = reinterpret_cast<std::byte*>(gradient.Room(bytes));
  RecoverGradient(input.replay->replay.recipe, input.replay->sources[0].raw, input.raw,
                  std::span(room, bytes), level);
  gradient.Advance(bytes);
  EncodeInput part;
  part.raw = gradient.bytes();
  part.dtype = DType::kBF16;
  const size_t start = out->size();
  out->Append(Predictor::kKeyframe);
  out->Append(uint32_t{0});
  const size_t body = out->size();
  planner.Look(part.raw, part.dtype, rans);
  AppendPayload(part, {}, planner.Keyframe(), out);
  if (out->size() - body >= bytes) {
    out->Truncate(start);
    out->Append(Predictor::kRaw);
    out->Append(uint32_t{0});
    out->AppendBytes(Data(part.raw), bytes);
  }
  const auto body_bytes = static_cast<uint32_t>(out->size() - body);
  std::memcpy(out->data() + start + 1, &body_bytes, sizeof(body_bytes));
}

// transform 1, [scale 4], [number of thresholds 1, thresholds], one stream a plane.
void FrameEncoder::Scratch::AppendPayload(const EncodeInput& input, std::span<const std::byte> base,
                                          const Plan& plan, ByteBuffer* out) {
  const size_t unit_bytes = plan.transform.element_bytes;
  const size_t num_units = input.raw.size() / unit_bytes;
  out->Append(plan.transform.transform);
  if (plan.transform.transform == Transform::kSubtractScale) out->Append(plan.transform.scale);
  if (!base.empty()) {
    out->Append(static_cast<uint8_t>(plan.thresholds.size()));
    out->AppendBytes(plan.thresholds.data(), plan.thresholds.size());
  }
  uint8_t* pointers[kMaxPlanes];
  const size_t num_raw = PlaceRawPlanes(input, plan, num_units, pointers, out);
  planes.Truncate(0);
  uint8_t* const room = planes.Room(input.raw.size());
  for (size_t p = num_raw; p < unit_bytes; ++p) pointers[p] = room + p * num_units;
  SplitResidual(input, base, plan, pointers);
  if (!plan.thresholds.empty()) Classify(input.dtype, base, plan, num_units);
  for (size_t p = num_raw; p < unit_bytes; ++p) {
    if (plan.by_class[p]) {
      AppendByClass(plan, p, pointers[p], num_units, out);
    } else if (IsInteger(input.dtype)) {
      streams.AppendBest(pointers[p], num_units, out);
    } else {
      streams.Append(pointers[p], num_units, plan.coders[p], out);
    }
  }
}

// The low planes of floats are mostly noise, and where they end up is known before they are split.
size_t FrameEncoder::Scratch::PlaceRawPlanes(const EncodeInput& input, const Plan& plan,
                                             size_t num_units, uint8_t** pointers,
                                             ByteBuffer* out) {
  size_t num_raw = 0;
  while (!IsInteger(input.dtype) && num_raw < plan.transform.element_bytes &&
         plan.coders[num_raw] == StreamCoder::kRaw && !plan.by_class[num_raw]) {
    ++num_raw;
  }
  out->Room(num_raw * (kStreamHeaderBytes + num_units));
  for (size_t p = 0; p < num_raw; ++p) {
    StreamEncoder::AppendRawHeader(num_units, out);
    pointers[p] = out->Room(num_units);
    out->Advance(num_units);
  }
  return num_raw;
}

void FrameEncoder::Scratch::SplitResidual(const EncodeInput& input, std::span<const std::byte> base,
                                          const Plan& plan, uint8_t* const* pointers) {
  const size_t unit_bytes = plan.transform.element_bytes;
  const size_t num_units = input.raw.size() / unit_bytes;
  const size_t round_units = kRoundBytes / unit_bytes;
  alignas(64) uint8_t residual[kRoundBytes];
  for (size_t i = 0; i < num_units; i += round_units) {
    const size_t count = std::min(round_units, num_units - i);
    const uint8_t* from = Data(input.raw) + i * unit_bytes;
    if (plan.transform.transform != Transform::kPlain) {
      ForwardTransform(level, plan.transform, from,
                       base.empty() ? nullptr : Data(base) + i * unit_bytes, count, residual);
      from = residual;
    }
    uint8_t* to[kMaxPlanes];
    for (size_t p = 0; p < unit_bytes; ++p) to[p] = pointers[p] + i;
    SplitPlanes(level, from, count, std::span(to, unit_bytes));
  }
}

void FrameEncoder::Scratch::Classify(DType dtype, std::span<const std::byte> base, const Plan& plan,
                                     size_t num_units) {
  classes.Truncate(0);
  uint8_t* const ids = classes.Room(num_units);
  ClassifyElements(level, *ContextField(dtype), plan.thresholds, Data(base), num_units, ids,
                   &class_counts);
}

void FrameEncoder::Scratch::AppendByClass(const Plan& plan, size_t p, const uint8_t* plane,
                                          size_t num_units, ByteBuffer* out) {
  const size_t num_classes = plan.thresholds.size() + 1;
  parts.Truncate(0);
  uint8_t* room = parts.Room(num_units + num_classes * kClassSlack);
  uint8_t* to[kMaxClasses];
  const std::span coders(plan.class_coders[p].data(), num_classes);
  const bool maybe_zeros =
      std::find(coders.begin(), coders.end(), StreamCoder::kConstant) != coders.end();
  const unsigned with_values =
      maybe_zeros ? ClassesWithValues(level, classes.data(), plane, num_units) : ~0u;
  for (size_t c = 0; c < num_classes; ++c) {
    // Nothing needs to move when all is zero.
    const bool zeros = class_counts[c] > 1 && (with_values >> c & 1) == 0;
    to[c] = zeros ? nullptr : room;
    room += class_counts[c] + kClassSlack;
  }
  PartitionByClass(level, classes.data(), plane, num_units, std::span(to, num_classes));
  const size_t start = out->size();
  out->Append(StreamCoder::kClasses);
  out->Append(uint32_t{0});
  for (size_t c = 0; c < num_classes; ++c) {
    if (to[c] == nullptr) {
      StreamEncoder::AppendConstant(0, out);
    } else {
      streams.Append(to[c], class_counts[c], plan.class_coders[p][c], out);
    }
  }
  const auto body_bytes = static_cast<uint32_t>(out->size() - start - kStreamHeaderBytes);
  std::memcpy(out->data() + start + 1, &body_bytes, sizeof(body_bytes));
}

}  // namespace varve::internal
