// SPDX-License-Identifier: Apache-2.0
//
// XXH3-128 of chunks in device memory, the very digest of base/digest.h (the algorithm for long
// inputs: XXH3_hashLong_128b_internal of xxhash.h 0.8).
//
// A block of 1 KiB is 16 stripes of 64 bytes. The stripes add to 8 accumulators in any order, so
// the threads of a warp take 16 bytes each. Only the scramble between blocks is serial. The number
// of bytes in flight decides the speed, so each warp loads some blocks before it sums the first.
//
// A lane holds the two accumulators of the words that it loads: 2 * (lane % 4) and the next.
//
// A chunk that is digested and copied is read once for both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/digest_keys.h"

#ifdef __CUDACC__
#define VARVE_UNROLL _Pragma("unroll")
#else  // tests run the kernels on the CPU
#define VARVE_UNROLL
#endif

namespace varve::internal::gpu {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr uint64_t kBlockBytes = 1024;
inline constexpr uint64_t kStripeBytes = 64;
inline constexpr int kStripesPerLoad = 8;  // the lanes of a warp load these at once
// Blocks that a warp loads before it sums the first: 4 KiB in flight.
inline constexpr int kBlocksInFlight = 4;

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                          kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                          kPrime64_5 = 0x27D4EB2F165667C5;

struct Pair {
  uint64_t even = 0;
  uint64_t odd = 0;
};

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }

__device__ inline Pair PairOf(const uint64_t (&words)[8]) {
  const int i = Lane() % 4;
  return {words[2 * i], words[2 * i + 1]};
}

__device__ inline Pair FirstAccumulators() {
  const uint64_t first[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                             kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  return PairOf(first);
}

// Loads 16 bytes from any address of a chunk that ends at `end`. It reads only within the 16-byte
// units that the chunk lies in, and nothing from `end` on, because memory may end there.
__device__ inline Pair Load(const std::byte* from, const std::byte* end) {
  const auto offset = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) % 16);
  if (offset == 0) {
    const ulonglong2 words = __ldcs(reinterpret_cast<const ulonglong2*>(from));
    return {words.x, words.y};
  }
  const auto* unit = reinterpret_cast<const ulonglong2*>(from - offset);
  if (reinterpret_cast<const std::byte*>(unit + 2) > end) {
    Pair pair;
    for (int i = 0; i < 8; ++i) {
      pair.even |= static_cast<uint64_t>(from[i]) << (8 * i);
      pair.odd |= static_cast<uint64_t>(from[i + 8]) << (8 * i);
    }
    return pair;
  }
  const ulonglong2 low = __ldcs(unit), high = __ldcs(unit + 1);
  const bool is_far = offset >= 8;
  const uint64_t a = is_far ? low.y : low.x, b = is_far ? high.x : low.y,
                 c = is_far ? high.y : high.x;
  const unsigned shift = offset % 8 * 8;
  if (shift == 0) return {a, b};
  return {a >> shift | b << (64 - shift), b >> shift | c << (64 - shift)};
}

// `to` is a multiple of 16.
__device__ inline void Store(const Pair& words, std::byte* to) {
  *reinterpret_cast<ulonglong2*>(to) = ulonglong2{words.even, words.odd};
}

__device__ inline uint64_t MultiplyHalves(uint64_t word) {
  return (word & 0xffffffff) * (word >> 32);
}

// Adds 16 bytes of a stripe to `sum`.
__device__ inline void Accumulate(const Pair& words, const Pair& key, Pair* sum) {
  sum->even += words.odd + MultiplyHalves(words.even ^ key.even);
  sum->odd += words.even + MultiplyHalves(words.odd ^ key.odd);
}

__device__ inline uint64_t Scramble(uint64_t accumulator, uint64_t key) {
  return (accumulator ^ accumulator >> 47 ^ key) * kPrime32_1;
}

// Sums over the lanes that hold the same accumulators. All these lanes get the sum.
__device__ inline Pair SumOverLanes(Pair pair) {
  VARVE_UNROLL
  for (int mask = 4; mask < kLanes; mask *= 2) {
    pair.even += __shfl_xor_sync(kAllLanes, pair.even, mask);
    pair.odd += __shfl_xor_sync(kAllLanes, pair.odd, mask);
  }
  return pair;
}

// The keys of the stripes of which this lane loads parts.
struct LaneKeys {
  __device__ explicit LaneKeys(const DigestKeys& keys) {
    const int at = Lane() / 4 + 2 * (Lane() % 4);
    first = {keys.secret[at], keys.secret[at + 1]};
    second = {keys.secret[at + kStripesPerLoad], keys.secret[at + kStripesPerLoad + 1]};
  }
  Pair first, second;
};

// Returns this lane's part of the sums of `kCount` blocks of a chunk, from block `first` on.
template <bool kCopies, int kCount>
__device__ inline void SumBlocks(const DeviceChunk& chunk, uint64_t first, const LaneKeys& keys,
                                 Pair (&sums)[kCount]) {
  Pair words[kCount][2];
  const std::byte* const end = chunk.data + chunk.bytes;
  const uint64_t begin = first * kBlockBytes + 16 * Lane();
  VARVE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    words[i][0] = Load(chunk.data + begin + i * kBlockBytes, end);
    words[i][1] = Load(chunk.data + begin + i * kBlockBytes + kBlockBytes / 2, end);
  }
  if constexpr (kCopies) {
    VARVE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      Store(words[i][0], chunk.copy + begin + i * kBlockBytes);
      Store(words[i][1], chunk.copy + begin + i * kBlockBytes + kBlockBytes / 2);
    }
  }
  VARVE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    sums[i] = {};
    Accumulate(words[i][0], keys.first, &sums[i]);
    Accumulate(words[i][1], keys.second, &sums[i]);
  }
}

__device__ inline uint64_t MultiplyAndFold(uint64_t a, uint64_t b) {
  return a * b ^ __umul64hi(a, b);
}

__device__ inline uint64_t Avalanche(uint64_t hash) {
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// Merges the accumulators of all lanes. All lanes get the result.
__device__ inline uint64_t Merge(const Pair& accumulators, const uint64_t (&keys)[8],
                                 uint64_t start) {
  const Pair key = PairOf(keys);
  uint64_t part = MultiplyAndFold(accumulators.even ^ key.even, accumulators.odd ^ key.odd);
  part += __shfl_xor_sync(kAllLanes, part, 1);
  part += __shfl_xor_sync(kAllLanes, part, 2);
  return Avalanche(start + part);
}

// The number of all blocks but the last, which may be whole. 1 to 1024 bytes are left for Finish.
__device__ inline uint64_t NumScrambled(uint64_t bytes) { return (bytes - 1) / kBlockBytes; }

// Copies the bytes from `begin` on, a multiple of 16, with `threads` threads. This is one of them.
__device__ inline void CopyRest(const DeviceChunk& chunk, uint64_t begin, unsigned thread,
                                unsigned threads) {
  const std::byte* const end = chunk.data + chunk.bytes;
  const uint64_t whole = chunk.bytes / 16 * 16;
  for (uint64_t at = begin + 16 * thread; at < whole; at += uint64_t{16} * threads) {
    Store(Load(chunk.data + at, end), chunk.copy + at);
  }
  for (uint64_t at = whole + thread; at < chunk.bytes; at += threads) {
    chunk.copy[at] = chunk.data[at];
  }
}

// Adds the last block and returns the digest. `accumulators` holds the sums of all blocks before.
template <bool kCopies>
__device__ inline Digest Finish(const DeviceChunk& chunk, const DigestKeys& keys,
                                const LaneKeys& lane_keys, Pair accumulators) {
  const std::byte* const end = chunk.data + chunk.bytes;
  const std::byte* const block = chunk.data + NumScrambled(chunk.bytes) * kBlockBytes;
  if constexpr (kCopies) CopyRest(chunk, NumScrambled(chunk.bytes) * kBlockBytes, Lane(), kLanes);
  const int stripes = static_cast<int>((end - block - 1) / kStripeBytes);
  const int stripe = Lane() / 4;
  const std::byte* const from = block + 16 * Lane();
  Pair sum;
  if (stripe < stripes) Accumulate(Load(from, end), lane_keys.first, &sum);
  if (stripe + kStripesPerLoad < stripes) {
    Accumulate(Load(from + kBlockBytes / 2, end), lane_keys.second, &sum);
  }
  if (stripe == 0) {
    Accumulate(Load(end - kStripeBytes + 16 * Lane(), end), PairOf(keys.last_stripe), &sum);
  }
  sum = SumOverLanes(sum);
  accumulators.even += sum.even;
  accumulators.odd += sum.odd;
  return {.lo = Merge(accumulators, keys.merge_lo, chunk.bytes * kPrime64_1),
          .hi = Merge(accumulators, keys.merge_hi, ~(chunk.bytes * kPrime64_2))};
}

// The digest of a chunk, by one warp.
template <bool kCopies>
__device__ inline Digest DigestByWarp(const DeviceChunk& chunk, const DigestKeys& keys) {
  const LaneKeys lane_keys(keys);
  const Pair scramble = {keys.secret[16 + 2 * (Lane() % 4)], keys.secret[17 + 2 * (Lane() % 4)]};
  Pair accumulators = FirstAccumulators();
  const auto add = [&](const Pair& part) {
    const Pair sum = SumOverLanes(part);
    accumulators.even = Scramble(accumulators.even + sum.even, scramble.even);
    accumulators.odd = Scramble(accumulators.odd + sum.odd, scramble.odd);
  };
  const uint64_t blocks = NumScrambled(chunk.bytes);
  uint64_t block = 0;
  for (; block + kBlocksInFlight <= blocks; block += kBlocksInFlight) {
    Pair sums[kBlocksInFlight];
    SumBlocks<kCopies>(chunk, block, lane_keys, sums);
    VARVE_UNROLL
    for (int i = 0; i < kBlocksInFlight; ++i) add(sums[i]);
  }
  for (; block < blocks; ++block) {
    Pair sums[1];
    SumBlocks<kCopies>(chunk, block, lane_keys, sums);
    add(sums[0]);
  }
  return Finish<kCopies>(chunk, keys, lane_keys, accumulators);
}

// What the warps of a block of threads share. Sums of blocks of bytes lie in two halves: one is
// filled while the other is scrambled.
template <int kWarps>
struct SharedSums {
  static constexpr int kBlocks = kWarps * kBlocksInFlight;
  uint64_t sums[2][kBlocks][8];
};

// The digest of a chunk, by kWarps warps that sum and one more, the last, that scrambles and gets
// the digest.
template <bool kCopies, int kWarps>
__device__ inline Digest DigestByBlock(const DeviceChunk& chunk, const DigestKeys& keys,
                                       SharedSums<kWarps>* shared) {
  constexpr int kBatch = SharedSums<kWarps>::kBlocks;
  const LaneKeys lane_keys(keys);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const uint64_t blocks = NumScrambled(chunk.bytes);
  const uint64_t batches = (blocks + kBatch - 1) / kBatch;
  // Index of one accumulator. Lanes from 8 on repeat the first 8.
  const int own = Lane() % 8;
  const uint64_t key = keys.secret[16 + own];
  const Pair first = FirstAccumulators();
  const uint64_t even = __shfl_sync(kAllLanes, first.even, own / 2);
  const uint64_t odd = __shfl_sync(kAllLanes, first.odd, own / 2);
  uint64_t accumulator = own % 2 == 0 ? even : odd;
  // In step i the warps sum batch i and scramble batch i - 1.
  for (uint64_t step = 0; step <= batches; ++step) {
    if (warp < kWarps && step < batches) {
      const uint64_t begin = step * kBatch + static_cast<uint64_t>(warp) * kBlocksInFlight;
      Pair sums[kBlocksInFlight];
      if (begin + kBlocksInFlight <= blocks) {
        SumBlocks<kCopies>(chunk, begin, lane_keys, sums);
      } else {
        for (int i = 0; i < kBlocksInFlight; ++i) {
          Pair one[1];
          if (begin + i < blocks) SumBlocks<kCopies>(chunk, begin + i, lane_keys, one);
          sums[i] = one[0];
        }
      }
      VARVE_UNROLL
      for (int i = 0; i < kBlocksInFlight; ++i) {
        const Pair sum = SumOverLanes(sums[i]);
        if (Lane() >= 4) continue;
        uint64_t* const to = shared->sums[step % 2][warp * kBlocksInFlight + i];
        to[2 * Lane()] = sum.even;
        to[2 * Lane() + 1] = sum.odd;
      }
    }
    if (warp == kWarps && step > 0) {
      const uint64_t begin = (step - 1) * kBatch;
      const int count = static_cast<int>(blocks - begin < kBatch ? blocks - begin : kBatch);
      for (int i = 0; i < count; ++i) {
        accumulator = Scramble(accumulator + shared->sums[(step - 1) % 2][i][own], key);
      }
    }
    __syncthreads();
  }
  if (warp < kWarps) return {};
  const Pair accumulators = {__shfl_sync(kAllLanes, accumulator, 2 * (Lane() % 4)),
                             __shfl_sync(kAllLanes, accumulator, 2 * (Lane() % 4) + 1)};
  return Finish<kCopies>(chunk, keys, lane_keys, accumulators);
}

}  // namespace varve::internal::gpu
