// SPDX-License-Identifier: Apache-2.0
#include "store/shards/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace varve::internal {

namespace {

// Copies runs of `kBytes` each, or of `bytes` if kBytes is 0.
template <size_t kBytes>
void CopyLoop(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
              [[maybe_unused]] size_t bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_step, from + i * from_step, kBytes == 0 ? bytes : kBytes);
  }
}

// Calls `use` with the size as a constant if a loop is made for it, and otherwise with 0.
template <typename Use>
void WithSize(size_t bytes, Use use) {
  switch (bytes) {
    case 1:
      return use(std::integral_constant<size_t, 1>());
    case 2:
      return use(std::integral_constant<size_t, 2>());
    case 4:
      return use(std::integral_constant<size_t, 4>());
    case 6:
      return use(std::integral_constant<size_t, 6>());
    case 8:
      return use(std::integral_constant<size_t, 8>());
    case 12:
      return use(std::integral_constant<size_t, 12>());
    case 16:
      return use(std::integral_constant<size_t, 16>());
    case 32:
      return use(std::integral_constant<size_t, 32>());
    case 64:
      return use(std::integral_constant<size_t, 64>());
    default:
      return use(std::integral_constant<size_t, 0>());
  }
}

// Copies a plane of single elements: `rows` rows of `n` elements. Tiles keep the lines of both
// sides in the nearest cache, whichever axis is the fast one in memory.
struct Side {
  int64_t row_step;  // bytes
  int64_t step;
};
constexpr int64_t kTile = 32;

void CopyPlane(const std::byte* from, Side f, std::byte* to, Side t, int64_t rows, int64_t n,
               size_t bytes) {
  const auto element = static_cast<int64_t>(bytes);
  if (n == 1 || (f.step == element && t.step == element)) {
    return CopyRuns(from, f.row_step, to, t.row_step, static_cast<size_t>(n) * bytes, rows);
  }
  if (rows == 1) return CopyRuns(from, f.step, to, t.step, bytes, n);
  WithSize(bytes, [&](auto size) {
    for (int64_t row = 0; row < rows; row += kTile) {
      const int64_t row_end = std::min(rows, row + kTile);
      for (int64_t begin = 0; begin < n; begin += kTile) {
        const int64_t count = std::min(kTile, n - begin);
        for (int64_t r = row; r < row_end; ++r) {
          CopyLoop<size>(from + r * f.row_step + begin * f.step, f.step,
                         to + r * t.row_step + begin * t.step, t.step, bytes, count);
        }
      }
    }
  });
}

// Rows of elements along the last axis, `row_step` elements apart, and the place of the first one.
struct Plane {
  int64_t offset;
  int64_t row_step;
  int64_t step;
  int64_t rows;
  int64_t n;  // elements of a row
};

// Calls `use` for planes that hold the elements from `first` on, in order. Whole rows come
// together. A part of a row comes by itself.
template <typename Use>
void ForEachPlane(std::span<const StridedAxis> axes, int64_t first, int64_t count, Use use) {
  const StridedAxis inner = axes.empty() ? StridedAxis{1, 1} : axes.back();
  const StridedAxis outer = axes.size() < 2 ? StridedAxis{1, 0} : axes[axes.size() - 2];
  while (count > 0) {
    const int64_t column = first % inner.size;
    int64_t rest = first / inner.size;
    const int64_t row = rest % outer.size;
    rest /= outer.size;
    int64_t offset = column * inner.stride + row * outer.stride;
    for (size_t i = axes.size(); i-- > 2;) {
      offset += rest % axes[i - 2].size * axes[i - 2].stride;
      rest /= axes[i - 2].size;
    }
    const bool is_cut = column > 0 || count < inner.size;
    const int64_t rows = is_cut ? 1 : std::min(count / inner.size, outer.size - row);
    const int64_t n = is_cut ? std::min(count, inner.size - column) : inner.size;
    use(Plane{offset, outer.stride, inner.stride, rows, n});
    first += rows * n;
    count -= rows * n;
  }
}

}  // namespace

void CopyRuns(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
              size_t bytes, int64_t count) {
  const auto step = static_cast<int64_t>(bytes);
  if (from_step == step && to_step == step) {
    std::memcpy(to, from, bytes * static_cast<size_t>(count));
    return;
  }
  WithSize(bytes, [&](auto size) { CopyLoop<size>(from, from_step, to, to_step, bytes, count); });
}

std::vector<StridedAxis> JoinAxes(std::span<const int64_t> shape,
                                  std::span<const int64_t> strides) {
  std::vector<StridedAxis> axes;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return axes;
  int64_t dense = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t stride = strides.empty() ? dense : strides[i];
    dense *= shape[i];
    if (shape[i] == 1) continue;
    if (!axes.empty() && axes.back().stride * axes.back().size == stride) {
      axes.back().size *= shape[i];
    } else {
      axes.push_back({shape[i], stride});
    }
  }
  std::reverse(axes.begin(), axes.end());
  return axes;
}

void GatherElements(std::span<const StridedAxis> axes, const std::byte* base, size_t element_bytes,
                    int64_t first, std::span<std::byte> dense) {
  const auto bytes = static_cast<int64_t>(element_bytes);
  std::byte* to = dense.data();
  ForEachPlane(axes, first, static_cast<int64_t>(dense.size()) / bytes, [&](const Plane& p) {
    CopyPlane(base + p.offset * bytes, {p.row_step * bytes, p.step * bytes}, to,
              {p.n * bytes, bytes}, p.rows, p.n, element_bytes);
    to += p.rows * p.n * bytes;
  });
}

void ScatterElements(std::span<const StridedAxis> axes, std::span<const std::byte> dense,
                     size_t element_bytes, int64_t first, std::byte* base) {
  const auto bytes = static_cast<int64_t>(element_bytes);
  const std::byte* from = dense.data();
  ForEachPlane(axes, first, static_cast<int64_t>(dense.size()) / bytes, [&](const Plane& p) {
    CopyPlane(from, {p.n * bytes, bytes}, base + p.offset * bytes,
              {p.row_step * bytes, p.step * bytes}, p.rows, p.n, element_bytes);
    from += p.rows * p.n * bytes;
  });
}

}  // namespace varve::internal
