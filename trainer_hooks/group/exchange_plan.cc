// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/exchange_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes_of.h"
#include "store/save/chunk_source.h"
#include "store/shards/overlap.h"
#include "store/shards/regions.h"
#include "trainer_hooks/group/replica_plan.h"

namespace varve::internal {

namespace {

// Chunks that are read at once. More of them would only make the copies larger.
constexpr int64_t kMaxChunks = 8;

// One of the regions that are wanted of a tensor, and who wants it.
struct Region {
  uint32_t number = 0;  // of ExchangePlan::regions
  struct Wanting {
    uint32_t rank = 0;
    uint32_t wanted = 0;
    bool is_shared = false;  // another rank wants one of its chunks
  };
  std::vector<Wanting> wanting;  // by rank
};
using Regions = std::vector<Region>;

// A stored shard, and what each region wants of it.
struct Part {
  uint32_t shard = 0;
  ShardLayout layout;
  int64_t chunk = 0;  // elements
  uint64_t element_bytes = 0;
  std::vector<std::pair<const Region*, Overlap>> overlaps;

  Range ChunkRange(int64_t i) const {
    return {i * chunk, std::min((i + 1) * chunk, layout.NumLocal())};
  }
  int64_t NumChunks() const { return (layout.NumLocal() + chunk - 1) / chunk; }
  // The regions that want something of a chunk.
  std::vector<size_t> Wanting(int64_t i) const {
    std::vector<size_t> found;
    for (size_t k = 0; k < overlaps.size(); ++k) {
      if (overlaps[k].second.Count(ChunkRange(i)) > 0) found.push_back(k);
    }
    return found;
  }
};

class Planner {
 public:
  Planner(std::span<const TensorInfo> shards, std::span<const std::vector<HeldTensor>> wanted,
          uint64_t budget)
      : shards_(shards),
        wanted_(wanted),
        budget_(budget),
        read_(wanted.size()),
        in_round_(wanted.size()) {
    for (const auto& list : wanted) plan_.is_exchanged.emplace_back(list.size());
  }

  ExchangePlan Plan() && {
    for (auto& [name, regions] : FindRegions()) {
      std::vector<Part> parts = FindParts(name, regions);
      FindShared(parts, &regions);
      for (const Part& part : parts) Cut(part);
    }
    return std::move(plan_);
  }

 private:
  std::map<std::string_view, Regions> FindRegions();
  std::vector<Part> FindParts(std::string_view name, const Regions& regions) const;
  void FindShared(const std::vector<Part>& parts, Regions* regions);
  void Cut(const Part& part);
  void Add(const Part& part, const Range& elements, const std::vector<size_t>& wanting);
  bool IsExchanged(const Region::Wanting& who) const {
    return plan_.is_exchanged[who.rank][who.wanted];
  }

  const std::span<const TensorInfo> shards_;
  const std::span<const std::vector<HeldTensor>> wanted_;
  const uint64_t budget_;
  std::vector<uint64_t> read_;      // bytes that each rank reads
  std::vector<uint64_t> in_round_;  // bytes that each rank holds in the last round
  ExchangePlan plan_;
};

std::map<std::string_view, Regions> Planner::FindRegions() {
  std::map<std::string_view, std::map<std::string_view, Region>> found;  // by name, then layout
  for (uint32_t rank = 0; rank < wanted_.size(); ++rank) {
    for (uint32_t i = 0; i < wanted_[rank].size(); ++i) {
      const HeldTensor& tensor = wanted_[rank][i];
      const auto [it, is_new] = found[tensor.name].try_emplace(tensor.layout);
      if (is_new) {
        it->second.number = static_cast<uint32_t>(plan_.regions.size());
        plan_.regions.push_back(tensor.Layout());
      }
      it->second.wanting.push_back({rank, i});
    }
  }
  std::map<std::string_view, Regions> regions;
  for (auto& [name, by_layout] : found) {
    for (auto& [layout, region] : by_layout) regions[name].push_back(std::move(region));
  }
  return regions;
}

// Where shards are replicas of each other, it takes the first.
std::vector<Part> Planner::FindParts(std::string_view name, const Regions& regions) const {
  std::vector<Part> parts;
  std::set<std::string> seen;
  auto it = std::ranges::lower_bound(shards_, name, {}, &TensorInfo::name);
  for (; it != shards_.end() && it->name == name; ++it) {
    Part part{.shard = static_cast<uint32_t>(it - shards_.begin()),
              .layout = LayoutOf(*it),
              .chunk = ElementsPerChunk(it->dtype),
              .element_bytes = BytesOf(it->dtype, 1)};
    if (!seen.insert(ToString(part.layout)).second) continue;
    for (const Region& region : regions) {
      Overlap overlap(part.layout, plan_.regions[region.number]);
      if (overlap.Count() > 0) part.overlaps.emplace_back(&region, std::move(overlap));
    }
    if (!part.overlaps.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

void Planner::FindShared(const std::vector<Part>& parts, Regions* regions) {
  std::set<const Region*> shared;
  for (const Region& region : *regions) {
    if (region.wanting.size() > 1) shared.insert(&region);
  }
  for (const Part& part : parts) {
    for (int64_t i = 0; i < part.NumChunks(); ++i) {
      const std::vector<size_t> wanting = part.Wanting(i);
      if (wanting.size() < 2) continue;
      for (const size_t k : wanting) shared.insert(part.overlaps[k].first);
    }
  }
  for (const Region* region : shared) {
    for (const Region::Wanting& who : region->wanting) {
      plan_.is_exchanged[who.rank][who.wanted] = true;
    }
  }
}

// Neighbouring chunks that the same regions want, as far as the budget goes.
void Planner::Cut(const Part& part) {
  const uint64_t chunk_bytes = static_cast<uint64_t>(part.chunk) * part.element_bytes;
  const int64_t max_chunks =
      std::clamp<int64_t>(static_cast<int64_t>(budget_ / (4 * chunk_bytes)), 1, kMaxChunks);
  for (int64_t first = 0; first < part.NumChunks();) {
    const std::vector<size_t> wanting = part.Wanting(first);
    int64_t end = first + 1;
    while (end < part.NumChunks() && end - first < max_chunks && part.Wanting(end) == wanting)
      ++end;
    Add(part, {part.ChunkRange(first).begin, part.ChunkRange(end - 1).end}, wanting);
    first = end;
  }
}

void Planner::Add(const Part& part, const Range& elements, const std::vector<size_t>& wanting) {
  ExchangeItem item{.shard = part.shard, .layout = CutLayout(part.layout, elements)};
  std::map<uint32_t, uint64_t> holds;  // bytes, by rank
  uint64_t sent = 0;
  for (const size_t k : wanting) {
    const Region& region = *part.overlaps[k].first;
    const uint64_t bytes = part.overlaps[k].second.Count(elements) * part.element_bytes;
    sent += bytes;  // once, whoever gets it
    for (const Region::Wanting& who : region.wanting) {
      if (!IsExchanged(who)) continue;
      item.consumers.push_back({who.rank, who.wanted, region.number});
      holds[who.rank] += bytes;
    }
  }
  if (item.consumers.empty()) return;
  std::ranges::sort(item.consumers, {}, [](const auto& c) { return std::pair(c.rank, c.wanted); });
  item.reader = std::ranges::min_element(item.consumers, {}, [&](const auto& c) {
                  return read_[c.rank];
                })->rank;
  const uint64_t bytes = static_cast<uint64_t>(elements.end - elements.begin) * part.element_bytes;
  read_[item.reader] += bytes;
  holds[item.reader] += bytes + sent;
  const bool fits = std::ranges::all_of(
      holds, [&](const auto& rank) { return in_round_[rank.first] + rank.second <= budget_; });
  if (plan_.rounds.empty() || !fits) {
    plan_.rounds.emplace_back();
    std::ranges::fill(in_round_, 0);
  }
  for (const auto& [rank, n] : holds) in_round_[rank] += n;
  plan_.rounds.back().push_back(std::move(item));
}

}  // namespace

Status CheckWanted(std::span<const TensorInfo> shards, std::span<const HeldTensor> wanted) {
  for (const HeldTensor& tensor : wanted) {
    const auto first = std::ranges::lower_bound(shards, tensor.name, {}, &TensorInfo::name);
    const auto last = std::ranges::upper_bound(shards, tensor.name, {}, &TensorInfo::name);
    const std::span<const TensorInfo> stored(first, last);
    const ShardLayout layout = tensor.Layout();
    const bool fits = !stored.empty() && std::ranges::all_of(stored, [&](const TensorInfo& shard) {
      return shard.dtype == tensor.dtype && DTypeBits(shard.dtype) % 8 == 0 &&
             LayoutOf(shard).global_shape == layout.global_shape;
    });
    if (fits) continue;
    const std::string found = stored.empty()
                                  ? "is not there"
                                  : "is " + std::string(DTypeName(stored.front().dtype)) + " " +
                                        ToString(LayoutOf(stored.front()));
    return Status::InvalidArgument("tensor " + std::string(tensor.name) + ", " +
                                   std::string(DTypeName(tensor.dtype)) + " " + ToString(layout) +
                                   ": in the checkpoint it " + found);
  }
  return Status::Ok();
}

ExchangePlan PlanExchange(std::span<const TensorInfo> shards,
                          std::span<const std::vector<HeldTensor>> wanted, uint64_t budget) {
  return Planner(shards, wanted, budget).Plan();
}

}  // namespace varve::internal
