// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a save on their way into the store. A save may have a million of them, so each
// takes as little memory as it can: names, shapes and lists lie one behind the other, equal layouts
// lie once, and references to chunks are there only while these are in the pipeline.
//
// Thread rule: one thread at a time. In the pipeline, save_pipeline.h says which.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/format/record.h"
#include "store/save/chunk_source.h"
#include "store/save/save_order.h"
#include "varve/tensor.h"

namespace varve::internal {

struct ReplayedStep;

// A tensor of a save: a TensorView, packed. SaveTensors keeps what it points to. A layout is
// canonical.
struct SaveTensor {
  // What only some tensors have.
  struct Extra {
    std::span<const int64_t> strides;  // empty = dense
    std::string_view derived_from;
    std::string_view alias_of;
    SaveTensor* master = nullptr;  // of derived_from, when it can be one
    ReplayedStep* step = nullptr;  // in which this tensor takes part
  };
  // What a tensor has while its chunks are in the pipeline.
  struct Flight {
    std::vector<ChunkRef> parent_refs;
    std::vector<ChunkRef> refs;  // the result, one a chunk
  };

  std::string_view name;
  std::span<const int64_t> shape;
  const void* data = nullptr;
  const ShardLayout* layout = nullptr;
  Extra* extra = nullptr;
  std::unique_ptr<ChunkSource> chunks;  // set: the bytes come from here, not from `data`
  uint32_t shard = 0;
  // For the pipeline: how many tensors still need `flight`. These are this one and those derived
  // from it.
  uint32_t num_users = 0;
  DType dtype = DType::kF32;
  TensorRole role = TensorRole::kOther;
  bool are_parents_known = false;  // its source has learned the digests of just these parents

  // The lists of the same tensor one step ago, if it was cut the same way and can be read.
  uint64_t parent_chunks = 0;
  const ListAddress* first_parent_list = nullptr;
  std::unique_ptr<Flight> flight;

  // The result.
  Digest content;
  const ListAddress* first_list = nullptr;

  std::span<const int64_t> strides() const {
    return extra != nullptr ? extra->strides : std::span<const int64_t>();
  }
  std::string_view derived_from() const {
    return extra != nullptr ? extra->derived_from : std::string_view();
  }
  std::string_view alias_of() const {
    return extra != nullptr ? extra->alias_of : std::string_view();
  }
  SaveTensor* master() const { return extra != nullptr ? extra->master : nullptr; }
  // Precondition: it is derived from another.
  void SetMaster(SaveTensor* of) { extra->master = of; }
  ReplayedStep* step() const { return extra != nullptr ? extra->step : nullptr; }
  // The tensors of its step. Empty: it has none.
  std::span<SaveTensor* const> together() const;
  std::span<const ListAddress> parent_lists() const {
    return {first_parent_list, NumLists(parent_chunks)};
  }
  std::span<const ListAddress> lists() const {
    return {first_list, first_list != nullptr ? NumLists(Geometry().NumChunks()) : 0};
  }
  ChunkGeometry Geometry() const { return GeometryOf(dtype, shape, ElementsPerChunk(dtype)); }
  CopyTraits Traits() const { return {dtype, strides().empty(), Geometry().NumChunks()}; }
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  TensorRecordView Record(uint64_t save_id) const {
    return {{.name = name,
             .dtype = dtype,
             .shape = shape,
             .derived_from = derived_from(),
             .alias_of = alias_of(),
             .role = role,
             .shard = shard,
             .layout = layout},
            save_id,
            ElementsPerChunk(dtype),
            content,
            lists()};
  }

 private:
  static size_t NumLists(uint64_t chunks) { return (chunks + kChunksPerList - 1) / kChunksPerList; }
};

// A save may have a million tensors. Each also takes its `extra`, its place in the hash table, and
// its name and shape if they are copied.
static_assert(sizeof(SaveTensor) <= 128);

class SaveTensors {
 public:
  // Copies the description of a valid view. Null: there is a tensor of this name and number
  // already.
  SaveTensor* Add(const TensorView& view);
  // The same without a copy. `spec` is kept instead. Its layout must be canonical.
  SaveTensor* Add(const std::shared_ptr<const TensorSpec>& spec, uint32_t shard);
  // Null: there is none.
  SaveTensor* Find(std::string_view name, uint32_t shard);
  // Makes it if there is none.
  SaveTensor::Extra* ExtraOf(SaveTensor* tensor);

  size_t size() const { return tensors_.size(); }
  // In the order in which they were added.
  std::deque<SaveTensor>& all() { return tensors_; }
  const std::deque<SaveTensor>& all() const { return tensors_; }
  // Returns all by name, then number, which is the order of their keys in the store. Call it when
  // all are added.
  std::vector<SaveTensor*> Sorted();
  bool are_sorted() const { return slots_.empty(); }
  // True if some tensor has a layout.
  bool have_layouts() const { return !layout_by_hash_.empty(); }

  // Keeps a copy as long as this object lives.
  std::span<const ListAddress> Keep(std::span<const ListAddress> lists);

 private:
  // A tensor is looked at only if its hash is the one that is looked for, because most of many
  // tensors are not in the processor's cache.
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = 0;  // of a tensor, from 1 on. 0: there is none
  };

  // Where a tensor is to be added.
  struct Place {
    Slot* slot = nullptr;  // null: there is no table
    uint32_t hash = 0;
  };

  Slot* FindSlot(std::string_view name, uint32_t shard, uint32_t hash);
  void Grow();
  void MakeTable();
  std::optional<Place> FindPlace(std::string_view name, uint32_t shard);
  SaveTensor* Insert(const Place& place, SaveTensor tensor);
  bool IsLast(std::string_view name, uint32_t shard) const;
  SaveTensor::Extra* MakeExtra(const SaveTensor::Extra& extra);
  std::string_view Keep(std::string_view text);
  std::span<const int64_t> Keep(std::span<const int64_t> numbers);
  // Equal layouts give one pointer. The first copies what it keeps, the second does not.
  const ShardLayout* Keep(ShardLayout layout);
  const ShardLayout* KeepPointer(const ShardLayout* layout);
  const ShardLayout* FindEqual(const ShardLayout& layout, size_t hash) const;

  std::pmr::monotonic_buffer_resource arena_{size_t{4} << 10};
  std::deque<SaveTensor> tensors_;
  // A hash table of a power of two, at most three quarters full. Empty as long as tensors come in
  // the order of their names, since then none can be there twice.
  std::vector<Slot> slots_;
  std::vector<std::shared_ptr<const TensorSpec>> specs_;  // one for each owner
  std::deque<ShardLayout> layouts_;
  std::unordered_multimap<size_t, const ShardLayout*> layout_by_hash_;
};

}  // namespace varve::internal
