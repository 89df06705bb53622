// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_tensor.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "store/save/replayed_step.h"
#include "store/shards/strides.h"

namespace varve::internal {

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

std::span<SaveTensor* const> SaveTensor::together() const {
  return step() != nullptr ? step()->tensors : std::span<SaveTensor* const>();
}

SaveTensor* SaveTensors::Add(const TensorView& view) {
  const std::optional<Place> place = FindPlace(view.name, view.shard);
  if (!place.has_value()) return nullptr;
  SaveTensor tensor;
  tensor.name = Keep(view.name);
  tensor.shape = Keep(view.shape);
  tensor.data = view.data;
  tensor.shard = view.shard;
  tensor.dtype = view.dtype;
  tensor.role = view.role;
  if (view.layout != nullptr) tensor.layout = Keep(Canonical(*view.layout));
  const bool is_dense = IsDense(view.shape, view.strides);
  tensor.extra = MakeExtra({.strides = is_dense ? std::span<const int64_t>() : Keep(view.strides),
                            .derived_from = Keep(view.derived_from),
                            .alias_of = Keep(view.alias_of)});
  return Insert(*place, std::move(tensor));
}

SaveTensor* SaveTensors::Add(const std::shared_ptr<const TensorSpec>& spec, uint32_t shard) {
  const std::optional<Place> place = FindPlace(spec->name, shard);
  if (!place.has_value()) return nullptr;
  const auto is_same_owner = [](const auto& a, const auto& b) {
    return !a.owner_before(b) && !b.owner_before(a);
  };
  if (specs_.empty() || !is_same_owner(specs_.back(), spec)) specs_.push_back(spec);
  SaveTensor tensor;
  tensor.name = spec->name;
  tensor.shape = spec->shape;
  tensor.shard = shard;
  tensor.dtype = spec->dtype;
  tensor.role = spec->role;
  if (spec->layout.has_value()) tensor.layout = KeepPointer(&*spec->layout);
  tensor.extra = MakeExtra({.derived_from = spec->derived_from, .alias_of = spec->alias_of});
  return Insert(*place, std::move(tensor));
}

// Nothing: there is such a tensor.
std::optional<SaveTensors::Place> SaveTensors::FindPlace(std::string_view name, uint32_t shard) {
  if (slots_.empty()) {
    if (IsLast(name, shard)) return Place();
    MakeTable();
  }
  if (4 * (tensors_.size() + 1) > 3 * slots_.size()) Grow();
  const uint32_t hash = HashOf(name, shard);
  Slot* const slot = FindSlot(name, shard, hash);
  return slot->number > 0 ? std::nullopt : std::optional<Place>({slot, hash});
}

SaveTensor* SaveTensors::Insert(const Place& place, SaveTensor tensor) {
  SaveTensor* const added = &tensors_.emplace_back(std::move(tensor));
  if (place.slot != nullptr) *place.slot = {place.hash, static_cast<uint32_t>(tensors_.size())};
  return added;
}

bool SaveTensors::IsLast(std::string_view name, uint32_t shard) const {
  if (tensors_.empty()) return true;
  const SaveTensor& last = tensors_.back();
  return std::tie(last.name, last.shard) < std::tie(name, shard);
}

void SaveTensors::MakeTable() {
  size_t size = 64;
  while (4 * (tensors_.size() + 1) > 3 * size) size *= 2;
  slots_.assign(size, {});
  uint32_t number = 0;
  for (const SaveTensor& tensor : tensors_) {
    const uint32_t hash = HashOf(tensor.name, tensor.shard);
    *FindSlot(tensor.name, tensor.shard, hash) = {hash, ++number};
  }
}

SaveTensor::Extra* SaveTensors::MakeExtra(const SaveTensor::Extra& extra) {
  if (extra.strides.empty() && extra.derived_from.empty() && extra.alias_of.empty()) return nullptr;
  return new (arena_.allocate(sizeof extra, alignof(SaveTensor::Extra))) SaveTensor::Extra(extra);
}

SaveTensor::Extra* SaveTensors::ExtraOf(SaveTensor* tensor) {
  if (tensor->extra == nullptr) {
    void* const place = arena_.allocate(sizeof(SaveTensor::Extra), alignof(SaveTensor::Extra));
    tensor->extra = new (place) SaveTensor::Extra();
  }
  return tensor->extra;
}

SaveTensor* SaveTensors::Find(std::string_view name, uint32_t shard) {
  if (!slots_.empty()) {
    const Slot* const slot = FindSlot(name, shard, HashOf(name, shard));
    return slot->number > 0 ? &tensors_[slot->number - 1] : nullptr;
  }
  const auto is_before = [](const SaveTensor& tensor, const auto& key) {
    return std::tie(tensor.name, tensor.shard) < key;
  };
  const auto key = std::tie(name, shard);
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), key, is_before);
  return found != tensors_.end() && std::tie(found->name, found->shard) == key ? &*found : nullptr;
}

std::vector<SaveTensor*> SaveTensors::Sorted() {
  std::vector<SaveTensor*> sorted;
  sorted.reserve(tensors_.size());
  for (SaveTensor& tensor : tensors_) sorted.push_back(&tensor);
  if (!are_sorted()) std::sort(sorted.begin(), sorted.end(), IsBefore);
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
  slots_.assign(2 * old.size(), {});
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
  const ShardLayout* const equal = FindEqual(layout, hash);
  if (equal != nullptr) return equal;
  layouts_.push_back(std::move(layout));
  return layout_by_hash_.emplace(hash, &layouts_.back())->second;
}

const ShardLayout* SaveTensors::KeepPointer(const ShardLayout* layout) {
  const size_t hash = HashOf(*layout);
  const ShardLayout* const equal = FindEqual(*layout, hash);
  return equal != nullptr ? equal : layout_by_hash_.emplace(hash, layout)->second;
}

const ShardLayout* SaveTensors::FindEqual(const ShardLayout& layout, size_t hash) const {
  const auto [begin, end] = layout_by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (*it->second == layout) return it->second;
  }
  return nullptr;
}

}  // namespace varve::internal
