// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
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

Status SizeError(const char* what, size_t found, size_t expected) {
  return Status::Corruption(std::string(what) + " has " + std::to_string(found) +
                            " bytes, expected " + std::to_string(expected));
}

}  // namespace

struct FrameDecoder::Scratch {
  StreamDecoder streams;
  std::vector<uint8_t> planes;
};

FrameDecoder::FrameDecoder() : scratch_(std::make_unique<Scratch>()) {}
FrameDecoder::~FrameDecoder() = default;

Status FrameDecoder::Decode(std::span<const std::byte> frame,
                            [[maybe_unused]] std::span<const std::byte> base_raw,
                            std::span<std::byte> out) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  if (out.size() != info.raw_bytes) return SizeError("output", out.size(), info.raw_bytes);
  const std::span<const std::byte> payload = frame.subspan(HeaderBytes(info.predictor));
  if (info.predictor == Predictor::kRaw) {
    if (payload.size() != out.size()) return SizeError("raw payload", payload.size(), out.size());
    std::memcpy(out.data(), payload.data(), out.size());
    return Status::Ok();
  }
  if (info.predictor != Predictor::kKeyframe) return Status::Corruption("unknown predictor");
  const size_t width = PlaneCount(info.dtype);
  const size_t num_elements = out.size() / width;
  scratch_->planes.resize(out.size());
  const uint8_t* pointers[8];
  ByteReader reader(payload);
  for (size_t p = 0; p < width; ++p) {
    const std::span<uint8_t> plane =
        std::span(scratch_->planes).subspan(p * num_elements, num_elements);
    VARVE_RETURN_IF_ERROR(
        scratch_->streams.Decode(&reader, std::as_writable_bytes(plane))
            .WithContext("plane " + std::to_string(p)));
    pointers[p] = plane.data();
  }
  if (!reader.rest().empty()) return SizeError("rest of the payload", reader.rest().size(), 0);
  JoinPlanes(std::span(pointers, width), num_elements, reinterpret_cast<uint8_t*>(out.data()));
  return Status::Ok();
}

}  // namespace varve
