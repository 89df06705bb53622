// SPDX-License-Identifier: Apache-2.0
#include "cli/slice.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace varve::internal::cli {
namespace {

// The range of one axis, and whether the axis stays.
struct AxisSlice {
  Range range;
  bool keeps_axis = true;
};

Status BadPart(std::string_view part, std::string_view problem) {
  return Status::InvalidArgument("slice part \"" + std::string(part) + "\" " +
                                 std::string(problem));
}

std::string_view Trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = text.find(separator); at != std::string_view::npos; at = text.find(separator)) {
    parts.push_back(Trimmed(text.substr(0, at)));
    text.remove_prefix(at + 1);
  }
  parts.push_back(Trimmed(text));
  return parts;
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<AxisSlice> ParseIndex(std::string_view part, int64_t size) {
  const std::optional<int64_t> index = ParseInteger(part);
  if (!index) return BadPart(part, "is neither an integer nor a range BEGIN:END");
  if (*index < -size || *index >= size) {
    return BadPart(part, "is outside of its axis, which has " + std::to_string(size) + " indices");
  }
  const int64_t begin = *index < 0 ? *index + size : *index;
  return AxisSlice{{begin, begin + 1}, false};
}

// Parses one end of a range. A negative number counts from the back, and the result is cut to the
// axis.
Result<int64_t> ParseBound(std::string_view part, std::string_view text, int64_t size,
                           int64_t when_empty) {
  if (text.empty()) return when_empty;
  const std::optional<int64_t> bound = ParseInteger(text);
  if (!bound) return BadPart(part, "holds \"" + std::string(text) + "\", which is no integer");
  return std::clamp(*bound < 0 ? *bound + size : *bound, int64_t{0}, size);
}

Result<AxisSlice> ParsePart(std::string_view part, int64_t size) {
  const std::vector<std::string_view> fields = Split(part, ':');
  if (fields.size() == 1) return ParseIndex(part, size);
  if (fields.size() > 3) return BadPart(part, "has more than two colons");
  if (fields.size() == 3 && !fields[2].empty() && fields[2] != "1") {
    return BadPart(part, "has a step; only a step of 1 is possible");
  }
  VARVE_ASSIGN_OR_RETURN(const int64_t begin, ParseBound(part, fields[0], size, 0));
  VARVE_ASSIGN_OR_RETURN(const int64_t end, ParseBound(part, fields[1], size, size));
  return AxisSlice{{begin, std::max(begin, end)}, true};
}

int64_t Extent(const Range& range) { return range.end - range.begin; }

// How SplitIntoPieces cuts a box. Each piece has one index on the axes before `axis`, at most
// `step` indices on it, and all indices of the axes after it.
struct Cut {
  size_t axis = 0;
  int64_t step = 1;
};

// Precondition: the box has an axis and is not empty.
Cut ChooseCut(uint64_t element_bits, std::span<const Range> ranges, uint64_t max_bytes) {
  // Bits of one index of the axis, from the last axis towards the first as long as they fit.
  size_t axis = ranges.size() - 1;
  uint64_t row_bits = element_bits;
  while (axis > 0) {
    const uint64_t slab_bits = row_bits * static_cast<uint64_t>(Extent(ranges[axis]));
    // A slab that ends inside a byte cannot be separated from the next one.
    if (slab_bits / 8 > max_bytes && slab_bits % 8 == 0) break;
    row_bits = slab_bits;
    --axis;
  }
  const uint64_t aligned_rows = 8 / std::gcd(uint64_t{8}, row_bits);
  const uint64_t rows = max_bytes / std::max<uint64_t>(1, row_bits / 8);
  const uint64_t step = std::max(aligned_rows, rows / aligned_rows * aligned_rows);
  return {axis, static_cast<int64_t>(std::min<uint64_t>(step, INT64_MAX))};
}

}  // namespace

Result<Slice> ParseSlice(std::string_view text, std::span<const int64_t> shape) {
  std::vector<std::string_view> parts;
  if (!Trimmed(text).empty()) parts = Split(text, ',');
  if (parts.size() > shape.size()) {
    return Status::InvalidArgument("the slice has " + std::to_string(parts.size()) +
                                   " parts, but the tensor has only " +
                                   std::to_string(shape.size()) + " axes");
  }
  Slice slice;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    AxisSlice part{{0, shape[axis]}, true};
    if (axis < parts.size()) {
      VARVE_ASSIGN_OR_RETURN(part, ParsePart(parts[axis], shape[axis]));
    }
    slice.ranges.push_back(part.range);
    if (part.keeps_axis) slice.shape.push_back(Extent(part.range));
  }
  return slice;
}

int64_t NumElementsOf(std::span<const Range> ranges) {
  int64_t count = 1;
  for (const Range& range : ranges) count *= Extent(range);
  return count;
}

std::vector<std::vector<Range>> SplitIntoPieces(DType dtype, std::span<const Range> ranges,
                                                uint64_t max_bytes) {
  std::vector<std::vector<Range>> pieces;
  std::vector<Range> piece(ranges.begin(), ranges.end());
  if (NumElementsOf(ranges) == 0) return pieces;
  if (ranges.empty()) return {piece};
  const Cut cut = ChooseCut(static_cast<uint64_t>(DTypeBits(dtype)), ranges, max_bytes);
  for (size_t axis = 0; axis < cut.axis; ++axis) piece[axis].end = piece[axis].begin + 1;
  for (;;) {
    const Range& whole = ranges[cut.axis];
    for (int64_t begin = whole.begin; begin < whole.end;) {
      const int64_t end = whole.end - begin <= cut.step ? whole.end : begin + cut.step;
      piece[cut.axis] = {begin, end};
      pieces.push_back(piece);
      begin = end;
    }
    // Counts on through the outer axes like an odometer, the last of them fastest.
    size_t axis = cut.axis;
    while (axis > 0 && piece[axis - 1].end == ranges[axis - 1].end) --axis;
    if (axis == 0) return pieces;
    piece[axis - 1] = {piece[axis - 1].begin + 1, piece[axis - 1].end + 1};
    for (; axis < cut.axis; ++axis) {
      piece[axis] = {ranges[axis].begin, ranges[axis].begin + 1};
    }
  }
}

}  // namespace varve::internal::cli
