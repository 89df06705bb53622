// SPDX-License-Identifier: Apache-2.0
#include "store/shards/disjoint.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace varve::internal {

namespace {

void Mix(int64_t value, uint64_t* hash) {
  *hash = std::rotl((*hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15, 29);
}

struct SegmentsHash {
  size_t operator()(const std::vector<Segment>& segments) const {
    uint64_t hash = segments.size();
    for (const Segment& segment : segments) {
      Mix(segment.begin, &hash);
      Mix(segment.is_padding ? -segment.length : segment.length, &hash);
    }
    return hash;
  }
};

struct ProductHash {
  size_t operator()(const ShardLayout* layout) const {
    uint64_t hash = 0;
    for (const auto& segments : layout->axes) {
      Mix(static_cast<int64_t>(SegmentsHash()(segments)), &hash);
    }
    return hash;
  }
};
struct ProductEqual {
  bool operator()(const ShardLayout* a, const ShardLayout* b) const { return a->axes == b->axes; }
};

struct LayoutHash {
  size_t operator()(const ShardLayout* layout) const {
    uint64_t hash = ProductHash()(layout);
    if (layout->flat.has_value()) {
      Mix(layout->flat->begin, &hash);
      Mix(layout->flat->end, &hash);
    }
    return hash;
  }
};
struct LayoutEqual {
  bool operator()(const ShardLayout* a, const ShardLayout* b) const { return *a == *b; }
};

// Indices of an axis, as ranges by rising index that neither overlap nor touch.
using Indices = std::vector<Range>;

struct IndicesHash {
  size_t operator()(const Indices& indices) const {
    uint64_t hash = indices.size();
    for (const Range& range : indices) {
      Mix(range.begin, &hash);
      Mix(range.end, &hash);
    }
    return hash;
  }
};

// Returns the union of ranges, or nothing when two have an index in common.
std::optional<Indices> JoinRanges(Indices ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Indices joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin < joined.back().end) return std::nullopt;
    if (!joined.empty() && range.begin == joined.back().end) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

int64_t Count(const Indices& indices) {
  return std::accumulate(indices.begin(), indices.end(), int64_t{0},
                         [](int64_t sum, const Range& r) { return sum + r.end - r.begin; });
}

bool HaveCommon(const Indices& a, const Indices& b) {
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].begin < b[k].end && b[k].begin < a[i].end) return true;
    a[i].end < b[k].end ? ++i : ++k;
  }
  return false;
}

// Returns the global indices that local places [begin, end) of an axis hold.
Indices HeldOf(const std::vector<Segment>& segments, const Range& local) {
  Indices held;
  int64_t at = 0;
  for (const Segment& segment : segments) {
    const int64_t begin = std::max(local.begin, at);
    const int64_t end = std::min(local.end, at + segment.length);
    if (begin < end && !segment.is_padding) {
      held.push_back({segment.begin + begin - at, segment.begin + end - at});
    }
    at += segment.length;
  }
  return *JoinRanges(std::move(held));  // the layout is valid, so no index is there twice
}

constexpr Range kAll{0, INT64_MAX};

// The layouts of one tensor as products of index sets. Equal sets have one number.
class Parts {
 public:
  explicit Parts(size_t num_axes) : num_axes_(num_axes) {}

  void Add(std::span<const ShardLayout* const> layouts);
  // Returns false when two of them overlap.
  bool Join();
  bool AreDisjoint() const;
  int64_t NumHeld() const;

 private:
  using Part = std::vector<uint32_t>;  // numbers of sets, one an axis

  void AddFlats(std::span<const ShardLayout* const> layouts);
  void AddProduct(const ShardLayout& layout);
  void AddFlat(const ShardLayout& layout, const Range& flat);
  void AddBoxes(const ShardLayout& layout, const Range& places, std::vector<Range>* box);
  void AddBox(const ShardLayout& layout, const std::vector<Range>& box);
  uint32_t NumberOf(Indices indices);
  uint32_t NumberOfAll(size_t axis, const std::vector<Segment>& segments);
  bool JoinAlong(size_t axis);
  bool HaveCommon(const Part& a, const Part& b) const;

  struct Known {
    const std::vector<Segment>* segments = nullptr;
    uint32_t number = 0;
  };

  const size_t num_axes_;
  std::vector<Part> parts_;  // none is empty
  std::vector<Indices> sets_;
  std::unordered_map<Indices, uint32_t, IndicesHash> numbers_;
  std::vector<Known> last_;  // by axis: neighbours often have the same
};

void Parts::Add(std::span<const ShardLayout* const> layouts) {
  last_.resize(num_axes_);
  parts_.reserve(layouts.size());
  // Flat ranges of one product are handled together.
  std::unordered_map<const ShardLayout*, std::vector<const ShardLayout*>, ProductHash, ProductEqual>
      flats;
  for (const ShardLayout* layout : layouts) {
    if (layout->flat.has_value()) {
      flats[layout].push_back(layout);
    } else {
      AddProduct(*layout);
    }
  }
  for (const auto& [first, group] : flats) AddFlats(group);
}

// All layouts are of one product.
void Parts::AddFlats(std::span<const ShardLayout* const> layouts) {
  int64_t size = 1;
  for (const int64_t length : layouts[0]->ProductShape()) size *= length;
  Indices ranges;
  for (const ShardLayout* layout : layouts) {
    const Range held{layout->flat->begin, std::min(layout->flat->end, size)};
    if (held.begin < held.end) ranges.push_back(held);
  }
  // Places of padding count here, too. Ranges that have only such places in common are compared as
  // boxes.
  const std::optional<Indices> joined = JoinRanges(ranges);
  for (const Range& range : joined.has_value() ? *joined : ranges) AddFlat(*layouts[0], range);
}

uint32_t Parts::NumberOf(Indices indices) {
  const auto [it, is_new] =
      numbers_.try_emplace(std::move(indices), static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(it->first);
  return it->second;
}

uint32_t Parts::NumberOfAll(size_t axis, const std::vector<Segment>& segments) {
  Known& last = last_[axis];
  if (last.segments != nullptr && *last.segments == segments) return last.number;
  last = {&segments, NumberOf(HeldOf(segments, kAll))};
  return last.number;
}

void Parts::AddProduct(const ShardLayout& layout) {
  Part part;
  part.reserve(num_axes_);
  for (size_t axis = 0; axis < num_axes_; ++axis) {
    part.push_back(NumberOfAll(axis, layout.axes[axis]));
    if (sets_[part.back()].empty()) return;
  }
  parts_.push_back(std::move(part));
}

// A flat range becomes a few boxes of local places: the ends of rows that it cuts, and whole rows.
void Parts::AddFlat(const ShardLayout& layout, const Range& flat) {
  std::vector<Range> box;
  AddBoxes(layout, flat, &box);
}

// `places` is the number of places below the axes of `box`.
void Parts::AddBoxes(const ShardLayout& layout, const Range& places, std::vector<Range>* box) {
  const size_t axis = box->size();
  if (axis == num_axes_) return AddBox(layout, *box);
  const std::vector<int64_t> shape = layout.ProductShape();
  int64_t stride = 1;
  for (size_t i = axis + 1; i < shape.size(); ++i) stride *= shape[i];
  const auto add = [&](const Range& indices, const Range& below) {
    if (indices.begin >= indices.end || below.begin >= below.end) return;
    box->push_back(indices);
    AddBoxes(layout, below, box);
    box->pop_back();
  };
  const int64_t first = places.begin / stride, last = (places.end - 1) / stride;
  const Range row{0, stride};
  if (first == last) {
    return add({first, first + 1}, {places.begin - first * stride, places.end - first * stride});
  }
  const bool cuts_first = places.begin % stride != 0, cuts_last = places.end % stride != 0;
  if (cuts_first) add({first, first + 1}, {places.begin - first * stride, stride});
  add({first + (cuts_first ? 1 : 0), last + (cuts_last ? 0 : 1)}, row);
  if (cuts_last) add({last, last + 1}, {0, places.end - last * stride});
}

void Parts::AddBox(const ShardLayout& layout, const std::vector<Range>& box) {
  Part part;
  part.reserve(num_axes_);
  for (size_t axis = 0; axis < num_axes_; ++axis) {
    part.push_back(NumberOf(HeldOf(layout.axes[axis], box[axis])));
    if (sets_[part.back()].empty()) return;
  }
  parts_.push_back(std::move(part));
}

// Joins until no axis joins any more, or a limit is reached. The rest is compared by pairs.
bool Parts::Join() {
  const size_t rounds = 2 * num_axes_ + 2;
  for (size_t round = 0; round < rounds && parts_.size() > 1; ++round) {
    const size_t before = parts_.size();
    for (size_t axis = 0; axis < num_axes_ && parts_.size() > 1; ++axis) {
      if (!JoinAlong(axis)) return false;
    }
    if (parts_.size() == before) break;
  }
  return true;
}

// Joins parts that are equal on all other axes.
bool Parts::JoinAlong(size_t axis) {
  const auto differ = [&](const Part& a, const Part& b) {
    size_t i = 0;
    while (i < num_axes_ && (i == axis || a[i] == b[i])) ++i;
    return i;
  };
  std::sort(parts_.begin(), parts_.end(), [&](const Part& a, const Part& b) {
    const size_t i = differ(a, b);
    return i < num_axes_ && a[i] < b[i];
  });
  std::vector<Part> joined;
  for (size_t begin = 0, end = 0; begin < parts_.size(); begin = end) {
    Indices ranges;
    for (; end < parts_.size() && differ(parts_[begin], parts_[end]) == num_axes_; ++end) {
      const Indices& more = sets_[parts_[end][axis]];
      ranges.insert(ranges.end(), more.begin(), more.end());
    }
    if (end > begin + 1) {
      std::optional<Indices> all = JoinRanges(std::move(ranges));
      if (!all.has_value()) return false;
      parts_[begin][axis] = NumberOf(*std::move(all));
    }
    joined.push_back(std::move(parts_[begin]));
  }
  parts_ = std::move(joined);
  return true;
}

bool Parts::HaveCommon(const Part& a, const Part& b) const {
  for (size_t axis = 0; axis < num_axes_; ++axis) {
    if (a[axis] != b[axis] && !varve::internal::HaveCommon(sets_[a[axis]], sets_[b[axis]]))
      return false;
  }
  return true;
}

bool Parts::AreDisjoint() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (HaveCommon(parts_[k], parts_[i])) return false;
    }
  }
  return true;
}

int64_t Parts::NumHeld() const {
  int64_t held = 0;
  for (const Part& part : parts_) {
    int64_t count = 1;
    for (const uint32_t set : part) count *= Count(sets_[set]);
    held += count;
  }
  return held;
}

}  // namespace

std::vector<size_t> FindOriginals(std::span<const ShardLayout* const> layouts) {
  std::unordered_map<const ShardLayout*, size_t, LayoutHash, LayoutEqual> first;
  first.reserve(layouts.size());
  std::vector<size_t> originals;
  originals.reserve(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    originals.push_back(first.try_emplace(layouts[i], i).first->second);
  }
  return originals;
}

std::optional<int64_t> CountDisjoint(std::span<const ShardLayout* const> layouts) {
  if (layouts.empty()) return 0;
  Parts parts(layouts[0]->axes.size());
  parts.Add(layouts);
  if (!parts.Join() || !parts.AreDisjoint()) return std::nullopt;
  return parts.NumHeld();
}

}  // namespace varve::internal
