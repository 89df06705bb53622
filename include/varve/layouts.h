// SPDX-License-Identifier: Apache-2.0
//
// Makes shard layouts for the ways in which trainers cut tensors. Conveniences: the store sees only
// ShardLayout, and what no function here describes is written down as one. docs/layouts.md says
// which function fits which trainer.
//
//   // A fused attention weight on tensor-parallel rank 1 of 4 ...
//   VARVE_ASSIGN_OR_RETURN(
//       const varve::ShardLayout weight,
//       varve::SplitQkv(varve::ShardLayout::Whole({3 * 768, 768}), 0,
//                       {.query = 12, .key_value = 12, .head_size = 64}, {1, 4}));
//   // ... and its moments, which ZeRO has cut again, on rank 2 of 8.
//   VARVE_ASSIGN_OR_RETURN(const varve::ShardLayout moments, varve::SliceFlat(weight, {2, 8}));
//
// Split* cuts an axis, and Slice* the flat elements, of what the layout holds so far. So they can
// be applied one after the other. A layout with a flat range cannot be cut again. All are pure
// functions, for any thread. kInvalidArgument names what does not fit, what was found and what was
// expected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "varve/result.h"
#include "varve/shard_layout.h"

namespace varve {

// A rank's number within its group of one kind of parallelism: {1, 4} is rank 1 of 4.
struct RankOf {
  int64_t rank = 0;
  int64_t ranks = 1;
};

// The smallest multiple of `multiple` that is at least `size`. Megatron's padded vocabulary is
// PadTo(vocabulary, make_vocab_size_divisible_by * tp).
Result<int64_t> PadTo(int64_t size, int64_t multiple);

// Tensor parallelism.

// Equal parts of an axis. Axis 0 is for the rows of what Megatron calls column-parallel weights and
// their biases, and for experts stacked in one tensor. Axis 1 is for row-parallel weights.
Result<ShardLayout> SplitEvenly(ShardLayout layout, size_t axis, RankOf tp);
// The same after padding at the end of the axis, as for vocabularies: ranks may hold padding only.
Result<ShardLayout> SplitPadded(ShardLayout layout, size_t axis, int64_t padded_size, RankOf tp);
// As torch.chunk, FSDP and DTensor: all parts are as long as the first, but those of the last ranks
// are shorter or empty.
Result<ShardLayout> SplitChunks(ShardLayout layout, size_t axis, RankOf group);
// A dimension of a device mesh, and what torch's DTensor does with a tensor on it.
struct Placement {
  RankOf mesh;                         // the rank's coordinate on this dimension
  std::optional<size_t> shard_axis{};  // Shard(axis), or unset = Replicate()
  // _StridedShard(axis), as FSDP2 has it on top of tensor parallelism. Its dimension comes before
  // those of the other placements, and its cut after theirs.
  bool is_strided = false;
};
// `placements` are in the order of the mesh's dimensions. Each Shard cuts what those before have
// left, as SplitChunks does (compute_local_shape_and_global_offset of
// torch/distributed/tensor/_utils.py). Partial() has no layout. Reduce it first.
Result<ShardLayout> PlaceOnMesh(ShardLayout layout, std::span<const Placement> placements);
// Any range of an axis.
Result<ShardLayout> TakeIndices(ShardLayout layout, size_t axis, Range indices);
// Several weights lie one after the other on an axis, `part_sizes` long. A rank holds its equal
// part of each. {ffn, ffn} is for gate and up.
Result<ShardLayout> SplitFused(ShardLayout layout, size_t axis, std::span<const int64_t> part_sizes,
                               RankOf tp);
// Heads of equal size on an axis, as of separate key and value weights. Where there are fewer heads
// than ranks, ranks / num_heads neighbours hold the same head.
Result<ShardLayout> SplitHeads(ShardLayout layout, size_t axis, int64_t num_heads, RankOf tp);

// The heads of fused query, key and value weights or biases. Each key_value head serves
// query / key_value query heads.
struct AttentionHeads {
  int64_t query = 0;
  int64_t key_value = 0;
  int64_t head_size = 0;  // indices of the axis for each
};
enum class QkvOrder {
  kParts,   // all query heads, all keys, all values: llm.c, InfiniTrain, Hugging Face
  kGroups,  // for each key: its query heads, the key, its value: Megatron core
};
// A rank holds its equal part of the query heads, and the keys and values that serve them, as
// SplitHeads does. `global` and `held` are the orders in the global tensor and on the rank. Where
// several ranks hold the same key and value, each saves two shards (TakeIndices): its queries,
// which come first, and its keys with values. The store takes shards for replicas when their
// layouts are equal.
Result<ShardLayout> SplitQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                             RankOf tp, QkvOrder global = QkvOrder::kParts,
                             QkvOrder held = QkvOrder::kParts);

// The heads of a rank where the ranks do not divide them, as 6 query heads on 4 ranks. The first
// ranks have one query head more (2, 2, 1, 1, as torch.tensor_split). Each rank has the keys and
// values that serve its queries, which its neighbours may have, too. Such parts overlap and are no
// replicas, so a rank saves its own and loads all that it holds.
struct RankHeads {
  Range query;
  Range key_value;      // all that it holds
  Range own_key_value;  // of these, what no lower rank has. Often nothing
};
Result<RankHeads> HeadsOfRank(const AttentionHeads& heads, RankOf tp);
// These heads of fused weights or biases. RankHeads::key_value gives what a rank loads, and
// own_key_value what it saves. For separate weights, TakeIndices takes the heads x head_size.
Result<ShardLayout> TakeQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                            Range query, Range key_value, QkvOrder global = QkvOrder::kParts,
                            QkvOrder held = QkvOrder::kParts);

// ZeRO and sharding: what a rank holds of the elements of `layout`, one after the other.

// Any range of them: for trainers that record real offsets.
Result<ShardLayout> TakeElements(ShardLayout layout, Range elements);
// Equal slices of the elements, padded at the end to a multiple of `align` and then of the ranks.
// ColossalAI and DeepSpeed stage 3 align to 1.
Result<ShardLayout> SliceFlat(ShardLayout layout, RankOf group, int64_t align = 1);
// Paddle's stage 3: tensors of more than 2^20 elements are sliced, aligned to 256 bytes. The others
// are whole on each rank.
Result<ShardLayout> SliceLarge(ShardLayout layout, int64_t element_bytes, RankOf group);

// Paddle's stage 1 v1 and stage 2: a rank has the optimizer state of whole tensors.
enum class OwnerOrder {
  kAsGiven,
  kLargestFirst,  // Paddle's default. Equals stay as given
};
// The rank that owns each tensor: one after the other goes to the rank that has the fewest elements
// so far, of several to the lowest. `sizes` are the elements that the ranks hold, after any Split.
Result<std::vector<int64_t>> AssignOwners(std::span<const int64_t> sizes, int64_t ranks,
                                          OwnerOrder order);

// Tensors one after the other in a flat buffer that is cut without regard to them. Where a trainer
// knows its real offsets, write them here instead of computing them a second time.
struct FlatBuffer {
  // The range of each tensor, in the order of `sizes`. It includes the padding behind the tensor
  // where that belongs to it.
  std::vector<Range> tensors;
  // The ranges of buckets. Each is cut into equal parts, one a rank, and holds whole tensors.
  std::vector<Range> buckets;
};
// Paddle's stage 1 v2: one bucket. Each tensor is padded to a multiple of 256 bytes x ranks.
Result<FlatBuffer> FusePadded(std::span<const int64_t> sizes, int64_t element_bytes, int64_t ranks);
// The distributed optimizer of Megatron and InfiniTrain: from the last tensor to the first, each
// aligned to 64 elements. A bucket ends with the tensor that makes it `bucket_size` long or longer.
// It is padded to a multiple of ranks, of 128, and when `high_bandwidth` of 65,536 elements.
// InfiniTrain's bucket_size is 1,000,000, Megatron's max(40,000,000, 1,000,000 * ranks).
Result<FlatBuffer> FuseInBuckets(std::span<const int64_t> sizes, int64_t bucket_size, int64_t ranks,
                                 bool high_bandwidth = false);
// DeepSpeed's ZeRO stages 1 and 2, and its BF16 optimizer: the parameters of one group of the
// optimizer, in their order, with padding at the end to a multiple of 2 * ranks
// (flatten_dense_tensors_aligned with nccl_start_alignment_factor, in
// deepspeed/runtime/zero/stage_1_and_2.py). With round_robin_gradients give `sizes` in that order.
Result<FlatBuffer> FuseZeroGroup(std::span<const int64_t> sizes, int64_t ranks);
// FSDP1's flat parameter of one unit that is wrapped: the parameters in the order of its modules,
// a shared one once, with padding at the end to a multiple of the ranks. With use_orig_params each
// begins at a multiple of 16 bytes, of the type that forward uses (FlatParamHandle in
// torch/distributed/fsdp/_flat_param.py).
Result<FlatBuffer> FuseFsdpUnit(std::span<const int64_t> sizes, int64_t element_bytes,
                                int64_t ranks, bool use_orig_params);
// What a rank holds of one tensor of a buffer, which is often nothing.
Result<ShardLayout> SliceOfBuffer(ShardLayout layout, const FlatBuffer& buffer, size_t index,
                                  RankOf group);

}  // namespace varve
