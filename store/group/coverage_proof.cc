// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_proof.h"

#include <algorithm>
#include <span>
#include <string>

#include "store/group/coverage_faults.h"
#include "store/regions.h"
#include "store/util.h"

namespace varve {
namespace {

void Append(int64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void Append(const ShardLayout& layout, std::string* bytes) {
  Append(static_cast<int64_t>(layout.global_shape.size()), bytes);
  for (const int64_t size : layout.global_shape) Append(size, bytes);
  for (const std::vector<Segment>& axis : layout.axes) {
    Append(static_cast<int64_t>(axis.size()), bytes);
    for (const Segment& segment : axis) {
      Append(segment.begin, bytes);
      Append(segment.is_padding ? -segment.length : segment.length, bytes);
    }
  }
  Append(layout.flat ? layout.flat->begin : -1, bytes);
  Append(layout.flat ? layout.flat->end : -1, bytes);
}

// Of all that the proof depends on. It stays in this process, so the machine's byte order will do.
Digest DigestOfLayouts(std::span<const CatalogueShard> shards) {
  std::string bytes;
  for (const CatalogueShard& shard : shards) {
    Append(static_cast<int64_t>(shard.name.size()), &bytes);
    bytes += shard.name;
    Append(static_cast<int64_t>(shard.dtype), &bytes);
    Append(shard.layout.has_value() ? 1 : 0, &bytes);
    if (shard.layout.has_value()) Append(*shard.layout, &bytes);
  }
  return ComputeDigest(0, AsBytes(bytes));
}

// Whether one tensor is whole, whose shards begin at `first`. Appends for each the first that it is
// a replica of.
bool IsWhole(std::span<const CatalogueShard> shards, size_t first, std::vector<size_t>* originals) {
  const auto has_layout = [](const CatalogueShard& shard) { return shard.layout.has_value(); };
  const bool are_apart = std::none_of(shards.begin(), shards.end(), has_layout);
  std::vector<ShardLayout> layouts;
  std::vector<size_t> indices;  // of these layouts
  for (size_t i = 0; i < shards.size(); ++i) {
    originals->push_back(first + i);
    if (are_apart) continue;
    const CatalogueShard& shard = shards[i];
    if (!shard.layout.has_value() || shard.dtype != shards[0].dtype) {
      return false;
    }
    const auto same = std::find(layouts.begin(), layouts.end(), *shard.layout);
    if (same != layouts.end()) {
      originals->back() = indices[static_cast<size_t>(same - layouts.begin())];
      continue;
    }
    layouts.push_back(*shard.layout);
    indices.push_back(first + i);
  }
  return are_apart || ProveCoverage(layouts).ok();
}

Result<std::vector<size_t>> ProveAll(std::span<const CatalogueShard> shards) {
  std::vector<size_t> originals;
  std::vector<TensorShards> broken;
  for (size_t begin = 0, end = 0; begin < shards.size(); begin = end) {
    while (end < shards.size() && shards[end].name == shards[begin].name) ++end;
    if (!IsWhole(shards.subspan(begin, end - begin), begin, &originals)) {
      broken.emplace_back(begin, end);
    }
  }
  if (broken.empty()) return originals;
  return CoverageError(shards, broken);
}

}  // namespace

Status CoverageProof::Prove(const Catalogue& catalogue) {
  const std::lock_guard lock(mutex_);
  const Digest layouts = DigestOfLayouts(catalogue.shards);
  if (proven_ != layouts) {
    ++num_proofs_;
    VARVE_ASSIGN_OR_RETURN(originals_, ProveAll(catalogue.shards));
    proven_ = layouts;
  }
  return CompareReplicas(catalogue.shards, originals_);
}

uint64_t CoverageProof::num_proofs() const {
  const std::lock_guard lock(mutex_);
  return num_proofs_;
}

}  // namespace varve
