// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda_loop, as the host starts them: nothing waits, pointers are to the device's
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "examples/cuda_example.h"

namespace cuda_example {

inline constexpr int kSide = 2048;             // of matrices, a power of two
inline constexpr int64_t kRowElements = 1024;  // of an embedding

// Computes c = alpha * a * b, or with the transposed b. All matrices are kSide x kSide, by rows.
cudaError_t Multiply(const float* a, const float* b, bool transpose_b, float alpha, float* c,
                     cudaStream_t stream);

// The values of a step that AdamW needs.
struct AdamStep {
  float rate, beta1, beta2, correction1, correction2;
};
struct Layer {
  float* weight = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  int64_t elements = 0;
};
// Gradients are those of one matrix of kSide x kSide, and serve all layers.
cudaError_t AdamW(const AdamStep& step, const float* grads, const Layer& layer,
                  cudaStream_t stream);
// Updates some rows of an embedding, chosen by `seed`. Words are not used alike: most are among the
// first.
cudaError_t AdamWOfRows(const AdamStep& step, const float* grads, const Layer& embedding,
                        int64_t rows, uint64_t seed, cudaStream_t stream);

// Fills with noise from -scale / 2 to scale / 2. With a negative scale it is from 0 to -scale.
cudaError_t FillNoise(float* to, int64_t elements, uint64_t seed, float scale, cudaStream_t stream);
// Reads a multiple of 16 bytes once. `sink`: 8 bytes that nobody needs.
cudaError_t ReadOnce(const void* from, int64_t bytes, uint64_t* sink, cudaStream_t stream);

// Says whether a round overwrites a block, and with what. The host and the device compute the same.
struct Round {
  static constexpr uint64_t kBlockWords = 16'384;  // of 4 bytes: 64 KiB

  uint64_t number = 0;
  double share = 1;              // of the blocks
  uint64_t words = kBlockWords;  // of each block, from its start

  CUDA_ON_BOTH bool Overwrites(uint64_t tensor, uint64_t block) const {
    return Uniform(Mix(number, tensor), block) < share;
  }
  CUDA_ON_BOTH uint32_t Word(uint64_t tensor, uint64_t i) const {
    return static_cast<uint32_t>(Mix(Mix(number + 1'000'000, tensor), i));
  }
};
cudaError_t Overwrite(const Round& round, uint64_t tensor, uint32_t* words, uint64_t size,
                      cudaStream_t stream);

}  // namespace cuda_example
