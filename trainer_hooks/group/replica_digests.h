// SPDX-License-Identifier: Apache-2.0
//
// Digests whole tensors where they lie, on a few threads, while the trainer goes on. Equal replicas
// have equal digests, whatever their strides.
//
// Thread rule: the thread that made it calls Finish, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "varve/device_tensor_source.h"
#include "varve/result.h"
#include "varve/training_state.h"

namespace varve::internal {

// Returns the chunks of tensors on devices that DigestNow will be asked for.
std::vector<DeviceTensorSource::Chunk> DeviceChunksOf(std::span<const StateTensor* const> tensors);

class ReplicaDigests {
 public:
  // Starts to digest. `tensors` must outlive it, and need neither names nor layouts. Their data is
  // read until Finish has returned, or until this object is destroyed. `devices` must be prepared
  // for their chunks. It may be null if no tensor is on a device.
  ReplicaDigests(std::span<const StateTensor> tensors, DeviceTensorSource* devices,
                 int num_threads);
  ~ReplicaDigests();
  ReplicaDigests(const ReplicaDigests&) = delete;
  ReplicaDigests& operator=(const ReplicaDigests&) = delete;

  // Helps with the work, and returns the digests in the order of the tensors. kUnavailable: a
  // thread was out of memory, or a device has failed.
  Result<std::vector<Digest>> Finish();

  std::span<const StateTensor> tensors() const { return tensors_; }

 private:
  void Work();
  Status DigestOnDevices(DeviceTensorSource* devices);

  const std::span<const StateTensor> tensors_;
  std::vector<std::vector<Digest>> digests_;           // of each tensor's chunks
  std::vector<std::pair<uint32_t, uint32_t>> chunks_;  // tensor and chunk, on the host
  std::vector<std::pair<uint32_t, uint32_t>> device_chunks_;
  Status device_status_;
  std::atomic<size_t> next_{0};  // of chunks_
  std::atomic<bool> is_out_of_memory_{false};
  std::vector<std::jthread> threads_;  // last: they end before anything above goes
};

}  // namespace varve::internal
