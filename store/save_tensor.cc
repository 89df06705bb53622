// SPDX-License-Identifier: Apache-2.0
#include "store/save_tensor.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "store/gather.h"

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

bool IsBefore(const SaveTensor* a, const SaveTensor* b) {
  return std::tie(a->name, a->shard) < std::tie(b->name, b->shard);
}

}  // namespace

TensorRecordView SaveTensor::Record(uint64_t birth) const {
  return {.birth = birth,
          .dtype = dtype,
          .elements_per_chunk = elements_per_chunk,
          .shape = shape,
          .content = content,
          .lists = lists,
          .alias_of = rare != nullptr ? rare->alias_of : std::string_view(),
          .derived_from = derived_from(),
          .role = role,
          .layout = layout};
}

SaveTensor* SaveTensors::Add(const TensorView& view) {
  if (4 * (tensors_.size() + 1) > 3 * slots_.size()) Grow();
  SaveTensor*& slot = slots_[SlotOf(view.name, view.shard)];
  if (slot != nullptr) return nullptr;
  SaveTensor tensor;
  tensor.name = Keep(view.name);
  tensor.shape = Keep(view.shape);
  const bool is_dense = IsDense(view.shape, view.strides);
  if (!is_dense || !view.derived_from.empty() || !view.alias_of.empty()) {
    void* const place = arena_.allocate(sizeof(SaveTensor::Rare), alignof(SaveTensor::Rare));
    tensor.rare = new (place)
        SaveTensor::Rare{.strides = is_dense ? std::span<const int64_t>() : Keep(view.strides),
                         .derived_from = Keep(view.derived_from),
                         .alias_of = Keep(view.alias_of)};
  }
  tensor.data = static_cast<const std::byte*>(view.data);
  if (view.layout != nullptr) tensor.layout = Keep(Canonical(*view.layout));
  tensor.shard = view.shard;
  tensor.elements_per_chunk = ElementsPerChunk(view.dtype);
  tensor.dtype = view.dtype;
  tensor.role = view.role;
  slot = &tensors_.emplace_back(std::move(tensor));
  return slot;
}

SaveTensor* SaveTensors::Find(std::string_view name, uint32_t shard) const {
  return slots_.empty() ? nullptr : slots_[SlotOf(name, shard)];
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
size_t SaveTensors::SlotOf(std::string_view name, uint32_t shard) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = Mix(std::hash<std::string_view>()(name), shard) & mask;
  while (slots_[slot] != nullptr && (slots_[slot]->shard != shard || slots_[slot]->name != name)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void SaveTensors::Grow() {
  const std::vector<SaveTensor*> old = std::move(slots_);
  slots_.assign(std::max<size_t>(64, 2 * old.size()), nullptr);
  for (SaveTensor* const tensor : old) {
    if (tensor != nullptr) slots_[SlotOf(tensor->name, tensor->shard)] = tensor;
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
