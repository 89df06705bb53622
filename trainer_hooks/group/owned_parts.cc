// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/owned_parts.h"

#include <utility>

namespace varve::internal {

void OwnedParts::LoadStored() {
  if (stored_ == nullptr) return;
  Result<std::vector<TensorInfo>> list = std::exchange(stored_, nullptr)();
  if (!list.ok()) return;  // without the hint a plan is as good, and may store more
  for (TensorInfo& tensor : *list) {
    const std::string name = tensor.name;
    if (tensor.layout.has_value()) of_earlier_job_.emplace(name, std::move(tensor));
  }
}

// The part of the tensor that one of its stored shards is.
std::optional<Range> OwnedParts::FindStored(const HeldTensor& tensor) const {
  const auto [begin, end] = of_earlier_job_.equal_range(tensor.name);
  if (begin == end) return std::nullopt;
  const ShardLayout layout = tensor.Layout();
  const int64_t size = layout.NumLocal();
  for (auto it = begin; it != end; ++it) {
    const ShardLayout& stored = *it->second.layout;
    if (it->second.dtype != tensor.dtype || stored.axes != layout.axes ||
        stored.global_shape != layout.global_shape) {
      continue;
    }
    if (stored.flat == layout.flat) return Range{0, size};
    if (!stored.flat.has_value()) continue;
    const int64_t first = layout.flat ? layout.flat->begin : 0;
    const Range part{stored.flat->begin - first, stored.flat->end - first};
    if (part.begin >= 0 && part.begin < part.end && part.end <= size) return part;
  }
  return std::nullopt;
}

std::optional<Range> OwnedParts::Find(const HeldTensor& tensor) {
  LoadStored();
  const auto planned = planned_.find(tensor.Key());
  return planned != planned_.end() ? planned->second : FindStored(tensor);
}

void OwnedParts::Learn(std::span<const HeldTensor> held,
                       std::span<const std::optional<Range>> writes) {
  for (size_t i = 0; i < held.size(); ++i) planned_[held[i].Key()] = writes[i];
}

}  // namespace varve::internal
