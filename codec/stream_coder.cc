// SPDX-License-Identifier: Apache-2.0
#include "codec/stream_coder.h"

#include <cstring>
#include <string>

#include "codec/frame.h"

namespace varve {
namespace {

constexpr size_t kStreamHeaderBytes = 5;

void AppendStreamHeader(StreamCoder coder, size_t body_bytes, std::vector<std::byte>* out) {
  AppendLittle(coder, out);
  AppendLittle(static_cast<uint32_t>(body_bytes), out);
}

}  // namespace

void StreamEncoder::Append(std::span<const std::byte> data, std::vector<std::byte>* out) {
  if (IsConstant(data, 1)) {
    AppendStreamHeader(StreamCoder::kConstant, 1, out);
    out->push_back(data.empty() ? std::byte{0} : data[0]);
    return;
  }
  const size_t start = out->size();
  AppendStreamHeader(StreamCoder::kZstd, 0, out);
  // A stream that saves nothing is stored raw, so the room for it is that of the raw bytes.
  out->resize(start + kStreamHeaderBytes + data.size());
  const std::span<std::byte> body = std::span(*out).subspan(start + kStreamHeaderBytes);
  const size_t bytes = zstd_.CompressLiterals(data, body);
  if (bytes != 0) {
    StoreLittle(static_cast<uint32_t>(bytes), out->data() + start + 1);
    out->resize(start + kStreamHeaderBytes + bytes);
    return;
  }
  StoreLittle(StreamCoder::kRaw, out->data() + start);
  StoreLittle(static_cast<uint32_t>(data.size()), out->data() + start + 1);
  std::memcpy(body.data(), data.data(), data.size());
}

Status StreamDecoder::Decode(ByteReader* reader, std::span<std::byte> out) {
  uint8_t tag = 0;
  uint32_t body_bytes = 0;
  std::span<const std::byte> body;
  if (!reader->Take(&tag) || !reader->Take(&body_bytes) || !reader->TakeSpan(body_bytes, &body)) {
    return Status::Corruption("stream is cut short");
  }
  switch (static_cast<StreamCoder>(tag)) {
    case StreamCoder::kRaw:
      if (body.size() != out.size()) {
        return Status::Corruption("raw stream holds " + std::to_string(body.size()) +
                                  " bytes, expected " + std::to_string(out.size()));
      }
      std::memcpy(out.data(), body.data(), body.size());
      return Status::Ok();
    case StreamCoder::kConstant:
      if (body.size() != 1) {
        return Status::Corruption("constant stream holds " + std::to_string(body.size()) +
                                  " bytes, expected 1");
      }
      std::memset(out.data(), std::to_integer<int>(body[0]), out.size());
      return Status::Ok();
    case StreamCoder::kZstd:
      return zstd_.Decompress(body, out);
  }
  return Status::Corruption("stream coder is " + std::to_string(tag) + ", expected 0 to 2");
}

}  // namespace varve
