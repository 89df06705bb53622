// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a save on their way into the store. A save may have a million of them, so each
// takes as little memory as it can: names, shapes and lists lie one behind the other, equal layouts
// lie once, and references to chunks are there only while these are in the pipeline.
// Thread rule: one thread at a time; of the pipeline, as save_pipeline.h says.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/format/record.h"
#include "store/save/chunk_source.h"
#include "varve/tensor.h"

namespace varve {

// Its texts, shape, strides and layout are kept by SaveTensors. Dense strides are empty, and a
// layout is canonical.
struct SaveTensor : TensorView {
  // While its chunks are in the pipeline.
  struct Flight {
    std::vector<ChunkRef> parent_refs;
    std::vector<ChunkRef> refs;  // the result, one a chunk
  };

  std::shared_ptr<ChunkSource> chunks;  // set: the bytes come from here, not from `data`
  SaveTensor* master = nullptr;         // of derived_from, when it can be one
  // Of the pipeline: itself, and tensors derived from it, that need `flight` still.
  uint32_t num_users = 0;
  bool are_parents_known = false;  // its source has learned the digests of just these parents

  // The same tensor one step ago, when it was cut the same way and can be read: its lists.
  std::span<const ListAddress> parent_lists;
  uint64_t parent_chunks = 0;
  std::unique_ptr<Flight> flight;

  // The result.
  Digest content;
  std::span<const ListAddress> lists;

  ChunkGeometry Geometry() const { return GeometryOf(dtype, shape, ElementsPerChunk(dtype)); }
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  TensorRecordView Record(uint64_t save_id) const {
    return {*this, save_id, ElementsPerChunk(dtype), content, lists};
  }
};

// A save may have a million tensors. Name, shape and the place in the hash table come on top.
static_assert(sizeof(SaveTensor) <= 208);

class SaveTensors {
 public:
  // Copies what describes a valid view. Null: there is a tensor of this name and number already.
  SaveTensor* Add(const TensorView& view);
  // Null: there is none.
  SaveTensor* Find(std::string_view name, uint32_t shard);

  size_t size() const { return tensors_.size(); }
  // In the order in which they were added.
  std::deque<SaveTensor>& all() { return tensors_; }
  const std::deque<SaveTensor>& all() const { return tensors_; }
  // By name, then number: the order of their keys in the store. When all are added.
  std::vector<SaveTensor*> Sorted();

  // Keeps a copy as long as this lives.
  std::span<const ListAddress> Keep(std::span<const ListAddress> lists);

 private:
  // A tensor is looked at only where its hash is the one that is looked for: of many, none is in
  // the processor's cache.
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = 0;  // of a tensor, from 1 on; 0: there is none
  };

  Slot* FindSlot(std::string_view name, uint32_t shard, uint32_t hash);
  void Grow();
  std::string_view Keep(std::string_view text);
  std::span<const int64_t> Keep(std::span<const int64_t> numbers);
  const ShardLayout* Keep(ShardLayout layout);

  std::pmr::monotonic_buffer_resource arena_{size_t{4} << 10};
  std::deque<SaveTensor> tensors_;
  std::vector<Slot> slots_;  // a hash table of a power of two, at most three quarters full
  std::deque<ShardLayout> layouts_;
  std::unordered_multimap<size_t, const ShardLayout*> layout_by_hash_;
};

}  // namespace varve
