// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/stream_encoder.h"

#include <algorithm>
#include <cstring>

#include "codec/entropy/estimate.h"
#include "codec/planes/sparse_kernel.h"

namespace varve::internal {

namespace {

// The sample of a stream: runs of neighbours, evenly spread.
constexpr size_t kRunBytes = 64;
constexpr size_t kNumRuns = 32;

PlaneStats SampleStream(const uint8_t* data, size_t n) {
  PlaneStats stats;
  if (n <= kRunBytes * kNumRuns) {
    AddSample(data, n, &stats);
    return stats;
  }
  const size_t stride = (n - kRunBytes) / (kNumRuns - 1);
  uint8_t sample[kRunBytes * kNumRuns];
  for (size_t r = 0; r < kNumRuns; ++r) {
    std::memcpy(sample + r * kRunBytes, data + r * stride, kRunBytes);
  }
  AddSample(sample, sizeof(sample), &stats);
  return stats;
}

std::span<const std::byte> AsBytes(const uint8_t* data, size_t n) {
  return std::as_bytes(std::span(data, n));
}

void AppendHeader(StreamCoder coder, size_t body_bytes, ByteBuffer* out) {
  out->Append(coder);
  out->Append(static_cast<uint32_t>(body_bytes));
}

void AppendRaw(const uint8_t* data, size_t n, ByteBuffer* out) {
  AppendHeader(StreamCoder::kRaw, n, out);
  out->AppendBytes(data, n);
}

// Fills in the length of the stream that starts at `start`. If the stream is no smaller than the n
// bytes that it stands for, it removes all of it and returns false.
bool FinishNested(size_t start, size_t n, ByteBuffer* out) {
  const size_t body_bytes = out->size() - start - kStreamHeaderBytes;
  if (body_bytes >= n) {
    out->Truncate(start);
    return false;
  }
  const auto length = static_cast<uint32_t>(body_bytes);
  std::memcpy(out->data() + start + 1, &length, sizeof(length));
  return true;
}

}  // namespace

void StreamEncoder::Append(const uint8_t* data, size_t n, ByteBuffer* out) {
  AppendAt(0, data, n, out);
}

void StreamEncoder::Append(const uint8_t* data, size_t n, StreamCoder coder, ByteBuffer* out) {
  AppendAs(0, coder, data, n, out);
}

void StreamEncoder::AppendBest(const uint8_t* data, size_t n, ByteBuffer* out) {
  const size_t start = out->size();
  AppendAt(0, data, n, out);
  const size_t stream_bytes = out->size() - start;
  if (stream_bytes <= 2 * kStreamHeaderBytes) return;
  // It makes both forms, because a sample would not tell the shape of indices, masks and text.
  ByteBuffer& other = parts_[0].first;
  other.Truncate(0);
  if (AppendZstd(data, n, &other, /*matches=*/true) && other.size() < stream_bytes) {
    out->Truncate(start);
    out->AppendBytes(other.data(), other.size());
  }
}

void StreamEncoder::AppendAt(int depth, const uint8_t* data, size_t n, ByteBuffer* out) {
  AppendAs(depth, EstimateStream(SampleStream(data, n), n, rans_).coder, data, n, out);
}

void StreamEncoder::AppendAs(int depth, StreamCoder coder, const uint8_t* data, size_t n,
                             ByteBuffer* out) {
  const bool may_nest = depth + 1 < kMaxStreamDepth;
  bool done = false;
  if (coder == StreamCoder::kConstant) {
    done = n > 1 && std::memcmp(data, data + 1, n - 1) == 0;
    if (done) AppendConstant(data[0], out);
    // Otherwise there are a few bytes that no sample met. The sparse coder is made for those.
    if (!done) coder = n > 0 && data[0] == 0 ? StreamCoder::kSparse : StreamCoder::kZstd;
  }
  const bool nests = coder == StreamCoder::kSparse || coder == StreamCoder::kNibbles ||
                     coder == StreamCoder::kHalves;
  if (nests && !may_nest) coder = StreamCoder::kZstd;
  if (!done && coder == StreamCoder::kSparse) done = AppendSparse(depth, data, n, out);
  if (!done && coder == StreamCoder::kNibbles) done = AppendNibbles(depth, data, n, out);
  if (!done && coder == StreamCoder::kHalves) done = AppendHalves(depth, data, n, out);
  if (!done && coder == StreamCoder::kRans) done = AppendRans(data, n, out);
  if (!done && coder == StreamCoder::kZstd) done = AppendZstd(data, n, out, /*matches=*/false);
  if (!done) AppendRaw(data, n, out);
}

void StreamEncoder::AppendRawHeader(size_t n, ByteBuffer* out) {
  AppendHeader(StreamCoder::kRaw, n, out);
}

void StreamEncoder::AppendConstant(uint8_t value, ByteBuffer* out) {
  AppendHeader(StreamCoder::kConstant, 1, out);
  out->Append(value);
}

bool StreamEncoder::AppendZstd(const uint8_t* data, size_t n, ByteBuffer* out, bool matches) {
  const size_t start = out->size();
  AppendHeader(StreamCoder::kZstd, 0, out);
  const std::span<std::byte> room = std::as_writable_bytes(std::span(out->Room(n), n));
  const size_t bytes = matches ? zstd_.CompressMatches(AsBytes(data, n), room)
                               : zstd_.CompressLiterals(AsBytes(data, n), room);
  if (bytes == 0) {
    out->Truncate(start);
    return false;
  }
  out->Advance(bytes);
  return FinishNested(start, n, out);
}

bool StreamEncoder::AppendRans(const uint8_t* data, size_t n, ByteBuffer* out) {
  const size_t start = out->size();
  AppendHeader(StreamCoder::kRans, 0, out);
  const size_t bytes =
      rans_coder_.Encode(std::span(data, n), std::as_writable_bytes(std::span(out->Room(n), n)));
  if (bytes == 0) {
    out->Truncate(start);
    return false;
  }
  ++num_rans_;
  out->Advance(bytes);
  return FinishNested(start, n, out);
}

bool StreamEncoder::AppendSparse(int depth, const uint8_t* data, size_t n, ByteBuffer* out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  const size_t bitmap_bytes = (n + 7) / 8;
  parts.first.Truncate(0);
  parts.second.Truncate(0);
  uint8_t* const bitmap = parts.first.Room(bitmap_bytes);
  uint8_t* const values = parts.second.Room(n + kPackSlack);
  const size_t num_values = PackNonZeros(level_, data, n, bitmap, values);
  const size_t start = out->size();
  AppendHeader(StreamCoder::kSparse, 0, out);
  AppendAt(depth + 1, bitmap, bitmap_bytes, out);
  AppendAt(depth + 1, values, num_values, out);
  return FinishNested(start, n, out);
}

bool StreamEncoder::AppendNibbles(int depth, const uint8_t* data, size_t n, ByteBuffer* out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  const size_t pair_bytes = (n + 1) / 2;
  parts.first.Truncate(0);
  parts.second.Truncate(0);
  uint8_t* const pairs = parts.first.Room(pair_bytes);
  uint8_t* const escapes = parts.second.Room(n + kPackSlack);
  const size_t num_escapes = PackNibbles(level_, data, n, pairs, escapes);
  const size_t start = out->size();
  AppendHeader(StreamCoder::kNibbles, 0, out);
  AppendAt(depth + 1, pairs, pair_bytes, out);
  AppendAt(depth + 1, escapes, num_escapes, out);
  return FinishNested(start, n, out);
}

bool StreamEncoder::AppendHalves(int depth, const uint8_t* data, size_t n, ByteBuffer* out) {
  Parts& parts = parts_[static_cast<size_t>(depth)];
  const size_t pair_bytes = (n + 1) / 2;
  parts.first.Truncate(0);
  parts.second.Truncate(0);
  uint8_t* const low = parts.first.Room(pair_bytes);
  uint8_t* const high = parts.second.Room(pair_bytes);
  SplitHalves(level_, data, n, low, high);
  const size_t start = out->size();
  AppendHeader(StreamCoder::kHalves, 0, out);
  AppendAs(depth + 1, StreamCoder::kRaw, low, pair_bytes, out);
  AppendAt(depth + 1, high, pair_bytes, out);
  return FinishNested(start, n, out);
}

}  // namespace varve::internal
