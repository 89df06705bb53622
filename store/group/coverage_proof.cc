// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_proof.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/coding.h"
#include "base/util.h"
#include "store/group/coverage_faults.h"
#include "store/shards/disjoint.h"
#include "store/shards/regions.h"

namespace varve::internal {

namespace {

// Digests everything that the proof of one tensor depends on. Its name and the ranks are not part
// of that, so tensors that are cut alike are proven once. The digest stays in this process.
Digest DigestOfLayouts(std::span<const CatalogueShard> shards, std::string* bytes) {
  bytes->clear();
  for (const CatalogueShard& shard : shards) {
    AppendLittle(shard.dtype, bytes);
    AppendLittle(shard.layout.has_value(), bytes);
    if (shard.layout.has_value()) AppendLayoutKey(*shard.layout, bytes);
  }
  return ComputeDigest(0, AsBytes(*bytes));
}

// Returns, for each shard of one tensor, the first shard that it is a replica of. nullopt = the
// tensor is not whole.
std::optional<std::vector<size_t>> ProveWhole(std::span<const CatalogueShard> shards) {
  std::vector<size_t> originals(shards.size());
  std::iota(originals.begin(), originals.end(), size_t{0});
  const auto has_layout = [](const CatalogueShard& shard) { return shard.layout.has_value(); };
  if (std::none_of(shards.begin(), shards.end(), has_layout)) return originals;
  std::vector<const ShardLayout*> all;
  for (const CatalogueShard& shard : shards) {
    if (!shard.layout.has_value() || shard.dtype != shards[0].dtype) return std::nullopt;
    all.push_back(&*shard.layout);
  }
  originals = FindOriginals(all);
  std::vector<const ShardLayout*> distinct;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (originals[i] == i) distinct.push_back(all[i]);
  }
  return AreWhole(distinct) ? std::optional(std::move(originals)) : std::nullopt;
}

// Returns the originals of all tensors. `prove` finds those of one.
template <typename Prove>
Result<std::vector<size_t>> ProveAll(std::span<const CatalogueShard> shards, Prove prove) {
  std::vector<size_t> originals;
  originals.reserve(shards.size());
  std::vector<TensorShards> broken;
  for (size_t begin = 0, end = 0; begin < shards.size(); begin = end) {
    while (end < shards.size() && shards[end].name == shards[begin].name) ++end;
    const std::vector<size_t>* const found = prove(shards.subspan(begin, end - begin));
    if (found == nullptr) {
      broken.emplace_back(begin, end);
    } else {
      for (const size_t i : *found) originals.push_back(begin + i);
    }
  }
  if (broken.empty()) return originals;
  return CoverageError(shards, broken);
}

}  // namespace

Status CoverageProof::Prove(const Catalogue& catalogue) {
  const std::lock_guard lock(mutex_);
  std::map<Digest, std::vector<size_t>> proven;
  std::string bytes;
  bool is_new = false;
  const auto prove = [&](std::span<const CatalogueShard> tensor) -> const std::vector<size_t>* {
    const Digest layouts = DigestOfLayouts(tensor, &bytes);
    const auto seen = proven.find(layouts);
    if (seen != proven.end()) return &seen->second;
    const auto known = proven_.find(layouts);
    if (known != proven_.end()) return &proven.emplace(layouts, known->second).first->second;
    is_new = true;
    std::optional<std::vector<size_t>> originals = ProveWhole(tensor);
    if (!originals.has_value()) return nullptr;
    return &proven.emplace(layouts, *std::move(originals)).first->second;
  };
  const Result<std::vector<size_t>> originals = ProveAll(catalogue.shards, prove);
  if (is_new) ++num_proofs_;
  VARVE_RETURN_IF_ERROR(originals.status());
  proven_ = std::move(proven);
  return CompareReplicas(catalogue.shards, *originals);
}

uint64_t CoverageProof::num_proofs() const {
  const std::lock_guard lock(mutex_);
  return num_proofs_;
}

}  // namespace varve::internal
