// SPDX-License-Identifier: Apache-2.0
//
// The frame of literals that zstd itself makes: the largest acceleration of its fast strategy looks
// for a match once in 128 KiB.
#pragma once

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include <zstd.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace varve::internal::testing {

inline std::vector<std::byte> ZstdLiterals(std::span<const std::byte> plain) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_strategy, ZSTD_fast);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, 17);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_hashLog, ZSTD_HASHLOG_MIN);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
  std::vector<std::byte> frame(ZSTD_compressBound(plain.size()));
  frame.resize(
      ZSTD_compress2(context.get(), frame.data(), frame.size(), plain.data(), plain.size()));
  return frame;
}

}  // namespace varve::internal::testing
