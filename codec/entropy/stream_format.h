// SPDX-License-Identifier: Apache-2.0
//
// The streams inside a frame, as docs/frame.md describes them. Constants only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace varve::internal {

// How a stream is stored. These numbers are on disk: never renumber.
enum class StreamCoder : uint8_t {
  kRaw = 0,       // the bytes themselves
  kConstant = 1,  // one byte, repeated
  kZstd = 2,      // an ordinary zstd frame
  kSparse = 3,    // stream of a bitmap of the non-zero bytes, stream of these bytes
  kNibbles = 4,   // stream of pairs of half bytes, stream of the bytes of 15 and above
  kClasses = 5,   // a plane of a delta: one stream for each class of the base's exponents
  kHalves = 6,    // stream of pairs of low half bytes, stream of pairs of high half bytes
  kRans = 7,      // rANS (rans.h). Frames of version 1 have none
};
inline constexpr int kNumStreamCoders = 8;
inline constexpr int kFirstCoders = 7;  // that all programs know
inline constexpr std::string_view kStreamCoderNames[kNumStreamCoders] = {
    "raw", "constant", "zstd", "sparse", "nibbles", "classes", "halves", "rans"};

// coder 1, body bytes 4.
inline constexpr size_t kStreamHeaderBytes = 5;

// Sparse, nibble and halves streams hold streams. A stream nested deeper than this is refused.
inline constexpr int kMaxStreamDepth = 4;

}  // namespace varve::internal
