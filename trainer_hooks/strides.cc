// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/strides.h"

#include <algorithm>
#include <cstring>

namespace varve {
namespace {

// Copies elements of `kBytes` from one place to another, each some bytes after the one before.
template <size_t kBytes>
void CopyElements(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, kBytes);
}

void CopyRun(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step, int64_t n,
             size_t bytes) {
  if (from_step == to_step && to_step == static_cast<int64_t>(bytes)) {
    std::memcpy(to, from, static_cast<size_t>(n) * bytes);
    return;
  }
  switch (bytes) {
    case 1:
      return CopyElements<1>(from, from_step, to, to_step, n);
    case 2:
      return CopyElements<2>(from, from_step, to, to_step, n);
    case 4:
      return CopyElements<4>(from, from_step, to, to_step, n);
    default:
      return CopyElements<8>(from, from_step, to, to_step, n);
  }
}

}  // namespace

Strides::Strides(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  int64_t dense = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t stride = strides.empty() ? dense : strides[i];
    dense *= shape[i];
    if (shape[i] == 1) continue;
    if (!axes_.empty() && axes_.back().stride * axes_.back().size == stride) {
      axes_.back().size *= shape[i];
    } else {
      axes_.push_back({shape[i], stride});
    }
  }
  std::reverse(axes_.begin(), axes_.end());
}

bool Strides::IsDense() const {
  return axes_.empty() || (axes_.size() == 1 && axes_[0].stride == 1);
}

bool Strides::HasZero() const {
  return std::any_of(axes_.begin(), axes_.end(), [](const Axis& axis) { return axis.stride == 0; });
}

template <typename Use>
void Strides::ForEachRun(int64_t first, int64_t count, Use use) const {
  const Axis last = axes_.empty() ? Axis{1, 1} : axes_.back();
  while (count > 0) {
    int64_t offset = first % last.size * last.stride;
    int64_t rest = first / last.size;
    for (size_t i = axes_.size(); i-- > 1;) {
      offset += rest % axes_[i - 1].size * axes_[i - 1].stride;
      rest /= axes_[i - 1].size;
    }
    const int64_t n = std::min(count, last.size - first % last.size);
    use(offset, last.stride, n);
    first += n;
    count -= n;
  }
}

void Strides::Scatter(std::span<const std::byte> dense, size_t element_bytes, int64_t first,
                      std::byte* base) const {
  const auto bytes = static_cast<int64_t>(element_bytes);
  const std::byte* from = dense.data();
  ForEachRun(first, static_cast<int64_t>(dense.size()) / bytes,
             [&](int64_t offset, int64_t stride, int64_t n) {
               CopyRun(from, bytes, base + offset * bytes, stride * bytes, n, element_bytes);
               from += n * bytes;
             });
}

void Strides::Gather(const std::byte* base, size_t element_bytes, int64_t first,
                     std::span<std::byte> dense) const {
  const auto bytes = static_cast<int64_t>(element_bytes);
  std::byte* to = dense.data();
  ForEachRun(first, static_cast<int64_t>(dense.size()) / bytes,
             [&](int64_t offset, int64_t stride, int64_t n) {
               CopyRun(base + offset * bytes, stride * bytes, to, bytes, n, element_bytes);
               to += n * bytes;
             });
}

}  // namespace varve
