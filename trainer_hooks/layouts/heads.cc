// SPDX-License-Identifier: Apache-2.0
//
// Cuts of an axis that is made of attention heads.
#include <algorithm>
#include <utility>

#include "store/shards/overlap.h"
#include "trainer_hooks/layouts/axis.h"

namespace varve {
using namespace internal;

namespace {

std::string HeadsText(int64_t num_heads, const char* kind) {
  return std::to_string(num_heads) + kind;
}

// Returns the heads of a rank: an equal part, or one that it shares with its neighbours.
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

// The kind of heads in fused weights: queries, keys or values.
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

// Returns the heads that a rank holds, in its order.
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

// Returns those heads in the order in which a rank holds them.
std::vector<Segment> PiecesOf(const AttentionHeads& heads, Range queries, Range keys,
                              QkvOrder global, QkvOrder held) {
  HeldHeads rank(heads, global);
  if (held == QkvOrder::kParts) {
    rank.Add(Kind::kQuery, queries);
    rank.Add(Kind::kKey, keys);
    rank.Add(Kind::kValue, keys);
    return rank.pieces();
  }
  const int64_t query_per_group = heads.query / heads.key_value;
  for (int64_t group = 0; group < heads.key_value; ++group) {
    rank.Add(Kind::kQuery,
             Intersect(queries, {group * query_per_group, (group + 1) * query_per_group}));
    const Range key = Intersect(keys, {group, group + 1});
    rank.Add(Kind::kKey, key);
    rank.Add(Kind::kValue, key);
  }
  return rank.pieces();
}

Status ValidateRange(const Range& range, int64_t num_heads, const char* kind) {
  if (0 <= range.begin && range.begin <= range.end && range.end <= num_heads) return Status::Ok();
  return Status::InvalidArgument(std::string(kind) + " heads " + std::to_string(range.begin) + ":" +
                                 std::to_string(range.end) + " of " + std::to_string(num_heads));
}

Status ValidateCounts(const AttentionHeads& heads) {
  if (heads.query >= 1 && heads.key_value >= 1 && heads.query % heads.key_value == 0) {
    return Status::Ok();
  }
  return Status::InvalidArgument(HeadsText(heads.query, " query heads") + " for " +
                                 HeadsText(heads.key_value, " key and value heads") +
                                 ", expected a multiple");
}

Status ValidateHeads(const AttentionHeads& heads, int64_t axis_size) {
  VARVE_RETURN_IF_ERROR(ValidateCounts(heads));
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
  const int64_t size = layout.ProductShape()[axis];
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
  VARVE_RETURN_IF_ERROR(ValidateHeads(heads, layout.ProductShape()[axis]));
  VARVE_RETURN_IF_ERROR(ExpectMultiple(HeadsText(heads.query, " query heads"), heads.query, tp));
  VARVE_ASSIGN_OR_RETURN(const Range queries, HeadsOf(heads.query, " query heads", tp));
  VARVE_ASSIGN_OR_RETURN(const Range keys, HeadsOf(heads.key_value, " key heads", tp));
  return Take(std::move(layout), axis, PiecesOf(heads, queries, keys, global, held));
}

Result<RankHeads> HeadsOfRank(const AttentionHeads& heads, RankOf tp) {
  VARVE_RETURN_IF_ERROR(ValidateRank(tp));
  VARVE_RETURN_IF_ERROR(ValidateCounts(heads));
  const int64_t each = heads.query / tp.ranks, more = heads.query % tp.ranks;
  const int64_t first = tp.rank * each + std::min(tp.rank, more);
  RankHeads of_rank;
  of_rank.query = {first, first + each + (tp.rank < more ? 1 : 0)};
  const int64_t per_key = heads.query / heads.key_value;
  const auto keys_below = [per_key](int64_t query) { return (query + per_key - 1) / per_key; };
  // Lower ranks have all keys of the queries before this rank's.
  const Range own{keys_below(of_rank.query.begin), keys_below(of_rank.query.end)};
  const bool has_queries = of_rank.query.begin < of_rank.query.end;
  of_rank.key_value = has_queries ? Range{of_rank.query.begin / per_key, own.end} : own;
  of_rank.own_key_value = own;
  return of_rank;
}

Result<ShardLayout> TakeQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                            Range query, Range key_value, QkvOrder global, QkvOrder held) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, {}));
  VARVE_RETURN_IF_ERROR(ValidateHeads(heads, layout.ProductShape()[axis]));
  VARVE_RETURN_IF_ERROR(ValidateRange(query, heads.query, "query"));
  VARVE_RETURN_IF_ERROR(ValidateRange(key_value, heads.key_value, "key and value"));
  return Take(std::move(layout), axis, PiecesOf(heads, query, key_value, global, held));
}

}  // namespace varve
