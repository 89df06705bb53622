// SPDX-License-Identifier: Apache-2.0
//
// XXH3-128 of chunks in device memory, the very digest of base/digest.h (the algorithm for long
// inputs: XXH3_hashLong_128b_internal of xxhash.h 0.8).
//
// A block of 1 KiB is 16 stripes of 64 bytes. The stripes add to 8 accumulators in any order, so
// the threads of a warp take 16 bytes each. Only the scramble between blocks is serial. The number
// of bytes in flight decides the speed, so each warp loads a batch of blocks at once, and loads the
// next batch before it sums the lanes of this one. It waits for its loads only where it adds them.
//
// A lane holds the two accumulators of the words that it loads: 2 * (lane % 4) and the next.
//
// Loads are of aligned units of 16 bytes. Where a chunk is not aligned, a lane takes the unit
// behind its own from the next lane, and shifts its 16 bytes out of both.
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
#define VARVE_NO_UNROLL _Pragma("unroll 1")
#define VARVE_NOINLINE __noinline__
#else  // tests run the kernels on the CPU
#define VARVE_UNROLL
#define VARVE_NO_UNROLL
#define VARVE_NOINLINE
#endif

namespace varve::internal::gpu {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr uint64_t kBlockBytes = 1024;
inline constexpr uint64_t kStripeBytes = 64;
inline constexpr int kStripesPerLoad = 8;  // the lanes of a warp load these at once
inline constexpr uint64_t kUnitBytes = 16;
inline constexpr uint64_t kRowBytes = kLanes * kUnitBytes;
// Blocks that a warp loads at once: 4 KiB in flight.
inline constexpr int kBlocksInFlight = 4;
inline constexpr int kRows = 2 * kBlocksInFlight;
inline constexpr uint64_t kBatchBytes = kBlocksInFlight * kBlockBytes;
inline constexpr uint64_t kBatchUnits = kBatchBytes / kUnitBytes;

struct Pair {
  uint64_t even = 0;
  uint64_t odd = 0;
};

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }

__device__ inline Pair PairOf(const uint64_t (&words)[8]) {
  const int i = Lane() % 4;
  return {words[2 * i], words[2 * i + 1]};
}

// Returns the 16 bytes from byte `offset` of `low` on. `offset` is 0 to 15.
__device__ inline Pair Shift(const ulonglong2& low, const ulonglong2& high, unsigned offset) {
  const bool is_far = offset >= 8;
  const uint64_t a = is_far ? low.y : low.x, b = is_far ? high.x : low.y,
                 c = is_far ? high.y : high.x;
  const unsigned shift = offset % 8 * 8;
  // A shift by 64 is none, so one of them is made of two.
  return {a >> shift | b << 1 << (63 - shift), b >> shift | c << 1 << (63 - shift)};
}

__device__ inline unsigned OffsetOf(const std::byte* from) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) % kUnitBytes);
}

// Loads 16 bytes from any address of a chunk that ends at `end`. It reads only within the units
// that the chunk lies in, and nothing from `end` on, because memory may end there.
__device__ inline Pair Load(const std::byte* from, const std::byte* end) {
  const unsigned offset = OffsetOf(from);
  const auto* unit = reinterpret_cast<const ulonglong2*>(from - offset);
  if (offset == 0) {
    const ulonglong2 words = __ldcs(unit);
    return {words.x, words.y};
  }
  if (reinterpret_cast<const std::byte*>(unit + 2) <= end) {
    return Shift(__ldcs(unit), __ldcs(unit + 1), offset);
  }
  Pair pair;
  for (int i = 0; i < 8; ++i) {
    pair.even |= static_cast<uint64_t>(from[i]) << (8 * i);
    pair.odd |= static_cast<uint64_t>(from[i + 8]) << (8 * i);
  }
  return pair;
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

// What a lane has loaded of a batch of blocks: units as they lie in memory.
template <bool kIsAligned>
struct Units {
  ulonglong2 rows[kRows];
  ulonglong2 behind;  // the unit behind the last row, unless the chunk is aligned

  // Starts to load a batch, of which `first` is this lane's unit in the first row. Nobody waits for
  // the bytes here.
  __device__ void Load(const ulonglong2* first) {
    VARVE_UNROLL
    for (int i = 0; i < kRows; ++i) rows[i] = __ldcs(first + i * kLanes);
    if constexpr (!kIsAligned) behind = __ldcs(first + kRows * kLanes - Lane());
  }
  // This lane's 16 bytes of row `i`. All lanes must call it.
  __device__ Pair Words(int i, unsigned offset) const {
    if constexpr (kIsAligned) {
      return {rows[i].x, rows[i].y};
    } else {
      const ulonglong2& next = i + 1 < kRows ? rows[i + 1] : behind;
      const ulonglong2 given = Lane() == 0 ? next : rows[i];
      const int from = (Lane() + 1) % kLanes;
      const ulonglong2 high = {__shfl_sync(kAllLanes, given.x, from),
                               __shfl_sync(kAllLanes, given.y, from)};
      return Shift(rows[i], high, offset);
    }
  }
};

// The number of all blocks but the last, which may be whole. 1 to 1024 bytes are left for Finish.
__device__ inline uint64_t NumScrambled(uint64_t bytes) { return (bytes - 1) / kBlockBytes; }

// The number of batches whose units lie before the end of the chunk. Their blocks are scrambled.
template <bool kIsAligned>
__device__ inline uint64_t NumBatches(uint64_t bytes) {
  constexpr uint64_t kLeft = kIsAligned ? 1 : kUnitBytes;
  return bytes < kLeft ? 0 : (bytes - kLeft) / kBatchBytes;
}

// This lane's place in a batch of a chunk: in memory to load from, and in its copy. A loop goes
// from batch to batch by additions, which takes fewer registers than a product each time.
template <bool kCopies>
struct Place {
  __device__ explicit Place(const DeviceChunk& chunk)
      : from(reinterpret_cast<const ulonglong2*>(chunk.data - OffsetOf(chunk.data)) + Lane()) {
    if constexpr (kCopies) to = chunk.copy + kUnitBytes * Lane();
  }
  __device__ void Advance(uint64_t batches) {
    from += batches * kBatchUnits;
    if constexpr (kCopies) to += batches * kBatchBytes;
  }
  const ulonglong2* from;
  std::byte* to = nullptr;  // null: nothing is copied
};

// Returns this lane's part of the sums of the blocks of a batch that it has loaded, and copies them
// to `to`. `offset` is that of the chunk.
template <bool kCopies, bool kIsAligned>
__device__ inline void SumBatch(const Units<kIsAligned>& units, unsigned offset, std::byte* to,
                                const LaneKeys& keys, Pair (&sums)[kBlocksInFlight]) {
  VARVE_UNROLL
  for (int i = 0; i < kBlocksInFlight; ++i) {
    const Pair first = units.Words(2 * i, offset), second = units.Words(2 * i + 1, offset);
    if constexpr (kCopies) {
      Store(first, to + i * kBlockBytes);
      Store(second, to + i * kBlockBytes + kRowBytes);
    }
    sums[i] = {};
    Accumulate(first, keys.first, &sums[i]);
    Accumulate(second, keys.second, &sums[i]);
  }
}

// The same for up to kBlocksInFlight blocks from block `first` on, before block `end`, wherever the
// chunk ends. It waits for its loads.
template <bool kCopies>
__device__ inline void SumBlocks(const DeviceChunk& chunk, uint64_t first, uint64_t end,
                                 const LaneKeys& keys, Pair (&sums)[kBlocksInFlight]) {
  const std::byte* const limit = chunk.data + chunk.bytes;
  Pair words[kRows] = {};
  VARVE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (first + i / 2 >= end) continue;
    const uint64_t at = first * kBlockBytes + i * kRowBytes + 16 * Lane();
    words[i] = Load(chunk.data + at, limit);
    if constexpr (kCopies) Store(words[i], chunk.copy + at);
  }
  VARVE_UNROLL
  for (int i = 0; i < kBlocksInFlight; ++i) {
    sums[i] = {};
    Accumulate(words[2 * i], keys.first, &sums[i]);
    Accumulate(words[2 * i + 1], keys.second, &sums[i]);
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

// The accumulators of a warp, as blocks are added to them.
class WarpAccumulators {
 public:
  __device__ explicit WarpAccumulators(const DigestKeys& keys)
      : value_(PairOf(keys.first)),
        key_{keys.secret[16 + 2 * (Lane() % 4)], keys.secret[17 + 2 * (Lane() % 4)]} {}
  // Goes on from accumulators that others have summed.
  __device__ WarpAccumulators(const DigestKeys& keys, const Pair& value) : WarpAccumulators(keys) {
    value_ = value;
  }
  __device__ const Pair& value() const { return value_; }

  // Adds blocks of which each lane has its part.
  __device__ void Add(const Pair (&parts)[kBlocksInFlight], int count = kBlocksInFlight) {
    VARVE_UNROLL
    for (int i = 0; i < kBlocksInFlight; ++i) {
      const Pair sum = SumOverLanes(parts[i]);
      if (i >= count) continue;
      value_.even = Scramble(value_.even + sum.even, key_.even);
      value_.odd = Scramble(value_.odd + sum.odd, key_.odd);
    }
  }

 private:
  Pair value_;
  Pair key_;
};

// Adds all that is left from block `first` on, by one warp, and returns the digest. It is called
// once a chunk, so it has code of its own, which all callers share.
template <bool kCopies>
__device__ VARVE_NOINLINE Digest FinishFrom(const DeviceChunk chunk, const DigestKeys& keys,
                                            uint64_t first, const Pair value) {
  const LaneKeys lane_keys(keys);
  WarpAccumulators accumulators(keys, value);
  const uint64_t blocks = NumScrambled(chunk.bytes);
  for (; first < blocks; first += kBlocksInFlight) {
    Pair sums[kBlocksInFlight];
    SumBlocks<kCopies>(chunk, first, blocks, lane_keys, sums);
    const uint64_t left = blocks - first;
    accumulators.Add(sums, left < kBlocksInFlight ? static_cast<int>(left) : kBlocksInFlight);
  }
  return Finish<kCopies>(chunk, keys, lane_keys, accumulators.value());
}

template <bool kCopies, bool kIsAligned>
__device__ inline Digest DigestByWarpOf(const DeviceChunk& chunk, const DigestKeys& keys) {
  const LaneKeys lane_keys(keys);
  WarpAccumulators accumulators(keys);
  const uint64_t batches = NumBatches<kIsAligned>(chunk.bytes);
  const unsigned offset = OffsetOf(chunk.data);
  Place<kCopies> place(chunk);
  Units<kIsAligned> units = {};
  if (batches > 0) units.Load(place.from);
  for (uint64_t left = batches; left > 0; --left) {
    Pair sums[kBlocksInFlight];
    SumBatch<kCopies>(units, offset, place.to, lane_keys, sums);
    place.Advance(1);
    if (left > 1) units.Load(place.from);
    accumulators.Add(sums);
  }
  return FinishFrom<kCopies>(chunk, keys, batches * kBlocksInFlight, accumulators.value());
}

// The digest of a chunk, by one warp.
template <bool kCopies>
__device__ inline Digest DigestByWarp(const DeviceChunk& chunk, const DigestKeys& keys) {
  return OffsetOf(chunk.data) == 0 ? DigestByWarpOf<kCopies, true>(chunk, keys)
                                   : DigestByWarpOf<kCopies, false>(chunk, keys);
}

// What the warps of a block of threads share. Sums of blocks of bytes lie in two halves: one is
// filled while the other is scrambled.
template <int kWarps>
struct SharedSums {
  static constexpr int kBlocks = kWarps * kBlocksInFlight;
  uint64_t sums[2][kBlocks][8];
};

// Adds `count` sums to an accumulator, index `own` of each, and scrambles after each. `count` is a
// multiple of kBlocksInFlight. Each scramble waits for the one before, so the time of a chunk is
// theirs. None of them may wait for shared memory, too: the next sums are read ahead of them.
template <int kBlocks>
__device__ inline uint64_t ScrambleAll(const uint64_t (&sums)[kBlocks][8], int count, int own,
                                       uint64_t accumulator, uint64_t key) {
  uint64_t next[kBlocksInFlight];
  VARVE_UNROLL
  for (int i = 0; i < kBlocksInFlight; ++i) next[i] = sums[i][own];
  VARVE_NO_UNROLL  // which would take registers of the loads
      for (int at = kBlocksInFlight; at <= count; at += kBlocksInFlight) {
    uint64_t now[kBlocksInFlight];
    VARVE_UNROLL
    for (int i = 0; i < kBlocksInFlight; ++i) {
      now[i] = next[i];
      if (at < count) next[i] = sums[at + i][own];
    }
    VARVE_UNROLL
    for (int i = 0; i < kBlocksInFlight; ++i) accumulator = Scramble(accumulator + now[i], key);
  }
  return accumulator;
}

template <bool kCopies, bool kIsAligned, int kWarps>
__device__ inline Digest DigestByBlockOf(const DeviceChunk& chunk, const DigestKeys& keys,
                                         SharedSums<kWarps>* shared) {
  const LaneKeys lane_keys(keys);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const bool sums_blocks = warp < kWarps;
  // No chunk has 16 TiB.
  const auto batches = static_cast<uint32_t>(NumBatches<kIsAligned>(chunk.bytes));
  const uint32_t steps = (batches + kWarps - 1) / kWarps;  // of a batch for each warp
  // Index of one accumulator. Lanes from 8 on repeat the first 8.
  const int own = Lane() % 8;
  const uint64_t key = keys.secret[16 + own];
  const unsigned offset = OffsetOf(chunk.data);
  uint64_t accumulator = keys.first[own];
  auto batch = static_cast<uint32_t>(warp);
  Place<kCopies> place(chunk);
  place.Advance(batch);
  Units<kIsAligned> units = {};
  if (sums_blocks && batch < batches) units.Load(place.from);
  // In step i the warps sum their batches, and blocks of step i - 1 are scrambled. The loads of
  // step i + 1 are under way when the warps meet.
  for (uint32_t step = 0; step <= steps; ++step) {
    if (sums_blocks && batch < batches) {
      Pair sums[kBlocksInFlight];
      SumBatch<kCopies>(units, offset, place.to, lane_keys, sums);
      batch += kWarps;
      place.Advance(kWarps);
      if (batch < batches) units.Load(place.from);
      VARVE_UNROLL
      for (int i = 0; i < kBlocksInFlight; ++i) {
        const Pair sum = SumOverLanes(sums[i]);
        if (Lane() >= 4) continue;
        uint64_t* const to = shared->sums[step % 2][warp * kBlocksInFlight + i];
        to[2 * Lane()] = sum.even;
        to[2 * Lane() + 1] = sum.odd;
      }
    }
    if (!sums_blocks && step > 0) {
      const uint32_t left = batches - (step - 1) * kWarps;
      const int count = static_cast<int>(left < kWarps ? left : kWarps) * kBlocksInFlight;
      accumulator = ScrambleAll(shared->sums[(step - 1) % 2], count, own, accumulator, key);
    }
    __syncthreads();
  }
  if (sums_blocks) return {};
  const Pair value = {__shfl_sync(kAllLanes, accumulator, 2 * (Lane() % 4)),
                      __shfl_sync(kAllLanes, accumulator, 2 * (Lane() % 4) + 1)};
  return FinishFrom<kCopies>(chunk, keys, uint64_t{batches} * kBlocksInFlight, value);
}

// The digest of a chunk, by kWarps warps that sum and one more, the last, that scrambles and gets
// the digest.
template <bool kCopies, int kWarps>
__device__ inline Digest DigestByBlock(const DeviceChunk& chunk, const DigestKeys& keys,
                                       SharedSums<kWarps>* shared) {
  return OffsetOf(chunk.data) == 0 ? DigestByBlockOf<kCopies, true>(chunk, keys, shared)
                                   : DigestByBlockOf<kCopies, false>(chunk, keys, shared);
}

}  // namespace varve::internal::gpu
