// SPDX-License-Identifier: Apache-2.0
//
// Says how the tensors of a state are cut into chunks, and in which order a save reads them. It is
// made once, and stays as long as the tensors stay where they are. It does not change, so any
// thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/format/record.h"
#include "store/save/save_order.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/device_tensor_source.h"
#include "varve/result.h"

namespace varve::internal {

class StageLayout {
 public:
  // The memory of a tensor, which may have several names. The numbers of its chunks start at
  // `first_chunk`.
  struct Memory {
    const StateTensor* tensor = nullptr;  // its first name
    ChunkGeometry geometry;
    size_t first_chunk = 0;
    int64_t uses = 0;  // reads of each chunk by a save: one a name, one a tensor derived from it
    bool is_listed = false;

    bool is_on_host() const { return tensor->device == kHost; }
    // Returns the bytes of a chunk where they lie. Precondition: the tensor is dense.
    std::span<const std::byte> Bytes(uint64_t i) const { return Look(i, nullptr); }
    // The same of any tensor on the host. If the tensor is strided, returns the bytes gathered.
    std::span<const std::byte> Look(uint64_t i, std::vector<std::byte>* gathered) const;
  };
  // One name of a memory.
  struct Named {
    const StateTensor* tensor = nullptr;
    Memory* memory = nullptr;
    Named* copied_from = nullptr;  // what it is the rounded copy of, chunk by chunk
    uint32_t shard = 0;            // its number among those of its name

    // These are for save_order.h.
    std::string_view derived_from() const { return tensor->derived_from; }
    CopyTraits Traits() const {
      return {tensor->dtype, tensor->strides.empty(), memory->geometry.NumChunks()};
    }
    Named* master() const { return copied_from; }
    void SetMaster(Named* of) {
      copied_from = of;
      ++of->memory->uses;
    }
    std::span<Named* const> together() const { return {}; }  // a stage knows no steps
  };
  // One chunk: number `chunk` of a memory.
  struct Place {
    const Memory* memory = nullptr;
    uint64_t chunk = 0;

    size_t number() const { return memory->first_chunk + chunk; }
    uint64_t bytes() const { return memory->geometry.ChunkBytes(chunk); }
  };

  // kInvalidArgument: a tensor has more bytes than there can be.
  static Result<std::shared_ptr<const StageLayout>> Make(
      std::shared_ptr<const StateTensors> tensors);
  StageLayout(const StageLayout&) = delete;
  StageLayout& operator=(const StageLayout&) = delete;

  const std::shared_ptr<const StateTensors>& tensors() const { return tensors_; }
  std::span<const Memory> memories() const { return memories_; }
  size_t IndexOf(const Memory& memory) const {
    return static_cast<size_t>(&memory - memories_.data());
  }
  std::span<const Named> named() const { return named_; }  // in the order of the state
  // Returns all chunks by number. Those on devices are first. Devices and host each have the order
  // in which a save reads them.
  std::span<const Place> chunks() const { return chunks_; }
  size_t num_on_devices() const { return device_chunks_.size(); }
  // Returns the chunks on devices, as a DeviceTensorSource takes them.
  std::span<const DeviceTensorSource::Chunk> device_chunks() const { return device_chunks_; }

 private:
  explicit StageLayout(std::shared_ptr<const StateTensors> tensors)
      : tensors_(std::move(tensors)) {}
  Status ListMemories();
  void LinkMasters();
  void ListChunks();

  const std::shared_ptr<const StateTensors> tensors_;
  std::vector<Memory> memories_;
  std::vector<Named> named_;
  std::vector<Place> chunks_;
  std::vector<DeviceTensorSource::Chunk> device_chunks_;
};

}  // namespace varve::internal
