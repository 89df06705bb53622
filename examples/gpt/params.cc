// SPDX-License-Identifier: Apache-2.0
#include "gpt/params.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace gpt {
namespace {

// How tensor parallel ranks share a tensor.
enum class Cut {
  kNone,     // each holds all of it
  kRows,     // axis 0 in equal parts
  kColumns,  // axis 1 in equal parts
  kQkvRows,  // the rows of query, key and value each in equal parts: so each rank has whole heads
};

std::vector<Range> Ranges(int64_t size, int64_t num_blocks, int part, int num_parts) {
  std::vector<Range> ranges;
  const int64_t block = size / num_blocks;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const Range range = PartOf(block, part, num_parts);
    ranges.push_back({i * block + range.begin, i * block + range.end});
  }
  return ranges;
}

int64_t TotalSize(const std::vector<Range>& ranges) {
  int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

// Collects the parameters of one rank.
class Lister {
 public:
  explicit Lister(const Position& position) : position_(position) {}

  void Add(std::string name, std::vector<int64_t> shape, Cut cut = Cut::kNone) {
    const int tp = position_.topology.tp;
    Param param{.name = std::move(name), .global_shape = std::move(shape)};
    for (const int64_t size : param.global_shape) param.axes.push_back({{0, size}});
    if (cut == Cut::kNone || tp == 1) {
      param.is_first_copy = position_.tp_rank == 0;
    } else {
      const size_t axis = cut == Cut::kColumns ? 1 : 0;
      const int num_blocks = cut == Cut::kQkvRows ? 3 : 1;
      param.axes[axis] = Ranges(param.global_shape[axis], num_blocks, position_.tp_rank, tp);
    }
    for (const auto& ranges : param.axes) param.shape.push_back(TotalSize(ranges));
    param.offset = offset_;
    param.size =
        std::reduce(param.shape.begin(), param.shape.end(), int64_t{1}, std::multiplies<>());
    offset_ += param.size;
    params_.push_back(std::move(param));
  }

  void AddBlock(int64_t layer, int64_t C) {
    const std::string h = "transformer.h." + std::to_string(layer) + ".";
    Add(h + "ln_1.weight", {C});
    Add(h + "ln_1.bias", {C});
    Add(h + "attn.c_attn.weight", {3 * C, C}, Cut::kQkvRows);
    Add(h + "attn.c_attn.bias", {3 * C}, Cut::kQkvRows);
    Add(h + "attn.c_proj.weight", {C, C}, Cut::kColumns);
    Add(h + "attn.c_proj.bias", {C});
    Add(h + "ln_2.weight", {C});
    Add(h + "ln_2.bias", {C});
    Add(h + "mlp.c_fc.weight", {4 * C, C}, Cut::kRows);
    Add(h + "mlp.c_fc.bias", {4 * C}, Cut::kRows);
    Add(h + "mlp.c_proj.weight", {C, 4 * C}, Cut::kColumns);
    Add(h + "mlp.c_proj.bias", {C});
  }

  Param& last() { return params_.back(); }
  std::vector<Param> Take() { return std::move(params_); }

 private:
  const Position& position_;
  std::vector<Param> params_;
  int64_t offset_ = 0;
};

}  // namespace

Range LayersOf(const ModelConfig& config, const Position& position) {
  return PartOf(config.num_layers, position.pp_rank, position.topology.pp);
}

std::vector<Param> ListParams(const ModelConfig& config, const Position& position) {
  const int64_t C = config.hidden_size;
  const Range layers = LayersOf(config, position);
  Lister list(position);
  if (position.is_first_stage() || position.is_last_stage()) {
    list.Add(std::string(kTiedToHead), {kVocabSize, C}, Cut::kRows);
    list.last().is_first_copy = position.is_first_stage();
  }
  if (position.is_first_stage()) list.Add("transformer.wpe.weight", {config.seq_length, C});
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) list.AddBlock(layer, C);
  if (position.is_last_stage()) {
    list.Add("transformer.ln_f.weight", {C});
    list.Add("transformer.ln_f.bias", {C});
  }
  return list.Take();
}

varve::ShardLayout LayoutOf(const TensorShard& shard) {
  varve::ShardLayout layout{.global_shape = shard.param.global_shape};
  for (const std::vector<Range>& ranges : shard.param.axes) {
    std::vector<varve::Segment>& segments = layout.axes.emplace_back();
    for (const Range& range : ranges) segments.push_back({range.begin, range.size()});
  }
  if (shard.flat.size() < shard.param.size) layout.flat = {shard.flat.begin, shard.flat.end};
  return layout;
}

void TakePart(const Param& param, std::span<const float> whole, float* part) {
  static const std::vector<Range> kOneColumn{{0, 1}};
  const bool is_matrix = param.axes.size() == 2;
  const int64_t row_size = is_matrix ? param.global_shape[1] : 1;
  for (const Range& rows : param.axes[0]) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Range& columns : is_matrix ? param.axes[1] : kOneColumn) {
        const float* from = whole.data() + row * row_size + columns.begin;
        part = std::copy_n(from, columns.size(), part);
      }
    }
  }
}

}  // namespace gpt
