// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/stream_decoder.h"

#include <cstring>
#include <string>

#include "codec/entropy/size_error.h"
#include "codec/planes/sparse_kernel.h"

namespace varve::internal {

namespace {

std::span<uint8_t> RoomFor(size_t n, size_t slack, ByteBuffer* buffer) {
  buffer->Truncate(0);
  return std::span(buffer->Room(n + slack), n);
}

Status ExpectEnd(const ByteReader& reader, const char* what) {
  if (reader.rest().empty()) return Status::Ok();
  return Status::Corruption(std::string(what) + " has " + std::to_string(reader.rest().size()) +
                            " bytes after its end");
}

}  // namespace

Status StreamDecoder::Decode(ByteReader* reader, std::span<uint8_t> out) {
  return DecodeAt(0, reader, out);
}

Status StreamDecoder::TakeStream(ByteReader* reader, StreamCoder* coder,
                                 std::span<const std::byte>* body) {
  uint32_t body_bytes = 0;
  if (!reader->Take(coder) || !reader->Take(&body_bytes)) {
    return Status::Corruption("stream header is cut short");
  }
  if (static_cast<int>(*coder) >= kNumStreamCoders) {
    return Status::Corruption("stream coder is " + std::to_string(static_cast<int>(*coder)) +
                              ", expected 0 to " + std::to_string(kNumStreamCoders - 1));
  }
  if (!reader->TakeSpan(body_bytes, body))
    return SizeError("rest holds", reader->rest().size(), body_bytes);
  return Status::Ok();
}

Status StreamDecoder::DecodeAt(int depth, ByteReader* reader, std::span<uint8_t> out) {
  StreamCoder coder{};
  std::span<const std::byte> body;
  VARVE_RETURN_IF_ERROR(TakeStream(reader, &coder, &body));
  return DecodeBodyAt(depth, coder, body, out);
}

Status StreamDecoder::DecodeBodyAt(int depth, StreamCoder coder, std::span<const std::byte> body,
                                   std::span<uint8_t> out) {
  switch (coder) {
    case StreamCoder::kRaw:
      if (body.size() != out.size()) return SizeError("raw stream holds", body.size(), out.size());
      if (!out.empty()) std::memcpy(out.data(), body.data(), body.size());
      return Status::Ok();
    case StreamCoder::kConstant:
      if (body.size() != 1) return SizeError("constant stream holds", body.size(), 1);
      if (!out.empty()) std::memset(out.data(), std::to_integer<int>(body[0]), out.size());
      return Status::Ok();
    case StreamCoder::kZstd:
      return zstd_.Decompress(body, std::as_writable_bytes(out));
    case StreamCoder::kRans:
      return rans_.Decode(body, out);
    case StreamCoder::kSparse:
    case StreamCoder::kNibbles:
    case StreamCoder::kHalves:
      return DecodeNested(depth, coder, body, out);
    case StreamCoder::kClasses:
      break;
  }
  return Status::Corruption("stream of classes inside a stream");
}

Status StreamDecoder::DecodeNested(int depth, StreamCoder coder, std::span<const std::byte> body,
                                   std::span<uint8_t> out) {
  if (depth + 1 >= kMaxStreamDepth) {
    return Status::Corruption("streams nest deeper than " + std::to_string(kMaxStreamDepth));
  }
  if (coder == StreamCoder::kSparse) return DecodeSparse(depth, body, out);
  if (coder == StreamCoder::kNibbles) return DecodeNibbles(depth, body, out);
  return DecodeHalves(depth, body, out);
}

Status StreamDecoder::DecodeSparse(int depth, std::span<const std::byte> body,
                                   std::span<uint8_t> out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  ByteReader reader(body);
  const std::span<uint8_t> bitmap = RoomFor((out.size() + 7) / 8, 0, &parts.first);
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, bitmap));
  if (out.size() % 8 != 0 && (bitmap.back() >> (out.size() % 8)) != 0) {
    return Status::Corruption("bitmap has bits after its end");
  }
  // There is at most one value a bit, so a bitmap of out.size() bits bounds this.
  const size_t num_values = CountNonZeros(level_, bitmap.data(), out.size());
  const std::span<uint8_t> values = RoomFor(num_values, kPackSlack, &parts.second);
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, values));
  VARVE_RETURN_IF_ERROR(ExpectEnd(reader, "sparse stream"));
  UnpackNonZeros(level_, bitmap.data(), values.data(), out.size(), out.data());
  return Status::Ok();
}

Status StreamDecoder::DecodeNibbles(int depth, std::span<const std::byte> body,
                                    std::span<uint8_t> out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  ByteReader reader(body);
  const std::span<uint8_t> pairs = RoomFor((out.size() + 1) / 2, 0, &parts.first);
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, pairs));
  const size_t num_escapes = CountEscapes(level_, pairs.data(), out.size());
  const std::span<uint8_t> escapes = RoomFor(num_escapes, kPackSlack, &parts.second);
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, escapes));
  VARVE_RETURN_IF_ERROR(ExpectEnd(reader, "nibble stream"));
  UnpackNibbles(level_, pairs.data(), escapes.data(), out.size(), out.data());
  return Status::Ok();
}

Status StreamDecoder::DecodeHalves(int depth, std::span<const std::byte> body,
                                   std::span<uint8_t> out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  ByteReader reader(body);
  const std::span<uint8_t> low = RoomFor((out.size() + 1) / 2, 0, &parts.first);
  const std::span<uint8_t> high = RoomFor((out.size() + 1) / 2, 0, &parts.second);
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, low));
  VARVE_RETURN_IF_ERROR(DecodeAt(depth + 1, &reader, high));
  VARVE_RETURN_IF_ERROR(ExpectEnd(reader, "halves stream"));
  JoinHalves(level_, low.data(), high.data(), out.size(), out.data());
  return Status::Ok();
}

}  // namespace varve::internal
