// SPDX-License-Identifier: Apache-2.0
//
// What cuda_bench runs besides varve: plain reads to compare with, noise, work that takes some
// time, and products of matrices. All runs on the current device, and no call waits. Pointers are
// to the device's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve::internal::bench {

// How a kernel that reads everything is launched.
struct ReadShape {
  int threads = 256;  // of a block
  int blocks = 8;     // for each processor
  int loads = 4;      // of 16 bytes, in flight in each thread: 4, 8 or 16
};
inline constexpr ReadShape kReadShapes[] = {{256, 8, 4},  {512, 4, 4},  {1024, 2, 4},
                                            {256, 8, 8},  {512, 2, 8},  {512, 4, 8},
                                            {256, 4, 16}, {256, 16, 4}, {1024, 2, 16}};

// Reads each 16 bytes once. `from` starts at a multiple of 16. A rest of less than 16 bytes is left
// out. `sink` is 8 bytes that nobody needs.
cudaError_t EnqueueRead(std::span<const std::byte> from, const ReadShape& shape, int processors,
                        uint64_t* sink, cudaStream_t stream);
// Writes random bits in whole words of 8 bytes. `to` starts at a multiple of 8.
cudaError_t EnqueueNoise(uint64_t seed, std::span<std::byte> to, cudaStream_t stream);
// Multiplies two matrices of kSide rows and columns, as a training step does: it fills all
// processors, and takes hardly any bandwidth.
inline constexpr int kSide = 2048;
cudaError_t EnqueueProduct(const float* a, const float* b, float* c, cudaStream_t stream);
// Keeps the stream busy for so long, and hardly anything else.
cudaError_t EnqueueSpin(double seconds, cudaStream_t stream);

}  // namespace varve::internal::bench
