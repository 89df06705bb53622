// SPDX-License-Identifier: Apache-2.0
//
// Cuts of an axis that is made of attention heads.
#include <utility>

#include "trainer_hooks/layouts/axis.h"

namespace varve {
namespace {

std::string HeadsText(int64_t num_heads, const char* kind) {
  return std::to_string(num_heads) + kind;
}

// The heads of a rank: an equal part, or one that it shares with its neighbours.
Result<Range> HeadsOf(int64_t num_heads, const char* kind, RankOf tp) {
  if (num_heads < 1) {
    return Status::InvalidArgument(HeadsText(num_heads, kind) + ", expected at least 1");
  }
  if (tp.ranks > num_heads && tp.ranks % num_heads == 0) {
    const int64_t head = tp.rank / (tp.ranks / num_heads);
    return Range{head, head + 1};
  }
  VARVE_RETURN_IF_ERROR(ExpectMultiple(HeadsText(num_heads, kind), num_heads, tp));
  const int64_t part = num_heads / tp.ranks;
  return Range{tp.rank * part, (tp.rank + 1) * part};
}

// Which heads of fused weights are meant: those of queries, keys or values.
enum class Kind { kQuery, kKey, kValue };

// The place of a head on the axis, counted in heads.
int64_t PlaceOf(Kind kind, int64_t head, const AttentionHeads& heads, QkvOrder order) {
  const int64_t query_per_group = heads.query / heads.key_value;
  if (order == QkvOrder::kParts) {
    if (kind == Kind::kQuery) return head;
    return heads.query + (kind == Kind::kValue ? heads.key_value : 0) + head;
  }
  const int64_t group = kind == Kind::kQuery ? head / query_per_group : head;
  const int64_t within = kind == Kind::kQuery ? head % query_per_group
                                              : query_per_group + (kind == Kind::kValue ? 1 : 0);
  return group * (query_per_group + 2) + within;
}

// The heads that a rank holds, in the order in which it holds them.
class HeldHeads {
 public:
  HeldHeads(const AttentionHeads& heads, QkvOrder global) : heads_(heads), global_(global) {}

  void Add(Kind kind, Range range) {
    for (int64_t head = range.begin; head < range.end; ++head) {
      const int64_t place = PlaceOf(kind, head, heads_, global_);
      pieces_.push_back({place * heads_.head_size, heads_.head_size});
    }
  }
  const std::vector<Segment>& pieces() const { return pieces_; }

 private:
  const AttentionHeads& heads_;
  const QkvOrder global_;
  std::vector<Segment> pieces_;
};

Status ValidateHeads(const AttentionHeads& heads, int64_t axis_size) {
  if (heads.query < 1 || heads.key_value < 1 || heads.query % heads.key_value != 0) {
    return Status::InvalidArgument(HeadsText(heads.query, " query heads") + " for " +
                                   HeadsText(heads.key_value, " key and value heads") +
                                   ", expected a multiple");
  }
  const int64_t on_axis = heads.head_size > 0 ? axis_size / heads.head_size : 0;
  const int64_t left = on_axis - heads.query;  // for keys and values
  const bool fits = on_axis > 0 && axis_size % heads.head_size == 0 && left % 2 == 0 &&
                    left / 2 == heads.key_value;
  if (fits) return Status::Ok();
  return Status::InvalidArgument(HeadsText(heads.query, " query, ") +
                                 HeadsText(heads.key_value, " key and as many value heads") +
                                 " of " + std::to_string(heads.head_size) +
                                 " indices on an axis of " + std::to_string(axis_size));
}

}  // namespace

Result<ShardLayout> SplitHeads(ShardLayout layout, size_t axis, int64_t num_heads, RankOf tp) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, tp));
  VARVE_ASSIGN_OR_RETURN(const Range held, HeadsOf(num_heads, " heads", tp));
  const int64_t size = AxisLength(layout.axes[axis]);
  if (size % num_heads != 0) {
    return Status::InvalidArgument(HeadsText(num_heads, " heads") + " on axis " +
                                   std::to_string(axis) + " of " + std::to_string(size) +
                                   " indices, expected a multiple");
  }
  const int64_t head_size = size / num_heads;
  return Take(std::move(layout), axis,
              {{held.begin * head_size, (held.end - held.begin) * head_size}});
}

Result<ShardLayout> SplitQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                             RankOf tp, QkvOrder global, QkvOrder held) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, tp));
  VARVE_RETURN_IF_ERROR(ValidateHeads(heads, AxisLength(layout.axes[axis])));
  VARVE_RETURN_IF_ERROR(ExpectMultiple(HeadsText(heads.query, " query heads"), heads.query, tp));
  VARVE_ASSIGN_OR_RETURN(const Range queries, HeadsOf(heads.query, " query heads", tp));
  VARVE_ASSIGN_OR_RETURN(const Range keys, HeadsOf(heads.key_value, " key heads", tp));
  HeldHeads rank(heads, global);
  if (held == QkvOrder::kParts) {
    rank.Add(Kind::kQuery, queries);
    rank.Add(Kind::kKey, keys);
    rank.Add(Kind::kValue, keys);
    return Take(std::move(layout), axis, rank.pieces());
  }
  const int64_t query_per_key = (queries.end - queries.begin) / (keys.end - keys.begin);
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    const int64_t first = queries.begin + (key - keys.begin) * query_per_key;
    rank.Add(Kind::kQuery, {first, first + query_per_key});
    rank.Add(Kind::kKey, {key, key + 1});
    rank.Add(Kind::kValue, {key, key + 1});
  }
  return Take(std::move(layout), axis, rank.pieces());
}

}  // namespace varve
