// SPDX-License-Identifier: Apache-2.0
#include "store/shards/shard_faults.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/number_list.h"
#include "base/util.h"
#include "store/shards/overlap.h"

namespace varve::internal {

namespace {

constexpr size_t kMaxHoles = 4;
constexpr size_t kMaxPairs = 8;
// The most boxes that are looked at. After that it reports what it has found.
constexpr size_t kMaxBoxes = 20000;

using Box = std::vector<Range>;  // one an axis

int64_t Length(const Range& range) { return range.end - range.begin; }

uint64_t Volume(const Box& box) {
  uint64_t volume = 1;
  for (const Range& range : box) volume *= static_cast<uint64_t>(Length(range));
  return volume;
}

bool IsWithin(const Box& inner, const Box& outer) {
  for (size_t axis = 0; axis < inner.size(); ++axis) {
    if (inner[axis].begin < outer[axis].begin || inner[axis].end > outer[axis].end) return false;
  }
  return true;
}

// All holders of the same part.
struct Part {
  const ShardLayout* layout;
  std::vector<uint32_t> numbers;
};

struct Pair {
  size_t first, second;
  Box box;  // that both hold
};

// Halves the tensor again and again where shards start and end, until each box lies whole within
// every shard that reaches into it. Then the box is a hole, or is held once, or by too many.
class FaultFinder {
 public:
  FaultFinder(const std::vector<Part>& parts, const std::vector<int64_t>& shape)
      : parts_(parts), shape_(shape) {}

  void Find() {
    Box all;
    for (const int64_t size : shape_) all.push_back({0, size});
    if (Volume(all) == 0) return;
    std::vector<size_t> everyone(parts_.size());
    std::iota(everyone.begin(), everyone.end(), size_t{0});
    Look(all, everyone);
  }

  const std::vector<Box>& holes() const { return holes_; }
  const std::vector<Pair>& pairs() const { return pairs_; }
  bool is_complete() const { return is_complete_; }

  ShardLayout LayoutOf(const Box& box) const {
    ShardLayout layout = ShardLayout::Whole(shape_);
    for (size_t axis = 0; axis < box.size(); ++axis) {
      layout.axes[axis] = {{.begin = box[axis].begin, .length = Length(box[axis])}};
    }
    return layout;
  }
  uint64_t CountIn(size_t part, const Box& box) const {
    return Overlap(*parts_[part].layout, LayoutOf(box)).Count();
  }

 private:
  void Look(const Box& box, const std::vector<size_t>& candidates);
  std::pair<Box, Box> Split(const Box& box, const std::vector<size_t>& partial) const;
  void AddHole(const Box& box);
  void AddPairs(const Box& box, const std::vector<size_t>& holders);
  template <typename IsSo>
  Box Grow(Box box, const IsSo& is_so) const;

  const std::vector<Part>& parts_;
  const std::vector<int64_t>& shape_;
  std::vector<Box> holes_;
  std::vector<Pair> pairs_;
  std::set<std::pair<size_t, size_t>> seen_;
  size_t num_boxes_ = 0;
  bool is_complete_ = true;
};

void FaultFinder::Look(const Box& box, const std::vector<size_t>& candidates) {
  const bool has_enough = holes_.size() >= kMaxHoles && pairs_.size() >= kMaxPairs;
  if (has_enough || ++num_boxes_ > kMaxBoxes) {
    is_complete_ = false;
    return;
  }
  std::vector<size_t> full, partial;
  const uint64_t volume = Volume(box);
  for (const size_t part : candidates) {
    const uint64_t count = CountIn(part, box);
    if (count > 0) (count == volume ? full : partial).push_back(part);
  }
  AddPairs(box, full);
  if (partial.empty()) {
    if (full.empty()) AddHole(box);
    return;
  }
  const auto [first, second] = Split(box, partial);
  partial.insert(partial.end(), full.begin(), full.end());
  Look(first, partial);
  Look(second, partial);
}

// Splits where most shards start or end. If no shard does so, as with flat ranges, it splits the
// middle of the longest axis.
std::pair<Box, Box> FaultFinder::Split(const Box& box, const std::vector<size_t>& partial) const {
  size_t axis = 0;
  std::vector<int64_t> cuts;
  for (size_t a = 0; a < box.size(); ++a) {
    std::vector<int64_t> found;
    for (const size_t part : partial) {
      for (const Segment& segment : parts_[part].layout->axes[a]) {
        if (segment.is_padding) continue;
        for (const int64_t cut : {segment.begin, segment.begin + segment.length}) {
          if (cut > box[a].begin && cut < box[a].end) found.push_back(cut);
        }
      }
    }
    if (found.size() <= cuts.size()) continue;
    axis = a;
    cuts = std::move(found);
  }
  if (cuts.empty()) {
    axis = static_cast<size_t>(
        std::max_element(box.begin(), box.end(),
                         [](const Range& a, const Range& b) { return Length(a) < Length(b); }) -
        box.begin());
    cuts.push_back(box[axis].begin + Length(box[axis]) / 2);
  }
  const auto middle = cuts.begin() + static_cast<std::ptrdiff_t>(cuts.size() / 2);
  std::nth_element(cuts.begin(), middle, cuts.end());
  std::pair<Box, Box> halves{box, box};
  halves.first[axis].end = halves.second[axis].begin = *middle;
  return halves;
}

// Returns the largest box around the given one for which `is_so` holds, too.
template <typename IsSo>
Box FaultFinder::Grow(Box box, const IsSo& is_so) const {
  const auto is_so_with = [&](size_t axis, const Range& range) {
    Box wider = box;
    wider[axis] = range;
    return is_so(wider);
  };
  for (size_t axis = box.size(); axis-- > 0;) {
    int64_t low = box[axis].end, high = shape_[axis];
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (is_so_with(axis, {box[axis].begin, middle}))
        low = middle;
      else
        high = middle - 1;
    }
    box[axis].end = low;
    low = 0;
    high = box[axis].begin;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (is_so_with(axis, {middle, box[axis].end}))
        high = middle;
      else
        low = middle + 1;
    }
    box[axis].begin = low;
  }
  return box;
}

void FaultFinder::AddHole(const Box& box) {
  for (const Box& hole : holes_) {
    if (IsWithin(box, hole)) return;
  }
  if (holes_.size() >= kMaxHoles) {
    is_complete_ = false;
    return;
  }
  holes_.push_back(Grow(box, [&](const Box& wider) {
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (CountIn(part, wider) > 0) return false;
    }
    return true;
  }));
}

void FaultFinder::AddPairs(const Box& box, const std::vector<size_t>& holders) {
  for (size_t i = 0; i < holders.size(); ++i) {
    for (size_t k = i + 1; k < holders.size(); ++k) {
      if (pairs_.size() >= kMaxPairs) {
        is_complete_ = false;
        return;
      }
      const std::pair<size_t, size_t> pair = std::minmax(holders[i], holders[k]);
      if (!seen_.insert(pair).second) continue;
      const Box common = Grow(box, [&](const Box& wider) {
        return CountIn(pair.first, wider) == Volume(wider) &&
               CountIn(pair.second, wider) == Volume(wider);
      });
      pairs_.push_back({pair.first, pair.second, common});
    }
  }
}

// Writes the ranges of a box, without the shape behind them.
std::string BoxName(const ShardLayout& box) {
  const std::string text = ToString(box);
  return text.substr(0, text.find(" of "));
}

// Writes "ranks 0, 2 hold it as F32, rank 1 as BF16", with the text of `key` for each.
template <typename Key>
std::optional<std::string> Disagreement(std::span<const ShardHolder> shards, std::string_view what,
                                        const Key& key) {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> by_key;
  for (const ShardHolder& shard : shards) {
    const std::string its = key(shard);
    auto it = std::find_if(by_key.begin(), by_key.end(),
                           [&](const auto& entry) { return entry.first == its; });
    if (it == by_key.end()) it = by_key.insert(by_key.end(), {its, {}});
    if (it->second.empty() || it->second.back() != shard.number) it->second.push_back(shard.number);
  }
  if (by_key.size() < 2) return std::nullopt;
  std::string text;
  for (const auto& [its, numbers] : by_key) {
    text += (text.empty() ? "" : ", ") + NumberList(what, numbers) + " " + its;
  }
  return text;
}

std::string Held(const Part& part, std::string_view what) {
  return ToString(*part.layout) + " of " + NumberList(what, part.numbers);
}

std::string PairText(const FaultFinder& finder, const std::vector<Part>& parts, const Pair& pair,
                     std::string_view what) {
  const Part &first = parts[pair.first], &second = parts[pair.second];
  const uint64_t twice = Overlap(*first.layout, *second.layout).Count();
  return "its shards " + Held(first, what) + " and " + Held(second, what) + " overlap in " +
         std::to_string(twice) + " elements and are no replicas: both hold " +
         BoxName(finder.LayoutOf(pair.box)) + (Volume(pair.box) < twice ? " and more" : "");
}

// Names the holders of elements that start or end where the hole does.
std::string NeighboursText(const FaultFinder& finder, const std::vector<Part>& parts,
                           const Box& hole, const std::vector<int64_t>& shape,
                           std::string_view what) {
  constexpr size_t kShown = 4;
  std::vector<std::string> found;
  for (size_t part = 0; part < parts.size() && found.size() < kShown; ++part) {
    for (size_t axis = 0; axis < hole.size(); ++axis) {
      Box wider = hole;
      wider[axis] = {std::max<int64_t>(hole[axis].begin - 1, 0),
                     std::min(hole[axis].end + 1, shape[axis])};
      if (finder.CountIn(part, wider) == 0) continue;
      found.push_back(NumberList(what, parts[part].numbers) +
                      (parts[part].numbers.size() == 1 ? " holds " : " hold ") +
                      ToString(*parts[part].layout));
      break;
    }
  }
  std::string text;
  for (const std::string& one : found) text += (text.empty() ? "; beside it " : ", ") + one;
  return text;
}

std::vector<Part> DistinctParts(std::span<const ShardHolder> shards) {
  std::map<std::string, size_t> places;
  std::vector<Part> parts;
  for (const ShardHolder& shard : shards) {
    // The text of a canonical layout contains everything in it.
    const auto [it, is_new] = places.try_emplace(ToString(*shard.layout), parts.size());
    if (is_new) parts.push_back({shard.layout, {}});
    std::vector<uint32_t>& numbers = parts[it->second].numbers;
    if (numbers.empty() || numbers.back() != shard.number) numbers.push_back(shard.number);
  }
  return parts;
}

}  // namespace

ShardFaults FindShardFaults(std::span<const ShardHolder> shards, std::string_view what) {
  ShardFaults faults;
  const auto layouts = Disagreement(shards, what, [](const ShardHolder& shard) -> std::string {
    return shard.layout == nullptr ? "without a layout" : "with one";
  });
  if (layouts.has_value()) faults.texts.push_back("its shards are held by " + *layouts);
  const auto dtypes = Disagreement(shards, what, [](const ShardHolder& shard) {
    return "as " + std::string(DTypeName(shard.dtype));
  });
  if (dtypes.has_value()) faults.texts.push_back("its shards are held by " + *dtypes);
  if (layouts.has_value() || shards.empty() || shards[0].layout == nullptr) return faults;
  const auto shapes = Disagreement(shards, what, [](const ShardHolder& shard) {
    return "as parts of " + ShapeName(shard.layout->global_shape);
  });
  if (shapes.has_value()) {
    faults.texts.push_back("its shards are of different global shapes: held by " + *shapes);
    return faults;
  }
  const std::vector<int64_t>& shape = shards[0].layout->global_shape;
  const std::vector<Part> parts = DistinctParts(shards);
  FaultFinder finder(parts, shape);
  finder.Find();
  for (const Pair& pair : finder.pairs()) {
    faults.texts.push_back(PairText(finder, parts, pair, what));
  }
  for (const Box& hole : finder.holes()) faults.holes.push_back(finder.LayoutOf(hole));
  if (!faults.holes.empty()) {
    std::string text;
    const auto all = static_cast<uint64_t>(ShardLayout::Whole(shape).NumGlobal());
    if (finder.pairs().empty()) {
      uint64_t found = 0;
      for (const Part& part : parts) found += static_cast<uint64_t>(part.layout->NumHeld());
      text = "its shards hold " + std::to_string(found) + " of the " + std::to_string(all) +
             " elements of " + ShapeName(shape) + ": ";
    }
    for (const Box& hole : finder.holes()) {
      faults.texts.push_back(text + "no " + std::string(what) + " holds " +
                             BoxName(finder.LayoutOf(hole)) +
                             NeighboursText(finder, parts, hole, shape, what));
      text.clear();
    }
  }
  if (!finder.is_complete()) faults.texts.push_back("and there is more of this kind");
  return faults;
}

}  // namespace varve::internal
