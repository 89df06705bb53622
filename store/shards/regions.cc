// SPDX-License-Identifier: Apache-2.0
#include "store/shards/regions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "store/shards/disjoint.h"
#include "store/shards/overlap.h"
#include "store/shards/strided_copy.h"

namespace varve::internal {

namespace {

std::vector<const ShardLayout*> PointersTo(std::span<const ShardLayout> shards) {
  std::vector<const ShardLayout*> pointers;
  pointers.reserve(shards.size());
  for (const ShardLayout& layout : shards) pointers.push_back(&layout);
  return pointers;
}

// The first of each set of replicas, by rising index.
std::vector<size_t> FindDistinct(std::span<const ShardLayout> shards) {
  const std::vector<size_t> originals = FindOriginals(PointersTo(shards));
  std::vector<size_t> distinct;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (originals[i] == i) distinct.push_back(i);
  }
  return distinct;
}

std::optional<int64_t> CountDisjoint(std::span<const ShardLayout> shards,
                                     const std::vector<size_t>& parts) {
  std::vector<const ShardLayout*> pointers;
  pointers.reserve(parts.size());
  for (const size_t i : parts) pointers.push_back(&shards[i]);
  return internal::CountDisjoint(pointers);
}

// Returns the first two parts that overlap, as a fault, or an empty text. It compares all pairs, so
// call it only when such a pair is known to exist.
std::string FindOverlap(std::span<const ShardLayout> shards, const std::vector<size_t>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const uint64_t twice = Overlap(shards[parts[k]], shards[parts[i]]).Count();
      if (twice == 0) continue;
      return "its shards " + ToString(shards[parts[k]]) + " and " + ToString(shards[parts[i]]) +
             " overlap in " + std::to_string(twice) + " elements and are no replicas";
    }
  }
  return "";
}

// Says what is wrong with these shards as the parts of a region. Empty = nothing.
std::string FindFault(std::span<const ShardLayout> shards, const std::vector<size_t>& parts,
                      uint64_t found, const ShardLayout& region) {
  if (!CountDisjoint(shards, parts).has_value()) {
    const std::string overlap = FindOverlap(shards, parts);
    if (!overlap.empty()) return overlap;
  }
  const auto wanted = static_cast<uint64_t>(region.NumHeld());
  if (found == wanted) return "";
  return "its shards hold " + std::to_string(found) + " of the " + std::to_string(wanted) +
         " elements of " + ToString(region);
}

// The distinct shards that hold a part of a region, and how many of its elements.
std::pair<std::vector<size_t>, uint64_t> FindHolders(std::span<const ShardLayout> shards,
                                                     const ShardLayout& region) {
  std::pair<std::vector<size_t>, uint64_t> holders;
  for (const size_t i : FindDistinct(shards)) {
    const uint64_t count = Overlap(shards[i], region).Count();
    if (count == 0) continue;
    holders.first.push_back(i);
    holders.second += count;
  }
  return holders;
}

}  // namespace

ShardLayout LayoutOf(const TensorSpec& shard) {
  return shard.layout.has_value() ? *shard.layout : ShardLayout::Whole(shard.shape);
}

bool AreWhole(std::span<const ShardLayout* const> distinct) {
  if (distinct.empty()) return false;
  const ShardLayout& first = *distinct[0];
  return std::all_of(distinct.begin(), distinct.end(),
                     [&](const ShardLayout* layout) {
                       return layout->global_shape == first.global_shape;
                     }) &&
         CountDisjoint(distinct) == first.NumGlobal();
}

Status ProveCoverage(std::span<const ShardLayout> shards) {
  for (const ShardLayout& layout : shards) {
    if (layout.global_shape == shards[0].global_shape) continue;
    return Status::InvalidArgument("its shards " + ToString(shards[0]) + " and " +
                                   ToString(layout) + " are of different global shapes");
  }
  const ShardLayout all = ShardLayout::Whole(shards[0].global_shape);
  if (CountDisjoint(shards, FindDistinct(shards)) == all.NumGlobal()) return Status::Ok();
  const auto [parts, found] = FindHolders(shards, all);
  const std::string fault = FindFault(shards, parts, found, all);
  return fault.empty() ? Status::Ok() : Status::InvalidArgument(fault);
}

Result<std::vector<size_t>> FindParts(std::span<const ShardLayout> shards,
                                      const ShardLayout& region) {
  for (const ShardLayout& layout : shards) {
    if (layout.global_shape == region.global_shape) continue;
    return Status::InvalidArgument("the region is " + ToString(region) + ", a shard " +
                                   ToString(layout));
  }
  auto [parts, found] = FindHolders(shards, region);
  const std::string fault = FindFault(shards, parts, found, region);
  if (!fault.empty()) return Status::Corruption(fault);
  return std::move(parts);
}

Result<RegionPlan> PlanRegion(std::span<const ShardLayout> shards, const ShardLayout& region) {
  RegionPlan plan;
  const auto same = std::find(shards.begin(), shards.end(), Canonical(region));
  if (same != shards.end()) {
    plan.same = static_cast<size_t>(same - shards.begin());
    return plan;
  }
  VARVE_ASSIGN_OR_RETURN(plan.parts, FindParts(shards, region));
  return plan;
}

Status CheckBuffer(const std::string& where, const ReadRequest& request, DType dtype,
                   const ShardLayout& wanted) {
  const auto element_bits = static_cast<uint64_t>(DTypeBits(dtype));
  uint64_t bits = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(wanted.NumLocal()), element_bits, &bits)) {
    return Status::InvalidArgument(where + ": the region " + ToString(wanted) + " of " +
                                   std::string(DTypeName(dtype)) + " has more than 2^61 bytes");
  }
  if (bits % 8 != 0) {
    return Status::InvalidArgument(where + ": a slice of " + std::string(DTypeName(dtype)) +
                                   " elements must start and end on whole bytes");
  }
  if (request.out().size() != bits / 8) {
    return Status::InvalidArgument(where + ": buffer is " + std::to_string(request.out().size()) +
                                   " bytes, expected " + std::to_string(bits / 8));
  }
  const uint64_t element_bytes = (element_bits + 7) / 8;
  if (!request.padding().empty() && request.padding().size() != element_bytes) {
    return Status::InvalidArgument(where + ": padding of " +
                                   std::to_string(request.padding().size()) +
                                   " bytes, an element has " + std::to_string(element_bytes));
  }
  return Status::Ok();
}

void FillPadding(const ReadRequest& request, const ShardLayout& region) {
  if (region.NumHeld() == region.NumLocal()) return;
  if (request.padding().empty()) {
    std::fill(request.out().begin(), request.out().end(), std::byte{0});
    return;
  }
  const size_t element = request.padding().size();
  CopyRuns(request.padding().data(), 0, request.out().data(), static_cast<int64_t>(element),
           element, static_cast<int64_t>(request.out().size() / element));
}

// In place: the tensors are the first of their shards, moved up.
std::vector<TensorInfo> JoinShards(std::vector<TensorInfo> shards) {
  size_t num_tensors = 0;
  for (TensorInfo& shard : shards) {
    TensorInfo* const last = num_tensors > 0 ? &shards[num_tensors - 1] : nullptr;
    const bool joins = last != nullptr && shard.layout.has_value() && last->shard == kAllShards &&
                       last->name == shard.name;
    if (joins) {
      last->num_chunks += shard.num_chunks;
      ++last->num_shards;
      last->content = {};
      continue;
    }
    TensorInfo& tensor = shards[num_tensors++];
    if (&tensor != &shard) tensor = std::move(shard);
    if (!tensor.layout.has_value()) continue;
    const std::vector<int64_t> shape = tensor.layout->global_shape;
    if (*tensor.layout != Canonical(ShardLayout::Whole(shape))) tensor.content = {};
    tensor.shard = kAllShards;
    tensor.shape = shape;
    const Result<uint64_t> bytes = NumBytes(tensor.dtype, shape);
    tensor.logical_bytes = bytes.ok() ? *bytes : 0;
    tensor.layout.reset();
  }
  shards.resize(num_tensors);
  return shards;
}

Result<ShardLayout> LayoutOfSlice(std::span<const int64_t> shape, std::span<const Range> slice) {
  ShardLayout layout = ShardLayout::Whole(shape);
  if (slice.empty()) return layout;
  if (slice.size() != shape.size()) {
    return Status::InvalidArgument("the slice has " + std::to_string(slice.size()) +
                                   " ranges, the tensor " + std::to_string(shape.size()) + " axes");
  }
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const Range& r = slice[axis];
    if (r.begin < 0 || r.begin > r.end || r.end > shape[axis]) {
      return Status::InvalidArgument("slice " + std::to_string(r.begin) + ":" +
                                     std::to_string(r.end) + " of axis " + std::to_string(axis) +
                                     ", which has " + std::to_string(shape[axis]) + " indices");
    }
    layout.axes[axis] = {{.begin = r.begin, .length = r.end - r.begin}};
  }
  return layout;
}

}  // namespace varve::internal
