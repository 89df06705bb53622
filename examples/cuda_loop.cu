// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "examples/cuda_loop_kernels.h"

namespace cuda_example {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // threads of a column of a tile. Each has kTile / kTileRows
constexpr int kThreads = 256;
constexpr int kBlocks = 1024;
constexpr int kBlocksOfOverwrite = 64;  // leaves most of a device to others
constexpr int64_t kRowsPerStep = 512;   // of the embedding that a step changes

template <bool kTransposed>
__global__ void Product(const float* a, const float* b, float* c, float alpha) {
  __shared__ float a_tile[kTile][kTile + 1];
  __shared__ float b_tile[kTile][kTile + 1];
  constexpr int kRows = kTile / kTileRows;
  const int column = blockIdx.x * kTile + threadIdx.x;
  const int first_row = blockIdx.y * kTile + threadIdx.y;
  float sums[kRows] = {};
  for (int k = 0; k < kSide; k += kTile) {
    for (int i = 0; i < kRows; ++i) {
      const int y = threadIdx.y + i * kTileRows;
      a_tile[y][threadIdx.x] = a[(blockIdx.y * kTile + y) * kSide + k + threadIdx.x];
      if (kTransposed) {
        b_tile[threadIdx.x][y] = b[(blockIdx.x * kTile + y) * kSide + k + threadIdx.x];
      } else {
        b_tile[y][threadIdx.x] = b[(k + y) * kSide + column];
      }
    }
    __syncthreads();
    for (int j = 0; j < kTile; ++j) {
      for (int i = 0; i < kRows; ++i) {
        sums[i] += a_tile[threadIdx.y + i * kTileRows][j] * b_tile[j][threadIdx.x];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kRows; ++i) c[(first_row + i * kTileRows) * kSide + column] = alpha * sums[i];
}

__device__ void Adam(const AdamStep& step, float grad, float* weight, float* exp_avg,
                     float* exp_avg_sq) {
  const float m = step.beta1 * *exp_avg + (1 - step.beta1) * grad;
  const float v = step.beta2 * *exp_avg_sq + (1 - step.beta2) * grad * grad;
  const float update = m / step.correction1 / (sqrtf(v / step.correction2) + 1e-8f);
  *weight -= step.rate * (update + 0.01f * *weight);
  *exp_avg = m;
  *exp_avg_sq = v;
}

// Gradients are there for one matrix and serve all layers.
__device__ float GradOf(const float* grads, int64_t i) {
  return grads[i & (int64_t{kSide} * kSide - 1)];
}

__global__ void AdamDense(AdamStep step, const float* grads, float* weight, float* exp_avg,
                          float* exp_avg_sq, int64_t elements) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += threads) {
    Adam(step, GradOf(grads, i), weight + i, exp_avg + i, exp_avg_sq + i);
  }
}

// A block of threads for each row that the step changes. Words are not used alike: most rows are
// among the first. No two blocks have the same row.
__global__ void AdamRows(AdamStep step, const float* grads, float* weight, float* exp_avg,
                         float* exp_avg_sq, int64_t rows, uint64_t seed) {
  const double u = (blockIdx.x + Uniform(seed, blockIdx.x)) / gridDim.x;
  const int64_t spread = rows - gridDim.x;
  const int64_t row = blockIdx.x + static_cast<int64_t>(u * u * u * static_cast<double>(spread));
  for (int64_t i = threadIdx.x; i < kRowElements; i += blockDim.x) {
    const int64_t at = row * kRowElements + i;
    Adam(step, GradOf(grads, at), weight + at, exp_avg + at, exp_avg_sq + at);
  }
}

__global__ void Fill(float* to, int64_t elements, uint64_t seed, float scale) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += threads) {
    const auto noise = static_cast<float>(Uniform(seed, static_cast<uint64_t>(i)));
    to[i] = scale < 0 ? -scale * noise : scale * (noise - 0.5f);
  }
}

__global__ void Read(const ulonglong2* from, int64_t size, uint64_t* sink) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += threads) {
    const ulonglong2 words = __ldcs(from + i);
    sum += words.x ^ words.y;
  }
  if (sum == 42) *sink = sum;  // so that nothing is left out
}

__global__ void OverwriteOnDevice(Round round, uint64_t tensor, uint32_t* words, uint64_t size) {
  for (uint64_t block = blockIdx.x; block * Round::kBlockWords < size; block += gridDim.x) {
    if (!round.Overwrites(tensor, block)) continue;
    const uint64_t begin = block * Round::kBlockWords;
    const uint64_t end = begin + round.words < size ? begin + round.words : size;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      words[i] = round.Word(tensor, i);
    }
  }
}

}  // namespace

cudaError_t Multiply(const float* a, const float* b, bool transpose_b, float alpha, float* c,
                     cudaStream_t stream) {
  const dim3 blocks(kSide / kTile, kSide / kTile);
  const dim3 threads(kTile, kTileRows);
  if (transpose_b) {
    Product<true><<<blocks, threads, 0, stream>>>(a, b, c, alpha);
  } else {
    Product<false><<<blocks, threads, 0, stream>>>(a, b, c, alpha);
  }
  return cudaGetLastError();
}

cudaError_t AdamW(const AdamStep& step, const float* grads, const Layer& layer,
                  cudaStream_t stream) {
  AdamDense<<<kBlocks, kThreads, 0, stream>>>(step, grads, layer.weight, layer.exp_avg,
                                              layer.exp_avg_sq, layer.elements);
  return cudaGetLastError();
}

cudaError_t AdamWOfRows(const AdamStep& step, const float* grads, const Layer& embedding,
                        int64_t rows, uint64_t seed, cudaStream_t stream) {
  const auto changed = static_cast<unsigned>(std::min(rows, kRowsPerStep));
  AdamRows<<<changed, kThreads, 0, stream>>>(step, grads, embedding.weight, embedding.exp_avg,
                                             embedding.exp_avg_sq, rows, seed);
  return cudaGetLastError();
}

cudaError_t FillNoise(float* to, int64_t elements, uint64_t seed, float scale,
                      cudaStream_t stream) {
  Fill<<<kBlocks, kThreads, 0, stream>>>(to, elements, seed, scale);
  return cudaGetLastError();
}

cudaError_t ReadOnce(const void* from, int64_t bytes, uint64_t* sink, cudaStream_t stream) {
  Read<<<kBlocks, kThreads, 0, stream>>>(static_cast<const ulonglong2*>(from), bytes / 16, sink);
  return cudaGetLastError();
}

cudaError_t Overwrite(const Round& round, uint64_t tensor, uint32_t* words, uint64_t size,
                      cudaStream_t stream) {
  OverwriteOnDevice<<<kBlocksOfOverwrite, kThreads, 0, stream>>>(round, tensor, words, size);
  return cudaGetLastError();
}

}  // namespace cuda_example
