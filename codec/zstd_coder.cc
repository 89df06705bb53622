// SPDX-License-Identifier: Apache-2.0
#include "codec/zstd_coder.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include <zstd.h>

#include <string>

#include "codec/literal_frame.h"

namespace varve {
namespace {

using CompressContext = std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)>;

// The largest acceleration of the fast strategy looks for a match once in 128 KiB, which leaves
// only literals. zstd turns literal compression off at such settings unless told otherwise.
CompressContext MakeLiteralContext() {
  CompressContext context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_strategy, ZSTD_fast);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, 17);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_hashLog, ZSTD_HASHLOG_MIN);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
  return context;
}

CompressContext MakeMatchContext() {
  CompressContext context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
  return context;
}

size_t Compress(ZSTD_CCtx* context, std::span<const std::byte> in, std::span<std::byte> out) {
  const size_t bytes = ZSTD_compress2(context, out.data(), out.size(), in.data(), in.size());
  return ZSTD_isError(bytes) ? 0 : bytes;
}

}  // namespace

struct ZstdCompressor::Context {
  CompressContext literals = MakeLiteralContext();
  CompressContext matches = MakeMatchContext();
};

ZstdCompressor::ZstdCompressor() : context_(std::make_unique<Context>()) {}
ZstdCompressor::~ZstdCompressor() = default;

size_t ZstdCompressor::CompressLiterals(std::span<const std::byte> in, std::span<std::byte> out) {
  return Compress(context_->literals.get(), in, out);
}

size_t ZstdCompressor::CompressMatches(std::span<const std::byte> in, std::span<std::byte> out) {
  return Compress(context_->matches.get(), in, out);
}

struct ZstdDecompressor::Context {
  LiteralFrameDecoder literals{DetectCpu()};
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> zstd{ZSTD_createDCtx(), &ZSTD_freeDCtx};
};

ZstdDecompressor::ZstdDecompressor() : context_(std::make_unique<Context>()) {}
ZstdDecompressor::~ZstdDecompressor() = default;

Status ZstdDecompressor::Decompress(std::span<const std::byte> in, std::span<std::byte> out) {
  // Ours is half as fast again for many literals of few bits each.
  const std::span<uint8_t> room(reinterpret_cast<uint8_t*>(out.data()), out.size());
  if (context_->literals.Decode(in, room)) return Status::Ok();
  const size_t bytes =
      ZSTD_decompressDCtx(context_->zstd.get(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(bytes)) {
    return Status::Corruption(std::string("zstd stream: ") + ZSTD_getErrorName(bytes));
  }
  if (bytes != out.size()) {
    return Status::Corruption("zstd stream holds " + std::to_string(bytes) + " bytes, expected " +
                              std::to_string(out.size()));
  }
  return Status::Ok();
}

}  // namespace varve
