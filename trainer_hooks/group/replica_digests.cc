// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replica_digests.h"

#include <algorithm>
#include <exception>
#include <new>

#include "store/gather.h"

namespace varve {
namespace {

// Any seed, the same on all ranks: these digests are compared and forgotten.
constexpr uint64_t kSeed = 0x7661727665;
// Elements digested at a time, whatever their type; of whole bytes even where elements are not.
// Few, as each thread has memory for so many that have strides: 256 KiB of the largest.
constexpr uint64_t kChunkElements = uint64_t{32} << 10;

uint64_t ElementsOf(const StateTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

}  // namespace

ReplicaDigests::ReplicaDigests(std::vector<StateTensor> tensors, int num_threads)
    : tensors_(std::move(tensors)), digests_(tensors_.size()) {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto n =
        static_cast<uint32_t>((ElementsOf(tensors_[i]) + kChunkElements - 1) / kChunkElements);
    digests_[i].resize(n);
    for (uint32_t chunk = 0; chunk < n; ++chunk) chunks_.emplace_back(i, chunk);
  }
  const size_t useful = std::min(static_cast<size_t>(num_threads), chunks_.size());
  try {
    for (size_t i = 0; i < useful; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::exception&) {
    // No more threads are to be had: Finish does what is left.
  }
}

ReplicaDigests::~ReplicaDigests() { next_ = chunks_.size(); }

void ReplicaDigests::Work() {
  try {
    std::vector<std::byte> gathered;
    for (size_t i = next_++; i < chunks_.size(); i = next_++) {
      const auto [tensor, chunk] = chunks_[i];
      digests_[tensor][chunk] = DigestChunk(tensors_[tensor], chunk, &gathered);
    }
  } catch (const std::bad_alloc&) {
    is_out_of_memory_ = true;  // not the error itself: there may be no memory for that, either
  }
}

Digest ReplicaDigests::DigestChunk(const StateTensor& tensor, uint64_t chunk,
                                   std::vector<std::byte>* gathered) const {
  const auto* data = static_cast<const std::byte*>(tensor.data);
  const auto bits = static_cast<uint64_t>(DTypeBits(tensor.dtype));
  const uint64_t first = chunk * kChunkElements;
  const uint64_t count = std::min(kChunkElements, ElementsOf(tensor) - first);
  if (IsDense(tensor.shape, tensor.strides)) {
    return ComputeDigest(kSeed, {data + first * bits / 8, count * bits / 8});
  }
  gathered->resize(count * bits / 8);
  Gather(tensor.shape, tensor.strides, data, first, count, bits / 8, gathered->data());
  return ComputeDigest(kSeed, *gathered);
}

Result<std::vector<Digest>> ReplicaDigests::Finish() {
  Work();
  threads_.clear();
  if (is_out_of_memory_) {
    return Status::Unavailable("there is no memory to compare replicas: a thread needs " +
                               std::to_string(kChunkElements * 8 >> 10) + " KiB");
  }
  std::vector<Digest> whole;
  for (const std::vector<Digest>& chunks : digests_) {
    whole.push_back(ComputeDigest(kSeed, std::as_bytes(std::span(chunks))));
  }
  return whole;
}

}  // namespace varve
