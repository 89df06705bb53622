// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/zstd_coder.h"

#include <zstd.h>

#include <new>
#include <string>

#include "codec/entropy/literal_frame.h"
#include "codec/entropy/literal_frame_encoder.h"
#include "codec/entropy/size_error.h"

namespace varve::internal {

namespace {

using CompressContext = std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)>;

using DecompressContext = std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)>;

CompressContext MakeMatchContext() {
  CompressContext context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
  return context;
}

DecompressContext MakeDecompressContext() {
  DecompressContext context(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

std::span<const uint8_t> Symbols(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

struct ZstdCompressor::Context {
  LiteralFrameEncoder literals{DetectCpu()};
  CompressContext matches = MakeMatchContext();
};

ZstdCompressor::ZstdCompressor() : context_(std::make_unique<Context>()) {}
ZstdCompressor::~ZstdCompressor() = default;

size_t ZstdCompressor::CompressLiterals(std::span<const std::byte> in, std::span<std::byte> out) {
  return context_->literals.Encode(Symbols(in), out);
}

size_t ZstdCompressor::CompressMatches(std::span<const std::byte> in, std::span<std::byte> out) {
  const size_t bytes =
      ZSTD_compress2(context_->matches.get(), out.data(), out.size(), in.data(), in.size());
  return ZSTD_isError(bytes) ? 0 : bytes;
}

struct ZstdDecompressor::Context {
  LiteralFrameDecoder literals{DetectCpu()};
  DecompressContext zstd = MakeDecompressContext();
};

ZstdDecompressor::ZstdDecompressor() : context_(std::make_unique<Context>()) {}
ZstdDecompressor::~ZstdDecompressor() = default;

Status ZstdDecompressor::Decompress(std::span<const std::byte> in, std::span<std::byte> out) {
  // Our decoder is half as fast again for many literals of few bits each.
  const std::span<uint8_t> room(reinterpret_cast<uint8_t*>(out.data()), out.size());
  if (context_->literals.Decode(in, room)) return Status::Ok();
  const size_t bytes =
      ZSTD_decompressDCtx(context_->zstd.get(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(bytes)) {
    return Status::Corruption(std::string("zstd stream: ") + ZSTD_getErrorName(bytes));
  }
  if (bytes != out.size()) return SizeError("zstd stream holds", bytes, out.size());
  return Status::Ok();
}

}  // namespace varve::internal
