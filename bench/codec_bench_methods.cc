// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_bench_methods.h"

#include <zstd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "codec/planes/layout.h"
#include "codec/planes/plane_kernel.h"

namespace varve::internal::bench {
namespace {

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "codec_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

class Varve final : public Method {
 public:
  Varve(Compression compression, Entropy entropy) : compression_(compression), entropy_(entropy) {}
  void Encode(const Chunk& chunk, std::vector<std::byte>* out) override {
    const FrameBase base{.address = {.save_id = 1, .ordinal = 1},
                         .digest = chunk.base_digest,
                         .raw = chunk.base,
                         .depth = 1,
                         .path_bytes = chunk.base_path_bytes};
    EncodeInput input;
    input.raw = chunk.raw;
    input.dtype = chunk.dtype;
    input.digest = chunk.digest;
    input.base = chunk.base.empty() ? nullptr : &base;
    input.compression = compression_;
    input.entropy = entropy_;
    Require(encoder_.Encode(input, out));
  }
  bool Decode(const Chunk& chunk, std::span<const std::byte> in,
              std::span<std::byte> out) override {
    return decoder_.Decode(in, {chunk.base}, out).ok();
  }

 private:
  Compression compression_;
  Entropy entropy_;
  FrameEncoder encoder_;
  FrameDecoder decoder_;
};

class Memcpy final : public Method {
 public:
  void Encode(const Chunk& chunk, std::vector<std::byte>* out) override {
    out->assign(chunk.raw.begin(), chunk.raw.end());
  }
  bool Decode(const Chunk&, std::span<const std::byte> in, std::span<std::byte> out) override {
    std::memcpy(out.data(), in.data(), in.size());
    return true;
  }
};

using Compressor = std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)>;
using Decompressor = std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)>;

// zstd 1 on one stream or on each byte plane. varve's kernels split and join the planes.
class Zstd1 final : public Method {
 public:
  Zstd1(bool planes, bool with_base) : planes_(planes), with_base_(with_base) {}

  void Encode(const Chunk& chunk, std::vector<std::byte>* out) override {
    const size_t n = chunk.raw.size();
    const size_t width = planes_ ? UnitBytes(chunk.dtype) : 1;
    const std::byte* from = chunk.raw.data();
    if (with_base_) {
      work_.resize(n);
      for (size_t i = 0; i < n; ++i) work_[i] = chunk.raw[i] ^ chunk.base[i];
      from = work_.data();
    }
    split_.resize(n);
    uint8_t* pointers[kMaxPlanes];
    for (size_t p = 0; p < width; ++p) pointers[p] = split_.data() + p * (n / width);
    SplitPlanes(DetectCpu(), reinterpret_cast<const uint8_t*>(from), n / width,
                std::span(pointers, width));
    out->resize(8 * width + width * ZSTD_compressBound(n / width));
    size_t at = 8 * width;
    for (size_t p = 0; p < width; ++p) {
      const uint64_t bytes = ZSTD_compressCCtx(compressor_.get(), out->data() + at,
                                               out->size() - at, pointers[p], n / width, 1);
      std::memcpy(out->data() + 8 * p, &bytes, 8);
      at += bytes;
    }
    out->resize(at);
  }

  bool Decode(const Chunk& chunk, std::span<const std::byte> in,
              std::span<std::byte> out) override {
    const size_t n = out.size();
    const size_t width = planes_ ? UnitBytes(chunk.dtype) : 1;
    split_.resize(n);
    const uint8_t* pointers[kMaxPlanes];
    size_t at = 8 * width;
    for (size_t p = 0; p < width; ++p) {
      uint64_t bytes;
      std::memcpy(&bytes, in.data() + 8 * p, 8);
      uint8_t* const plane = split_.data() + p * (n / width);
      ZSTD_decompressDCtx(decompressor_.get(), plane, n / width, in.data() + at, bytes);
      pointers[p] = plane;
      at += bytes;
    }
    JoinPlanes(DetectCpu(), std::span(pointers, width), n / width,
               reinterpret_cast<uint8_t*>(out.data()));
    if (with_base_) {
      for (size_t i = 0; i < n; ++i) out[i] ^= chunk.base[i];
    }
    return true;
  }

 private:
  bool planes_;
  bool with_base_;
  std::vector<std::byte> work_;
  std::vector<uint8_t> split_;
  Compressor compressor_{ZSTD_createCCtx(), &ZSTD_freeCCtx};
  Decompressor decompressor_{ZSTD_createDCtx(), &ZSTD_freeDCtx};
};

}  // namespace

std::unique_ptr<Method> MakeVarve(Compression compression, Entropy entropy) {
  return std::make_unique<Varve>(compression, entropy);
}
std::unique_ptr<Method> MakeMemcpy() { return std::make_unique<Memcpy>(); }
std::unique_ptr<Method> MakeZstd1() { return std::make_unique<Zstd1>(false, false); }
std::unique_ptr<Method> MakePlanesZstd1() { return std::make_unique<Zstd1>(true, false); }
std::unique_ptr<Method> MakeXorPlanesZstd1() { return std::make_unique<Zstd1>(true, true); }

}  // namespace varve::internal::bench
