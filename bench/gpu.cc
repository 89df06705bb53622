// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu.h"

#include <algorithm>

#include "bench/bench_params.h"
#include "bench/rows.h"
#include "bench/workplace.h"

namespace varve::internal::bench {

void RequireCuda(cudaError_t error, const char* call) { Require(gpu::ToStatus(error, call)); }

Mark::Mark() {
  cudaEvent_t event = nullptr;
  RequireCuda(cudaEventCreate(&event), "cudaEventCreate");
  event_.reset(event);
}

void Mark::Record(cudaStream_t stream) {
  RequireCuda(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
}

void Mark::Await() const {
  RequireCuda(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
}

double Mark::Since(const Mark& earlier) const {
  float milliseconds = 0;
  RequireCuda(cudaEventElapsedTime(&milliseconds, earlier.event_.get(), event_.get()),
              "cudaEventElapsedTime");
  return milliseconds / 1e3;
}

Gpu::Gpu() {
  RequireCuda(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, 0),
              "cudaDeviceGetAttribute");
  cudaStream_t stream = nullptr;  // of the usual priority, as a trainer's
  RequireCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_.reset(stream);
  sink_ = Must(gpu::AllocateOnDevice<uint64_t>(1));
  host_ = Must(gpu::AllocatePinned<std::byte>(256 * kMiB));
}

std::string Gpu::Describe() const {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  RequireCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  RequireCuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  RequireCuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) +
         "." + std::to_string(properties.minor) + ", " + std::to_string(processors_) +
         " processors, " + std::to_string(properties.totalGlobalMem / kMiB) + " MiB, CUDA " +
         version(runtime) + ", driver for " + version(driver);
}

uint64_t Gpu::FreeBytes() {
  size_t free = 0, total = 0;
  RequireCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

std::span<std::byte> Gpu::TakeState(uint64_t bytes) {
  state_ = {};
  state_ = Must(gpu::AllocateOnDevice<std::byte>(bytes));
  const std::span<std::byte> state(state_.data(), bytes);
  RequireCuda(EnqueueNoise(1, state, stream()), "noise");
  RequireCuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  return state;
}

double Gpu::ReadPass(std::span<const std::byte> bytes, const ReadShape& shape) {
  return Time(20e-6, [&] {
    RequireCuda(EnqueueRead(bytes, shape, processors_, sink_.data(), stream()), "read");
  });
}

double Gpu::ReadPass(std::span<const std::byte> bytes) {
  const auto [found, is_new] = best_.try_emplace(bytes.size());
  if (is_new) {
    double best = 1e9;
    for (const ReadShape& shape : kReadShapes) {
      std::vector<double> times;
      ReadPass(bytes, shape);  // warms up
      for (int i = 0; i < 5; ++i) times.push_back(ReadPass(bytes, shape));
      if (const double time = Quantile(times, 0.5); time < best) {
        best = time;
        found->second = shape;
      }
    }
  }
  return ReadPass(bytes, found->second);
}

double Gpu::EnqueueStep(double seconds) {
  constexpr size_t kElements = size_t{kSide} * kSide;
  const auto enqueue = [&](int count) {
    float* const a = matrices_.data();
    for (int i = 0; i < count; ++i) {
      RequireCuda(EnqueueProduct(a, a + kElements, a + 2 * kElements, stream()), "product");
    }
  };
  if (matrices_.size() == 0) {
    matrices_ = Must(gpu::AllocateOnDevice<float>(3 * kElements));
    RequireCuda(cudaMemsetAsync(matrices_.data(), 0, 3 * kElements * sizeof(float), stream()),
                "cudaMemsetAsync");
    constexpr int kTimed = 10;
    enqueue(kTimed);  // warms up
    product_ = Time(1e-3, [&] { enqueue(kTimed); }) / kTimed;
  }
  const int count = std::max(1, static_cast<int>(seconds / product_));
  enqueue(count);
  return count * product_;
}

double Gpu::PinnedCopy(std::span<const std::byte> bytes) {
  return Time(20e-6, [&] {
    for (size_t at = 0; at < bytes.size(); at += host_.size()) {
      const size_t size = std::min(host_.size(), bytes.size() - at);
      RequireCuda(
          cudaMemcpyAsync(host_.data(), bytes.data() + at, size, cudaMemcpyDeviceToHost, stream()),
          "cudaMemcpyAsync");
    }
  });
}

}  // namespace varve::internal::bench
