// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/stage_layout.h"

#include <map>
#include <string_view>
#include <utility>

#include "store/save/chunk_source.h"
#include "store/shards/strides.h"

namespace varve::internal {

std::span<const std::byte> StageLayout::Memory::Look(uint64_t i,
                                                     std::vector<std::byte>* gathered) const {
  return DenseBytes({.dtype = tensor->dtype,
                     .shape = tensor->shape,
                     .data = tensor->data,
                     .strides = tensor->strides},
                    geometry.ChunkOffset(i), geometry.ChunkBytes(i), gathered);
}

Result<std::shared_ptr<const StageLayout>> StageLayout::Make(
    std::shared_ptr<const StateTensors> tensors) {
  const std::shared_ptr<StageLayout> layout(new StageLayout(std::move(tensors)));
  VARVE_RETURN_IF_ERROR(layout->ListMemories());
  layout->LinkMasters();
  layout->ListChunks();
  return std::shared_ptr<const StageLayout>(layout);
}

Status StageLayout::ListMemories() {
  const std::vector<StateTensor>& tensors = tensors_->tensors;
  memories_.reserve(tensors.size());  // others point to them
  named_.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StateTensor& tensor = tensors[i];
    const size_t first = tensors_->firsts[i];
    if (first == i) {
      VARVE_RETURN_IF_ERROR(NumBytes(tensor.dtype, tensor.shape).status());
      const uint32_t elements_per_chunk = ElementsPerChunk(tensor.dtype);
      memories_.push_back({.tensor = &tensor,
                           .geometry = GeometryOf(tensor.dtype, tensor.shape, elements_per_chunk)});
    }
    named_[i] = {.tensor = &tensor,
                 .memory = first == i ? &memories_.back() : named_[first].memory,
                 .shard = tensors_->shards[i]};
    ++named_[i].memory->uses;
  }
  return Status::Ok();
}

void StageLayout::LinkMasters() {
  std::map<std::pair<std::string_view, uint32_t>, Named*> by_name;  // and number
  internal::LinkMasters(&named_, [&](std::string_view name, uint32_t shard) {
    if (by_name.empty()) {
      for (Named& named : named_) by_name.try_emplace({named.tensor->name, named.shard}, &named);
    }
    const auto it = by_name.find({name, shard});
    return it != by_name.end() ? it->second : nullptr;
  });
}

void StageLayout::ListChunks() {
  std::vector<Memory*> on_devices, on_host;
  for (const Named* const named : SaveOrder<Named>(&named_)) {
    Memory* const memory = named->memory;
    if (std::exchange(memory->is_listed, true)) continue;
    (memory->is_on_host() ? on_host : on_devices).push_back(memory);
  }
  for (const std::vector<Memory*>& memories : {on_devices, on_host}) {
    for (Memory* const memory : memories) {
      memory->first_chunk = chunks_.size();
      for (uint64_t i = 0; i < memory->geometry.NumChunks(); ++i) {
        chunks_.push_back({memory, i});
        if (memory->is_on_host()) continue;
        device_chunks_.push_back({memory->tensor->device, memory->Bytes(i), i == 0});
      }
    }
  }
}

}  // namespace varve::internal
