// SPDX-License-Identifier: Apache-2.0
//
// Functions that make shard layouts for the ways in which trainers cut tensors. The store knows
// only ShardLayout. If no function here describes a cut, fill in a ShardLayout yourself.
// docs/layouts.md says which function fits which trainer.
//
//   // A fused attention weight on tensor-parallel rank 1 of 4 ...
//   VARVE_ASSIGN_OR_RETURN(
//       const varve::ShardLayout weight,
//       varve::SplitQkv(varve::ShardLayout::Whole({3 * 768, 768}), 0,
//                       {.query = 12, .key_value = 12, .head_size = 64}, {1, 4}));
//   // ... and its moments, which ZeRO has cut again, on rank 2 of 8.
//   VARVE_ASSIGN_OR_RETURN(const varve::ShardLayout moments, varve::SliceFlat(weight, {2, 8}));
//
// Each function cuts the part that `layout` describes, so cuts can be applied one after the other.
// The functions Split* cut an axis. The functions Slice* cut the flat sequence of elements. A
// layout with a flat range cannot be cut again. `axis` counts from 0. All functions are pure, and
// any thread may call them. kInvalidArgument says what does not fit, what was found and what was
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

// Returns the smallest multiple of `multiple` that is at least `size`. Megatron's padded vocabulary
// is PadTo(vocabulary, make_vocab_size_divisible_by * tp).
Result<int64_t> PadTo(int64_t size, int64_t multiple);

// Tensor parallelism.

// Cuts an axis into equal parts. Use axis 0 for Megatron's column-parallel weights and their
// biases, and for experts stacked in one tensor. Use axis 1 for row-parallel weights.
Result<ShardLayout> SplitEvenly(ShardLayout layout, size_t axis, RankOf tp);
// Pads the axis at its end to `padded_size`, as for vocabularies, then cuts it into equal parts.
// The last ranks may hold padding only.
Result<ShardLayout> SplitPadded(ShardLayout layout, size_t axis, int64_t padded_size, RankOf tp);
// Cuts an axis as torch.chunk, FSDP and DTensor do: each part has ceil(length / ranks) indices. The
// parts of the last ranks may be shorter, or empty.
Result<ShardLayout> SplitChunks(ShardLayout layout, size_t axis, RankOf group);
// A placement of torch's DTensor: one dimension of a device mesh, and what happens to the tensor on
// that dimension.
struct Placement {
  RankOf mesh;                         // the rank's coordinate on this dimension
  std::optional<size_t> shard_axis{};  // Shard(axis), or unset = Replicate()
  // True: _StridedShard(axis), which FSDP2 uses on top of tensor parallelism. FSDP2's dimension is
  // first in `placements`. Its cut is made last, after the cuts of the other dimensions.
  bool is_strided = false;
};
// Places a tensor on a device mesh. `placements` are in the order of the mesh's dimensions. Each
// Shard cuts the part that the placements before it have left, as SplitChunks does
// (compute_local_shape_and_global_offset in torch/distributed/tensor/_utils.py). A tensor with a
// Partial() placement must be reduced first.
Result<ShardLayout> PlaceOnMesh(ShardLayout layout, std::span<const Placement> placements);
// Takes any range of an axis. `indices` count along the part that `layout` holds, from 0.
Result<ShardLayout> TakeIndices(ShardLayout layout, size_t axis, Range indices);
// Cuts an axis on which several weights lie one after the other, each part_sizes[i] indices long. A
// rank holds an equal part of each weight. For fused gate and up weights, `part_sizes` is
// {ffn, ffn}.
Result<ShardLayout> SplitFused(ShardLayout layout, size_t axis, std::span<const int64_t> part_sizes,
                               RankOf tp);
// Cuts an axis into attention heads of equal size, as for separate key and value weights. If there
// are fewer heads than ranks, each head is on ranks / num_heads neighbouring ranks.
Result<ShardLayout> SplitHeads(ShardLayout layout, size_t axis, int64_t num_heads, RankOf tp);

// The heads of fused query, key and value weights or biases. Each key_value head serves
// `query` / `key_value` query heads.
struct AttentionHeads {
  int64_t query = 0;
  int64_t key_value = 0;
  int64_t head_size = 0;  // indices of the axis for each head
};
// The order of heads on the axis.
enum class QkvOrder {
  kParts,   // all query heads, then all keys, then all values: llm.c, InfiniTrain, Hugging Face
  kGroups,  // for each key head: its query heads, the key, the value: Megatron core
};
// Cuts fused query, key and value weights or biases. A rank holds an equal part of the query heads,
// and the keys and values that serve them. `global` is the order in the global tensor. `held` is
// the order on the rank. If several ranks hold the same keys and values, each rank must save two
// shards. It makes both from the layout that SplitQkv returned. TakeIndices(layout, axis, {0, q})
// holds the rank's queries, where q is query / ranks * head_size. TakeIndices(layout, axis, {q, n})
// holds its keys and values, where n is the number of indices of the layout on the axis. Then the
// shards of the same keys and values have equal layouts, and the store takes them for replicas.
Result<ShardLayout> SplitQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                             RankOf tp, QkvOrder global = QkvOrder::kParts,
                             QkvOrder held = QkvOrder::kParts);

// The heads that a rank holds, as ranges of head numbers.
struct RankHeads {
  Range query;
  Range key_value;      // the keys and values that serve its queries
  Range own_key_value;  // the part of key_value that no lower rank holds. It is often empty
};
// Divides heads among ranks when the number of heads is no multiple of the number of ranks, such as
// 6 query heads on 4 ranks. The first ranks have one query head more (2, 2, 1, 1, as
// torch.tensor_split). Each rank holds the keys and values that serve its queries. Its neighbours
// may hold some of them, too. Such parts overlap without being replicas, so a rank loads
// `key_value` and saves `own_key_value`.
Result<RankHeads> HeadsOfRank(const AttentionHeads& heads, RankOf tp);
// Takes ranges of heads of fused weights or biases, as HeadsOfRank returns them. Pass
// RankHeads::key_value to load, and own_key_value to save. For separate weights use TakeIndices,
// with head numbers times head_size.
Result<ShardLayout> TakeQkv(ShardLayout layout, size_t axis, const AttentionHeads& heads,
                            Range query, Range key_value, QkvOrder global = QkvOrder::kParts,
                            QkvOrder held = QkvOrder::kParts);

// ZeRO and other flat cuts. These functions cut the elements of `layout` in row-major order.

// Takes any range of the elements, for trainers that record real offsets.
Result<ShardLayout> TakeElements(ShardLayout layout, Range elements);
// Cuts the elements into equal slices, one for each rank. The elements are first padded at the end
// to a multiple of `align`, then to a multiple of the number of ranks. ColossalAI and DeepSpeed
// stage 3 align to 1.
Result<ShardLayout> SliceFlat(ShardLayout layout, RankOf group, int64_t align = 1);
// Cuts as Paddle's stage 3 does. Tensors of more than 2^20 elements are cut as SliceFlat does,
// aligned to 256 bytes. Each rank holds the other tensors whole.
Result<ShardLayout> SliceLarge(ShardLayout layout, int64_t element_bytes, RankOf group);

// The order in which AssignOwners takes tensors.
enum class OwnerOrder {
  kAsGiven,
  kLargestFirst,  // Paddle's default. Tensors of equal size stay in the given order
};
// Returns the rank that owns each tensor, as in Paddle's stage 1 v1 and stage 2, where a rank holds
// the optimizer state of whole tensors. Each tensor in turn goes to the rank with the fewest
// elements so far. Of several such ranks it goes to the lowest. sizes[i] is the number of elements
// of tensor i. If a Split* function has cut tensor i, sizes[i] counts only the elements of the part
// that this function left.
Result<std::vector<int64_t>> AssignOwners(std::span<const int64_t> sizes, int64_t ranks,
                                          OwnerOrder order);

// Describes a flat buffer in which tensors lie one after the other. All numbers count elements. The
// functions Fuse* compute the buffer from `sizes`, the elements of each tensor. `element_bytes` is
// the size of an element in bytes. A trainer that knows its real offsets fills in a FlatBuffer
// itself.
struct FlatBuffer {
  // The range of each tensor, in the order of `sizes`. It may include padding after the tensor.
  std::vector<Range> tensors;
  // The ranges of buckets. Each bucket holds whole tensors. It is cut into equal parts, one for
  // each rank, without regard to where tensors begin and end.
  std::vector<Range> buckets;
};
// The buffer of Paddle's stage 1 v2. It is one bucket. Each tensor is padded to a multiple of 256
// bytes x ranks.
Result<FlatBuffer> FusePadded(std::span<const int64_t> sizes, int64_t element_bytes, int64_t ranks);
// The buffer of the distributed optimizer of Megatron and InfiniTrain. Tensors lie in reverse
// order, and each begins at a multiple of 64 elements. A bucket takes tensors until it has at least
// `bucket_size` elements. A bucket is padded to a multiple of lcm(ranks, 128), or of lcm(ranks,
// 65,536) when `high_bandwidth` is true. InfiniTrain's bucket_size is 1,000,000. Megatron's is
// max(40,000,000, 1,000,000 * ranks).
Result<FlatBuffer> FuseInBuckets(std::span<const int64_t> sizes, int64_t bucket_size, int64_t ranks,
                                 bool high_bandwidth = false);
// The buffer of one parameter group in DeepSpeed's ZeRO stages 1 and 2 and its BF16 optimizer. It
// has the parameters in their order, and padding at the end to a multiple of 2 * ranks
// (flatten_dense_tensors_aligned with nccl_start_alignment_factor, in
// deepspeed/runtime/zero/stage_1_and_2.py). With round_robin_gradients, `sizes` are in the order
// into which that option puts the parameters.
Result<FlatBuffer> FuseZeroGroup(std::span<const int64_t> sizes, int64_t ranks);
// The flat parameter of one wrapped unit in FSDP1. It has the parameters in the order of the unit's
// modules, and padding at the end to a multiple of the number of ranks. A shared parameter occurs
// once. With use_orig_params each parameter begins at a multiple of 16 bytes (FlatParamHandle in
// torch/distributed/fsdp/_flat_param.py). `element_bytes` is the size in bytes of an element of the
// parameters as the forward pass uses them (MixedPrecision's param_dtype). Without use_orig_params,
// `element_bytes` has no effect, but it must be at least 1.
Result<FlatBuffer> FuseFsdpUnit(std::span<const int64_t> sizes, int64_t element_bytes,
                                int64_t ranks, bool use_orig_params);
// Returns the part of tensor `index` that a rank holds after the buffer is cut. The part is often
// empty. `layout` is that of the tensor before the cut.
Result<ShardLayout> SliceOfBuffer(ShardLayout layout, const FlatBuffer& buffer, size_t index,
                                  RankOf group);

}  // namespace varve
