// SPDX-License-Identifier: Apache-2.0
//
// The parameters of the model: their names and shapes, the part of each that a rank holds, and
// where that part lies in the rank's flat array.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpt/topology.h"
#include "varve/shard_layout.h"

namespace gpt {

inline constexpr int kVocabSize = 256;

struct ModelConfig {
  int num_layers = 6;
  int hidden_size = 256;
  int num_heads = 8;
  int seq_length = 128;
};

// The part of one tensor that a rank holds, and where it lies in the flat array of all of them.
struct Param {
  std::string name;  // as PyTorch names it, e.g. "transformer.h.0.attn.c_attn.weight"
  std::vector<int64_t> global_shape;
  // For each axis the global ranges that the rank holds, one after another. The part is their
  // product.
  std::vector<std::vector<Range>> axes;
  std::vector<int64_t> shape;  // of the part
  int64_t offset = 0;
  int64_t size = 0;
  // Among ranks with equal parts, this one counts them in sums over the whole model.
  bool is_first_copy = true;
};

// A rank's part of one tensor of the training's state, all that is needed to say which elements it
// holds.
struct TensorShard {
  std::string name;  // in the state: a prefix and the parameter's
  Param param;
  // Only these of the part's elements in row-major order. It is all of them unless the optimizer's
  // state is sliced over ranks.
  Range flat;
};
// Returns the same as varve's layout.
varve::ShardLayout LayoutOf(const TensorShard& shard);

// Returns everything that a rank holds, in the order of its storage. The tied lm_head.weight is not
// in the list. With several stages the first and the last hold a copy of the tensor that it is tied
// to.
std::vector<Param> ListParams(const ModelConfig& config, const Position& position = {});
// The storage of lm_head.weight.
inline constexpr std::string_view kTiedToHead = "transformer.wte.weight";

// The layers of a stage.
Range LayersOf(const ModelConfig& config, const Position& position);

// Copies the rank's part out of the whole tensor.
void TakePart(const Param& param, std::span<const float> whole, float* part);

}  // namespace gpt
