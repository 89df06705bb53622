// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_faults.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/number_list.h"
#include "base/util.h"
#include "store/shards/overlap.h"
#include "store/shards/shard_faults.h"

namespace varve::internal {

namespace {

// The most tensors that are described in full, and the most that are named.
constexpr size_t kShown = 20;
constexpr size_t kNamed = 200;

// The lines of one message. First come as many full lines as a person reads, then names, then a
// number.
class FaultList {
 public:
  void Add(const std::string& name, const std::string& fault) {
    if (++count_ <= kShown) {
      text_ += (text_.empty() ? "tensor " : "\ntensor ") + name + ": " + fault;
    } else if (count_ <= kShown + kNamed) {
      more_ += (more_.empty() ? "\nand likewise " : ", ") + name;
    }
  }
  bool has_room() const { return count_ < kShown; }
  Status status() const {
    if (count_ == 0) return Status::Ok();
    std::string text = text_ + more_;
    if (count_ > kShown + kNamed) {
      text += ", and " + std::to_string(count_ - kShown - kNamed) + " tensors more";
    }
    return Status::InvalidArgument(text);
  }

 private:
  size_t count_ = 0;
  std::string text_;
  std::string more_;
};

using Shards = std::span<const CatalogueShard>;

Shards Of(Shards shards, const TensorShards& tensor) {
  return shards.subspan(tensor.first, tensor.second - tensor.first);
}

const ShardLayout* LayoutOf(const CatalogueShard& shard) {
  return shard.layout.has_value() ? &*shard.layout : nullptr;
}

// The whole tensors of a shape. A tensor that is cut alike is looked for among them.
class WholeTensors {
 public:
  WholeTensors(Shards shards, std::span<const TensorShards> broken) : shards_(shards) {
    size_t next = 0;
    for (size_t begin = 0, end = 0; begin < shards.size(); begin = end) {
      while (end < shards.size() && shards[end].name == shards[begin].name) ++end;
      const bool is_broken = next < broken.size() && broken[next].first == begin;
      if (is_broken) ++next;
      if (is_broken || !shards[begin].layout.has_value()) continue;
      by_shape_[shards[begin].layout->global_shape].emplace_back(begin, end);
    }
  }

  // Returns shards of a tensor with the same global shape and the most shards on the same ranks, or
  // an empty range.
  Shards FindAlike(Shards broken) const {
    constexpr size_t kTried = 100;  // of a model's layers the first will do
    Shards alike;
    size_t most = 0, tried = 0;
    const ShardLayout* layout = LayoutOf(broken[0]);
    const auto it =
        by_shape_.find(layout != nullptr ? layout->global_shape : std::vector<int64_t>{});
    if (layout == nullptr || it == by_shape_.end()) return alike;
    for (const TensorShards& tensor : it->second) {
      if (++tried > kTried) break;
      const size_t same = CountSame(broken, Of(shards_, tensor));
      if (same <= most) continue;
      most = same;
      alike = Of(shards_, tensor);
    }
    return alike;
  }

 private:
  // Both are by rank.
  static size_t CountSame(Shards a, Shards b) {
    size_t same = 0;
    for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
      if (a[i].rank == b[k].rank && a[i].layout == b[k].layout) {
        ++same, ++i, ++k;
      } else if (a[i].rank <= b[k].rank) {
        ++i;
      } else {
        ++k;
      }
    }
    return same;
  }

  const Shards shards_;
  std::map<std::vector<int64_t>, std::vector<TensorShards>> by_shape_;
};

// Writes "rank 2 holds this region of tensor b, which is cut alike".
std::string ExpectedText(const ShardLayout& hole, Shards alike) {
  std::set<uint32_t> ranks;
  for (const CatalogueShard& shard : alike) {
    if (Overlap(*shard.layout, hole).Count() > 0) ranks.insert(shard.rank);
  }
  if (ranks.empty()) return "";
  const std::vector<uint32_t> list(ranks.begin(), ranks.end());
  return NumberList("rank", list) + (list.size() == 1 ? " holds" : " hold") +
         " this region of tensor " + alike[0].name + ", which is cut alike";
}

// Names ranks that hold other tensors but nothing of this one, if they are few.
std::string RanksWithoutText(const std::set<uint32_t>& all, Shards shards) {
  constexpr size_t kFew = 8;
  std::set<uint32_t> without = all;
  for (const CatalogueShard& shard : shards) without.erase(shard.rank);
  if (without.empty() || without.size() > kFew) return "";
  const std::vector<uint32_t> list(without.begin(), without.end());
  return NumberList("rank", list) + (list.size() == 1 ? " saves" : " save") + " nothing of it";
}

std::string FaultText(Shards shards, const WholeTensors& whole, const std::set<uint32_t>& ranks) {
  std::vector<ShardHolder> holders;
  for (const CatalogueShard& shard : shards) {
    holders.push_back({shard.rank, shard.dtype, LayoutOf(shard)});
  }
  const ShardFaults faults = FindShardFaults(holders, "rank");
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  };
  for (const std::string& fault : faults.texts) add(fault);
  if (text.empty()) add("its shards make no whole tensor");
  if (faults.holes.empty()) return text;
  const Shards alike = whole.FindAlike(shards);
  std::set<std::string> expected;
  for (const ShardLayout& hole : faults.holes) {
    if (!alike.empty()) expected.insert(ExpectedText(hole, alike));
  }
  for (const std::string& one : expected) add(one);
  if (expected.empty()) add(RanksWithoutText(ranks, shards));
  return text;
}

std::string OfRank(const CatalogueShard& shard) {
  return "that of rank " + std::to_string(shard.rank);
}

}  // namespace

Status CoverageError(std::span<const CatalogueShard> shards, std::span<const TensorShards> broken) {
  const WholeTensors whole(shards, broken);
  std::set<uint32_t> ranks;
  for (const CatalogueShard& shard : shards) ranks.insert(shard.rank);
  FaultList faults;
  for (const TensorShards& tensor : broken) {
    const Shards of_tensor = Of(shards, tensor);
    faults.Add(of_tensor[0].name, faults.has_room() ? FaultText(of_tensor, whole, ranks) : "");
  }
  return faults.status();
}

Status CompareReplicas(std::span<const CatalogueShard> shards, std::span<const size_t> originals) {
  FaultList faults;
  for (size_t i = 0; i < shards.size(); ++i) {
    const CatalogueShard& original = shards[originals[i]];
    if (shards[i].content == original.content || originals[i] == i) continue;
    faults.Add(shards[i].name, OfRank(original) + " and " + OfRank(shards[i]) + " are replicas, " +
                                   ToString(*shards[i].layout) + ", but differ");
  }
  return faults.status();
}

}  // namespace varve::internal
