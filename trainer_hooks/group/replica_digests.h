// SPDX-License-Identifier: Apache-2.0
//
// Digests of whole tensors where they lie, taken on a few threads while a trainer goes on. Replicas
// have equal digests whatever their strides.
//
// Thread rule: Finish once, by the thread that made it.
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

// The chunks of tensors on devices: what DigestNow will be asked for.
std::vector<DeviceTensorSource::Chunk> DeviceChunksOf(std::span<const StateTensor* const> tensors);

class ReplicaDigests {
 public:
  // Begins. The tensors' data is read until Finish has returned, or this is destroyed. `devices`,
  // which is prepared for their chunks, may be null when no tensor is on one.
  ReplicaDigests(std::vector<StateTensor> tensors, DeviceTensorSource* devices, int num_threads);
  ~ReplicaDigests();
  ReplicaDigests(const ReplicaDigests&) = delete;
  ReplicaDigests& operator=(const ReplicaDigests&) = delete;

  // Helps, and returns the digests in the order of the tensors. kUnavailable: a thread was out of
  // memory, or a device has failed.
  Result<std::vector<Digest>> Finish();

  const std::vector<StateTensor>& tensors() const { return tensors_; }

 private:
  void Work();
  Status DigestOnDevices(DeviceTensorSource* devices);
  Digest DigestChunk(const StateTensor& tensor, uint64_t chunk,
                     std::vector<std::byte>* gathered) const;

  const std::vector<StateTensor> tensors_;
  std::vector<std::vector<Digest>> digests_;           // of each tensor's chunks
  std::vector<std::pair<uint32_t, uint32_t>> chunks_;  // tensor, chunk; on the host
  std::vector<std::pair<uint32_t, uint32_t>> device_chunks_;
  Status device_status_;
  std::atomic<size_t> next_{0};  // of chunks_
  std::atomic<bool> is_out_of_memory_{false};
  std::vector<std::jthread> threads_;  // last: they end before anything above goes
};

}  // namespace varve::internal
