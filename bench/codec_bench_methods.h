// SPDX-License-Identifier: Apache-2.0
//
// The ways to encode a chunk that codec_bench compares. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/frame.h"

namespace varve::internal::bench {

struct Chunk {
  std::vector<std::byte> raw;
  std::vector<std::byte> base;  // empty: none
  DType dtype = DType::kU8;
  Digest digest;
  Digest base_digest;
  uint64_t base_path_bytes = 0;
};

class Method {
 public:
  virtual ~Method() = default;
  virtual void Encode(const Chunk& chunk, std::vector<std::byte>* out) = 0;
  virtual bool Decode(const Chunk& chunk, std::span<const std::byte> in,
                      std::span<std::byte> out) = 0;
};

std::unique_ptr<Method> MakeVarve(Compression compression, Entropy entropy);
std::unique_ptr<Method> MakeMemcpy();
std::unique_ptr<Method> MakeZstd1();           // zstd 1 on the raw bytes
std::unique_ptr<Method> MakePlanesZstd1();     // byte planes, zstd 1 on each
std::unique_ptr<Method> MakeXorPlanesZstd1();  // XOR with the base first

}  // namespace varve::internal::bench
