// SPDX-License-Identifier: Apache-2.0
//
// The device that cuda_bench measures. It has a state in its memory, a trainer's stream, times by
// its own clock, and the baselines of varve. It ends the program when something fails. Thread rule:
// one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/cuda_kernels.h"
#include "cuda/resources.h"

namespace varve::internal::bench {

void RequireCuda(cudaError_t error, const char* call);

// A point of a stream.
class Mark {
 public:
  Mark();
  void Record(cudaStream_t stream);
  void Await() const;
  // Returns the seconds of the device's clock since an earlier mark. The stream must have passed
  // both.
  double Since(const Mark& earlier) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event_;
};

class Gpu {
 public:
  Gpu();

  int processors() const { return processors_; }
  cudaStream_t stream() const { return stream_.get(); }
  std::string Describe() const;
  static uint64_t FreeBytes();

  // Gives back what was there, takes so many bytes and fills them with noise.
  std::span<std::byte> TakeState(uint64_t bytes);

  // Seconds of the device's clock for what `enqueue` puts on the stream. The host gets `lead`
  // seconds to enqueue it, so that the device does not wait for the host.
  template <typename Enqueue>
  double Time(double lead, const Enqueue& enqueue) {
    RequireCuda(EnqueueSpin(lead, stream()), "spin");
    begin_.Record(stream());
    enqueue();
    end_.Record(stream());
    end_.Await();
    return end_.Since(begin_);
  }

  // Makes one pass of plain 16-byte loads, with the launch shape that was best for so many bytes.
  double ReadPass(std::span<const std::byte> bytes);
  // Puts products of matrices on the stream that take about so long when nothing else runs, and
  // returns how long they took then: measured once.
  double EnqueueStep(double seconds);
  // A copy of everything to pinned memory of the host.
  double PinnedCopy(std::span<const std::byte> bytes);

 private:
  double ReadPass(std::span<const std::byte> bytes, const ReadShape& shape);

  int processors_ = 0;
  gpu::Stream stream_;
  gpu::DeviceBuffer<std::byte> state_;
  gpu::DeviceBuffer<uint64_t> sink_;
  gpu::PinnedBuffer<std::byte> host_;
  std::map<size_t, ReadShape> best_;   // by bytes
  gpu::DeviceBuffer<float> matrices_;  // three
  double product_ = 0;                 // seconds of one
  Mark begin_, end_;
};

}  // namespace varve::internal::bench
