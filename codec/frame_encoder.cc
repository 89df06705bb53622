// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "codec/frame.h"
#include "codec/frame_header.h"
#include "codec/plane_kernel.h"
#include "codec/stream_coder.h"

namespace varve {
namespace {

size_t PlaneCount(DType dtype) {
  if (dtype == DType::kC64) return 4;  // two F32
  return static_cast<size_t>(std::max(DTypeBits(dtype) / 8, 1));
}

FrameInfo InfoOf(const EncodeInput& input, Predictor predictor) {
  FrameInfo info;
  info.predictor = predictor;
  info.dtype = input.dtype;
  info.raw_bytes = static_cast<uint32_t>(input.raw.size());
  info.digest = input.digest;
  return info;
}

void StoreRaw(const EncodeInput& input, std::vector<std::byte>* frame) {
  frame->resize(kPlainHeaderBytes);
  WriteHeader(InfoOf(input, Predictor::kRaw), *frame);
  AppendBytes(input.raw, frame);
}

}  // namespace

struct FrameEncoder::Scratch {
  StreamEncoder streams;
  std::vector<uint8_t> planes;
};

FrameEncoder::FrameEncoder() : scratch_(std::make_unique<Scratch>()) {}
FrameEncoder::~FrameEncoder() = default;

Status FrameEncoder::Encode(const EncodeInput& input, std::vector<std::byte>* frame) {
  const size_t raw_bytes = input.raw.size();
  const size_t width = PlaneCount(input.dtype);
  if (raw_bytes == 0 || raw_bytes > kMaxRawBytes || raw_bytes % width != 0) {
    return Status::InvalidArgument("chunk has " + std::to_string(raw_bytes) + " bytes of " +
                                   std::string(DTypeName(input.dtype)) +
                                   ", expected whole elements and 1 to " +
                                   std::to_string(kMaxRawBytes) + " bytes");
  }
  frame->clear();
  if (input.codec == Codec::kNone) return StoreRaw(input, frame), Status::Ok();
  const size_t num_elements = raw_bytes / width;
  std::vector<uint8_t>& planes = scratch_->planes;
  planes.resize(raw_bytes);
  uint8_t* pointers[8];
  for (size_t p = 0; p < width; ++p) pointers[p] = planes.data() + p * num_elements;
  SplitPlanes(reinterpret_cast<const uint8_t*>(input.raw.data()), num_elements,
              std::span(pointers, width));
  frame->resize(kPlainHeaderBytes);
  for (size_t p = 0; p < width; ++p) {
    scratch_->streams.Append(std::as_bytes(std::span(pointers[p], num_elements)), frame);
  }
  WriteHeader(InfoOf(input, Predictor::kKeyframe), *frame);
  if (frame->size() >= raw_bytes + kPlainHeaderBytes) {
    frame->clear();
    StoreRaw(input, frame);
  }
  return Status::Ok();
}

}  // namespace varve
