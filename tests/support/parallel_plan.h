// SPDX-License-Identifier: Apache-2.0
//
// A model whose sizes divide by nothing, and what each rank of a training holds of it under a plan.
// A plan is written as people write it: "mp2 pp2 sharding2 stage1 v2".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/layouts.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve::internal::testing {

// How tensor parallelism cuts a parameter.
enum class Cut {
  kWhole,
  kRows,
  kColumns,
  kVocabulary,  // rows, padded to a multiple of 128 x tp when tp > 1
  kQkv,         // rows of kModelHeads
  kGateUp,      // rows, two halves
};
inline constexpr AttentionHeads kModelHeads{.query = 8, .key_value = 4, .head_size = 3};

// Parameters outside of the layers are on the first stage or on the last.
inline constexpr int64_t kFirstStage = -1, kLastStage = -2;

struct Parameter {
  std::string name;  // in a layer: what follows "transformer.h.N."
  std::vector<int64_t> shape;
  Cut cut = Cut::kWhole;
  int64_t layer = kFirstStage;
};

struct Model {
  int64_t layers = 0;
  std::vector<Parameter> parameters;  // by rising layer
};

// Returns a model of seven layers, with vocabularies of 50,257 and 65,535, tensors of 2^20 - 1,
// 2^20 and 2^20 + 1 elements, and prime sizes.
Model OddModel();
// Returns a model of one layer with fused heads only.
Model HeadsModel();
// Returns a model of tensors that tensor parallelism of any degree can cut: vocabularies of 50,257,
// 65,535 and 100.
Model VocabularyModel();

// Which ranks hold the state of the optimizer, and with stage 3 the weights.
enum class Sharding {
  kNone,
  kOwners,         // whole tensors, largest first: "stage1 v1", "stage2"
  kOwnersInOrder,  // as given: "in-order"
  kFused,          // "stage1 v2"
  kStage3,         // "stage3", not with mp or pp
  kPerTensor,      // ColossalAI's: "per-tensor"
  kBuckets,        // InfiniTrain's and Megatron's: "buckets"
  kChunks,         // FSDP: "fsdp", weights and all
};

struct ParallelPlan {
  std::string name;
  int64_t dp = 1, tp = 1, pp = 1, vpp = 1;
  int64_t sharding = 1;  // degree
  Sharding kind = Sharding::kNone;
  bool sharded_weights = false;  // "save_sharded_model": with its owner only
};

// Words of a plan: dpN, mpN or tpN, ppN, vppN, shardingN, stage1, stage2, stage3, v1 (implied), v2,
// in-order, per-tensor, buckets, fsdp, save_sharded_model. kInvalidArgument names a word it does
// not know.
Result<ParallelPlan> ParsePlan(std::string_view text);

// One tensor of one rank. Each parameter has a BF16 weight, an FP32 master, two moments, and two
// powers of beta of one element. All ranks that have a part of the moments have the powers.
struct HeldTensor {
  std::string name;  // global
  DType dtype = DType::kF32;
  TensorRole role = TensorRole::kOther;
  ShardLayout layout;
  // What a save puts: `layout`, or where ranks share a part of it, consecutive pieces of it in
  // memory.
  std::vector<ShardLayout> shards{};
};
using RankTensors = std::vector<HeldTensor>;

// Returns what each rank holds. A rank that holds nothing of a tensor may have it without elements.
Result<std::vector<RankTensors>> TensorsOfRanks(const Model& model, const ParallelPlan& plan);

}  // namespace varve::internal::testing
