// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_tensor.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "store/shards/gather.h"

namespace varve {
namespace {

size_t Mix(size_t hash, uint64_t more) {
  return (hash ^ static_cast<size_t>(more)) * size_t{0x9e3779b97f4a7c15} + (hash >> 29);
}

size_t HashOf(const ShardLayout& layout) {
  size_t hash = layout.flat.has_value() ? 1 : 0;
  if (layout.flat.has_value()) hash = Mix(hash, static_cast<uint64_t>(layout.flat->begin));
  for (const int64_t d : layout.global_shape) hash = Mix(hash, static_cast<uint64_t>(d));
  for (const auto& segments : layout.axes) {
    for (const Segment& segment : segments) {
      hash = Mix(Mix(hash, static_cast<uint64_t>(segment.begin)),
                 static_cast<uint64_t>(segment.length));
    }
  }
  return hash;
}

uint32_t HashOf(std::string_view name, uint32_t shard) {
  const size_t hash = Mix(std::hash<std::string_view>()(name), shard);
  return static_cast<uint32_t>(hash >> 32);
}

bool IsBefore(const SaveTensor* a, const SaveTensor* b) {
  return std::tie(a->name, a->shard) < std::tie(b->name, b->shard);
}

}  // namespace

SaveTensor* SaveTensors::Add(const TensorView& view) {
  if (4 * (tensors_.size() + 1) > 3 * slots_.size()) Grow();
  const uint32_t hash = HashOf(view.name, view.shard);
  Slot* const slot = FindSlot(view.name, view.shard, hash);
  if (slot->number > 0) return nullptr;
  SaveTensor* const added = &tensors_.emplace_back();
  added->name = Keep(view.name);
  added->shape = Keep(view.shape);
  added->data = view.data;
  if (view.layout != nullptr) added->layout = Keep(Canonical(*view.layout));
  added->shard = view.shard;
  added->dtype = view.dtype;
  added->role = view.role;
  const bool is_dense = IsDense(view.shape, view.strides);
  if (!is_dense || !view.derived_from.empty() || !view.alias_of.empty()) {
    void* const place = arena_.allocate(sizeof(SaveTensor::Extra), alignof(SaveTensor::Extra));
    added->extra = new (place) SaveTensor::Extra{
        .strides = is_dense ? std::span<const int64_t>() : Keep(view.strides),
        .derived_from = Keep(view.derived_from),
        .alias_of = Keep(view.alias_of)};
  }
  *slot = {hash, static_cast<uint32_t>(tensors_.size())};
  return added;
}

SaveTensor* SaveTensors::Find(std::string_view name, uint32_t shard) {
  if (slots_.empty()) return nullptr;
  const Slot* const slot = FindSlot(name, shard, HashOf(name, shard));
  return slot->number > 0 ? &tensors_[slot->number - 1] : nullptr;
}

std::vector<SaveTensor*> SaveTensors::Sorted() {
  std::vector<SaveTensor*> sorted;
  sorted.reserve(tensors_.size());
  for (SaveTensor& tensor : tensors_) sorted.push_back(&tensor);
  if (!std::is_sorted(sorted.begin(), sorted.end(), IsBefore)) {
    std::sort(sorted.begin(), sorted.end(), IsBefore);
  }
  return sorted;
}

// The slot of this tensor, or the empty one where it would be.
SaveTensors::Slot* SaveTensors::FindSlot(std::string_view name, uint32_t shard, uint32_t hash) {
  const size_t mask = slots_.size() - 1;
  const auto is_other = [&](const Slot& slot) {
    if (slot.hash != hash) return true;
    const SaveTensor& tensor = tensors_[slot.number - 1];
    return tensor.shard != shard || tensor.name != name;
  };
  size_t at = hash & mask;
  while (slots_[at].number > 0 && is_other(slots_[at])) at = (at + 1) & mask;
  return &slots_[at];
}

void SaveTensors::Grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(std::max<size_t>(64, 2 * old.size()), {});
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.number == 0) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].number > 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

std::string_view SaveTensors::Keep(std::string_view text) {
  if (text.empty()) return {};
  auto* const place = static_cast<char*>(arena_.allocate(text.size(), 1));
  std::copy(text.begin(), text.end(), place);
  return {place, text.size()};
}

std::span<const int64_t> SaveTensors::Keep(std::span<const int64_t> numbers) {
  if (numbers.empty()) return {};
  auto* const place =
      static_cast<int64_t*>(arena_.allocate(numbers.size_bytes(), alignof(int64_t)));
  std::copy(numbers.begin(), numbers.end(), place);
  return {place, numbers.size()};
}

std::span<const ListAddress> SaveTensors::Keep(std::span<const ListAddress> lists) {
  if (lists.empty()) return {};
  auto* const place =
      static_cast<ListAddress*>(arena_.allocate(lists.size_bytes(), alignof(ListAddress)));
  std::copy(lists.begin(), lists.end(), place);
  return {place, lists.size()};
}

const ShardLayout* SaveTensors::Keep(ShardLayout layout) {
  const size_t hash = HashOf(layout);
  const auto [begin, end] = layout_by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (*it->second == layout) return it->second;
  }
  layouts_.push_back(std::move(layout));
  return layout_by_hash_.emplace(hash, &layouts_.back())->second;
}

}  // namespace varve
