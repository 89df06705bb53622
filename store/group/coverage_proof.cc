// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_proof.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "store/disjoint.h"
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

// Of all that the proof of one tensor depends on, which is neither its name nor the ranks: tensors
// that are cut alike are proven once. It stays in this process, so the machine's byte order will
// do.
Digest DigestOfLayouts(std::span<const CatalogueShard> shards, std::string* bytes) {
  bytes->clear();
  for (const CatalogueShard& shard : shards) {
    Append(static_cast<int64_t>(shard.dtype), bytes);
    Append(shard.layout.has_value() ? 1 : 0, bytes);
    if (shard.layout.has_value()) Append(*shard.layout, bytes);
  }
  return ComputeDigest(0, AsBytes(*bytes));
}

std::string OfRank(const CatalogueShard& shard) {
  return "that of rank " + std::to_string(shard.rank);
}

// "; rank 0 holds [0:5, :] of [8, 3], rank 1 ...": of each layout the lowest rank, so that it is
// seen whose part is missing or there twice.
std::string WhoHolds(std::span<const CatalogueShard> shards, std::span<const size_t> indices) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(indices.size(), kShown); ++i) {
    const CatalogueShard& shard = shards[indices[i]];
    text += (i == 0 ? "; rank " : ", rank ") + std::to_string(shard.rank) + " holds " +
            ToString(*shard.layout);
  }
  if (indices.size() > kShown) text += ", and " + std::to_string(indices.size() - kShown) + " more";
  return text;
}

// Of one tensor. Returns for each shard the first that it is a replica of.
Result<std::vector<size_t>> ProveWhole(std::span<const CatalogueShard> shards) {
  std::vector<size_t> originals(shards.size());
  std::iota(originals.begin(), originals.end(), size_t{0});
  const auto has_layout = [](const CatalogueShard& shard) { return shard.layout.has_value(); };
  if (std::none_of(shards.begin(), shards.end(), has_layout)) return originals;
  std::vector<const ShardLayout*> all;
  for (const CatalogueShard& shard : shards) {
    if (!shard.layout.has_value() || shard.dtype != shards[0].dtype) {
      return Status::InvalidArgument("its shards are of different dtypes, or without layout: " +
                                     OfRank(shards[0]) + " and " + OfRank(shard));
    }
    all.push_back(&*shard.layout);
  }
  originals = FindOriginals(all);
  std::vector<const ShardLayout*> distinct;
  std::vector<size_t> indices;  // of these
  for (size_t i = 0; i < shards.size(); ++i) {
    if (originals[i] != i) continue;
    distinct.push_back(all[i]);
    indices.push_back(i);
  }
  if (AreWhole(distinct)) return originals;
  std::vector<ShardLayout> layouts;
  for (const ShardLayout* layout : distinct) layouts.push_back(*layout);
  const Status whole = ProveCoverage(layouts);  // which says what is wrong
  if (whole.ok()) return originals;
  return Status(whole.code(), std::string(whole.message()) + WhoHolds(shards, indices));
}

// The originals of all tensors, through `prove`.
template <typename Prove>
Result<std::vector<size_t>> ProveAll(std::span<const CatalogueShard> shards, Prove prove) {
  constexpr size_t kShown = 5;
  std::vector<size_t> originals;
  originals.reserve(shards.size());
  Status first_fault;
  std::string text;  // of all faults
  size_t num_faults = 0;
  for (size_t begin = 0, end = 0; begin < shards.size(); begin = end) {
    while (end < shards.size() && shards[end].name == shards[begin].name) ++end;
    const Result<const std::vector<size_t>*> found = prove(shards.subspan(begin, end - begin));
    if (found.ok()) {
      for (const size_t i : **found) originals.push_back(begin + i);
      continue;
    }
    const Status& whole = found.status();
    if (num_faults == 0) first_fault = whole;
    if (++num_faults > kShown) continue;
    text += (num_faults == 1 ? "tensor " : "\ntensor ") + shards[begin].name + ": " +
            std::string(whole.message());
  }
  if (num_faults == 0) return originals;
  if (num_faults > kShown) text += "\nand " + std::to_string(num_faults - kShown) + " tensors more";
  return Status(first_fault.code(), text);
}

Status CompareReplicas(std::span<const CatalogueShard> shards, std::span<const size_t> originals) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const CatalogueShard& original = shards[originals[i]];
    if (shards[i].content == original.content || originals[i] == i) continue;
    return Status::InvalidArgument("tensor " + shards[i].name + ": " + OfRank(original) + " and " +
                                   OfRank(shards[i]) + " are replicas, " +
                                   ToString(*shards[i].layout) + ", but differ");
  }
  return Status::Ok();
}

}  // namespace

Status CoverageProof::Prove(const Catalogue& catalogue) {
  const std::lock_guard lock(mutex_);
  std::map<Digest, std::vector<size_t>> proven;
  std::string bytes;
  bool is_new = false;
  const auto prove =
      [&](std::span<const CatalogueShard> tensor) -> Result<const std::vector<size_t>*> {
    const Digest layouts = DigestOfLayouts(tensor, &bytes);
    const auto seen = proven.find(layouts);
    if (seen != proven.end()) return &seen->second;
    const auto known = proven_.find(layouts);
    if (known != proven_.end()) return &proven.emplace(layouts, known->second).first->second;
    is_new = true;
    VARVE_ASSIGN_OR_RETURN(std::vector<size_t> originals, ProveWhole(tensor));
    return &proven.emplace(layouts, std::move(originals)).first->second;
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

}  // namespace varve
