// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda_loop as work of a stream of the host's runtime (host_runtime.h). What the
// training computes does not matter there, only what it changes.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "examples/cuda_loop_kernels.h"
#include "tests/cuda/host_runtime/host_runtime.h"

namespace cuda_example {

using varve::internal::testing::Enqueue;

cudaError_t Multiply(const float*, const float*, bool, float, float*, cudaStream_t stream) {
  return Enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
}

cudaError_t AdamW(const AdamStep&, const float*, const Layer& layer, cudaStream_t stream) {
  return Enqueue(stream, [=] {
    for (float* values : {layer.weight, layer.exp_avg, layer.exp_avg_sq}) {
      for (int64_t i = 0; i < layer.elements; ++i) values[i] += 1;
    }
  });
}

cudaError_t AdamWOfRows(const AdamStep&, const float*, const Layer& embedding, int64_t rows,
                        uint64_t seed, cudaStream_t stream) {
  return Enqueue(stream, [=] {
    const auto row = static_cast<int64_t>(Mix(seed, 0) % static_cast<uint64_t>(rows));
    for (float* values : {embedding.weight, embedding.exp_avg, embedding.exp_avg_sq}) {
      for (int64_t i = 0; i < kRowElements; ++i) values[row * kRowElements + i] += 1;
    }
  });
}

cudaError_t FillNoise(float* to, int64_t elements, uint64_t seed, float scale,
                      cudaStream_t stream) {
  return Enqueue(stream, [=] {
    for (int64_t i = 0; i < elements; ++i) {
      to[i] = scale * static_cast<float>(Uniform(seed, static_cast<uint64_t>(i)));
    }
  });
}

cudaError_t ReadOnce(const void*, int64_t, uint64_t*, cudaStream_t stream) {
  return Enqueue(stream, [] {});
}

cudaError_t Overwrite(const Round& round, uint64_t tensor, uint32_t* words, uint64_t size,
                      cudaStream_t stream) {
  return Enqueue(stream, [=] {
    for (uint64_t begin = 0; begin < size; begin += Round::kBlockWords) {
      if (!round.Overwrites(tensor, begin / Round::kBlockWords)) continue;
      const uint64_t end = std::min(begin + round.words, size);
      for (uint64_t i = begin; i < end; ++i) words[i] = round.Word(tensor, i);
    }
  });
}

}  // namespace cuda_example
