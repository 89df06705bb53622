// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda_kernels.h"

namespace varve::internal::bench {
namespace {

template <int kLoads>
__global__ void Read(const ulonglong2* from, uint64_t size, uint64_t* sink) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint64_t sum = 0;
  for (; i + (kLoads - 1) * threads < size; i += kLoads * threads) {
    ulonglong2 words[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) words[k] = __ldcs(from + i + k * threads);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) sum += words[k].x ^ words[k].y;
  }
  for (; i < size; i += threads) {
    const ulonglong2 words = __ldcs(from + i);
    sum += words.x ^ words.y;
  }
  if (sum == 0x123456789) *sink = sum;  // so that nothing is left out
}

__global__ void Noise(uint64_t seed, uint64_t* to, uint64_t size) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += threads) {
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15 + i;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    to[i] = x ^ (x >> 31);
  }
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // threads of a column of a tile. Each has kTile / kTileRows

__global__ void __launch_bounds__(kTile* kTileRows)
    Product(const float* a, const float* b, float* c) {
  __shared__ float a_tile[kTile][kTile + 1];
  __shared__ float b_tile[kTile][kTile + 1];
  constexpr int kRows = kTile / kTileRows;
  const int column = blockIdx.x * kTile + threadIdx.x;
  const int first_row = blockIdx.y * kTile + threadIdx.y;
  float sums[kRows] = {};
  for (int k = 0; k < kSide; k += kTile) {
    for (int i = 0; i < kRows; ++i) {
      const int y = threadIdx.y + i * kTileRows;
      a_tile[y][threadIdx.x] = a[(first_row + i * kTileRows) * kSide + k + threadIdx.x];
      b_tile[y][threadIdx.x] = b[(k + y) * kSide + column];
    }
    __syncthreads();
    for (int j = 0; j < kTile; ++j) {
      for (int i = 0; i < kRows; ++i) {
        sums[i] += a_tile[threadIdx.y + i * kTileRows][j] * b_tile[j][threadIdx.x];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kRows; ++i) c[(first_row + i * kTileRows) * kSide + column] = sums[i];
}

__device__ uint64_t Nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void Spin(uint64_t nanoseconds) {
  const uint64_t begin = Nanoseconds();
  while (Nanoseconds() - begin < nanoseconds) {
  }
}

}  // namespace

cudaError_t EnqueueRead(std::span<const std::byte> from, const ReadShape& shape, int processors,
                        uint64_t* sink, cudaStream_t stream) {
  const auto* words = reinterpret_cast<const ulonglong2*>(from.data());
  const uint64_t size = from.size() / sizeof(ulonglong2);
  const int blocks = processors * shape.blocks;
  if (shape.loads == 4) {
    Read<4><<<blocks, shape.threads, 0, stream>>>(words, size, sink);
  } else if (shape.loads == 8) {
    Read<8><<<blocks, shape.threads, 0, stream>>>(words, size, sink);
  } else {
    Read<16><<<blocks, shape.threads, 0, stream>>>(words, size, sink);
  }
  return cudaGetLastError();
}

cudaError_t EnqueueNoise(uint64_t seed, std::span<std::byte> to, cudaStream_t stream) {
  constexpr uint64_t kThreads = 256, kMaxBlocks = 2048;
  const uint64_t size = to.size() / sizeof(uint64_t);
  const uint64_t wanted = (size + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  Noise<<<blocks, kThreads, 0, stream>>>(seed, reinterpret_cast<uint64_t*>(to.data()), size);
  return cudaGetLastError();
}

cudaError_t EnqueueProduct(const float* a, const float* b, float* c, cudaStream_t stream) {
  Product<<<dim3(kSide / kTile, kSide / kTile), dim3(kTile, kTileRows), 0, stream>>>(a, b, c);
  return cudaGetLastError();
}

cudaError_t EnqueueSpin(double seconds, cudaStream_t stream) {
  Spin<<<1, 1, 0, stream>>>(static_cast<uint64_t>(seconds * 1e9));
  return cudaGetLastError();
}

}  // namespace varve::internal::bench
