// SPDX-License-Identifier: Apache-2.0
#include "tests/support/parallel_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "varve/global_names.h"

namespace varve::internal::testing {
namespace {

constexpr int64_t kBucketSize = 1'000'000;
constexpr const char* kLayers = "transformer.h";

void AddLayer(int64_t layer, Model* model) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, Cut cut) {
    model->parameters.push_back({name, std::move(shape), cut, layer});
  };
  add("ln_1.weight", {29}, Cut::kWhole);
  add("attn.c_attn.weight", {48, 29}, Cut::kQkv);
  add("attn.c_attn.bias", {48}, Cut::kQkv);
  add("attn.c_proj.weight", {29, 24}, Cut::kColumns);
  add("mlp.gate_up.weight", {80, 29}, Cut::kGateUp);
  add("mlp.c_proj.weight", {29, 40}, Cut::kColumns);
}

// The number behind `prefix`, if that is all of `word`.
std::optional<int64_t> NumberBehind(std::string_view word, std::string_view prefix) {
  if (!word.starts_with(prefix)) return std::nullopt;
  word.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) return std::nullopt;
  return number;
}

bool ReadDegree(std::string_view word, ParallelPlan* plan) {
  const std::pair<std::string_view, int64_t*> degrees[] = {
      {"dp", &plan->dp}, {"mp", &plan->tp},   {"tp", &plan->tp},
      {"pp", &plan->pp}, {"vpp", &plan->vpp}, {"sharding", &plan->sharding},
  };
  for (const auto& [prefix, degree] : degrees) {
    if (const auto number = NumberBehind(word, prefix)) {
      *degree = *number;
      return true;
    }
  }
  return false;
}

bool ReadKind(std::string_view word, ParallelPlan* plan) {
  const std::pair<std::string_view, Sharding> kinds[] = {
      {"stage1", Sharding::kOwners},
      {"stage2", Sharding::kOwners},
      {"v1", Sharding::kOwners},
      {"v2", Sharding::kFused},
      {"stage3", Sharding::kStage3},
      {"in-order", Sharding::kOwnersInOrder},
      {"per-tensor", Sharding::kPerTensor},
      {"buckets", Sharding::kBuckets},
      {"fsdp", Sharding::kChunks},
  };
  for (const auto& [name, kind] : kinds) {
    if (word == name) {
      plan->kind = kind;
      return true;
    }
  }
  if (word == "save_sharded_model") plan->sharded_weights = true;
  return word == "save_sharded_model";
}

Result<ShardLayout> CutFor(const Parameter& parameter, RankOf tp) {
  const ShardLayout whole = ShardLayout::Whole(parameter.shape);
  const int64_t rows = parameter.shape[0];
  switch (parameter.cut) {
    case Cut::kWhole:
      return whole;
    case Cut::kRows:
      return SplitEvenly(whole, 0, tp);
    case Cut::kColumns:
      return SplitEvenly(whole, 1, tp);
    case Cut::kVocabulary: {
      VARVE_ASSIGN_OR_RETURN(const int64_t padded, PadTo(rows, tp.ranks == 1 ? 1 : 128 * tp.ranks));
      return SplitPadded(whole, 0, padded, tp);
    }
    case Cut::kQkv:
      return SplitQkv(whole, 0, kModelHeads, tp);
    case Cut::kGateUp:
      return SplitFused(whole, 0, std::vector<int64_t>{rows / 2, rows / 2}, tp);
  }
  return Status::InvalidArgument("no such cut");
}

// A parameter as a tensor-parallel rank of a stage holds it, before any sharding.
struct Local {
  std::string name;
  ShardLayout layout;
  int64_t size;
  int64_t own_rows;  // behind these are rows that it shares with other tensor-parallel ranks
};

// Returns the rows that a rank does not share. With fused heads and more ranks than keys, these are
// all rows but those of one key and its value.
int64_t OwnRows(const Parameter& parameter, const ShardLayout& layout, RankOf tp) {
  const int64_t rows = layout.ProductShape()[0];
  const bool is_shared = parameter.cut == Cut::kQkv && tp.ranks > kModelHeads.key_value;
  return is_shared ? rows - 2 * kModelHeads.head_size : rows;
}

// `layout`, what a rank holds of a tensor, in shards that it holds alone or shares as they are.
Result<std::vector<ShardLayout>> ShardsOf(const Local& local, const ShardLayout& layout) {
  const int64_t rows = local.layout.ProductShape()[0];
  if (local.own_rows == rows) return std::vector<ShardLayout>{layout};
  VARVE_ASSIGN_OR_RETURN(ShardLayout own, TakeIndices(local.layout, 0, {0, local.own_rows}));
  VARVE_ASSIGN_OR_RETURN(ShardLayout shared, TakeIndices(local.layout, 0, {local.own_rows, rows}));
  if (layout.flat.has_value()) {
    const int64_t end = own.NumLocal();
    const auto [first, last] = *layout.flat;
    own.flat = Range{std::min(first, end), std::min(last, end)};
    shared.flat = Range{std::max(first, end) - end, std::max(last, end) - end};
  }
  return std::vector<ShardLayout>{std::move(own), std::move(shared)};
}

// The parameters of a stage: its own layers under the numbers that it gives them, turned into
// global names as a trainer would.
Result<std::vector<Local>> ParametersOf(const Model& model, const Pipeline& pipeline, int64_t stage,
                                        RankOf tp) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, LayersOfStage(pipeline, stage));
  GlobalNames names;
  VARVE_RETURN_IF_ERROR(names.AddNumbers(kLayers, layers));
  std::vector<Local> locals;
  const auto add = [&](const Parameter& parameter, const std::string& name) -> Status {
    VARVE_ASSIGN_OR_RETURN(ShardLayout layout, CutFor(parameter, tp));
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> global,
                           names.Apply("module.module." + name));
    const int64_t size = layout.NumLocal(), own_rows = OwnRows(parameter, layout, tp);
    locals.push_back({global.value(), std::move(layout), size, own_rows});
    return Status::Ok();
  };
  const auto add_all = [&](int64_t layer, const std::string& prefix) -> Status {
    for (const Parameter& parameter : model.parameters) {
      if (parameter.layer == layer) VARVE_RETURN_IF_ERROR(add(parameter, prefix + parameter.name));
    }
    return Status::Ok();
  };
  if (stage == 0) VARVE_RETURN_IF_ERROR(add_all(kFirstStage, ""));
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string prefix = std::string(kLayers) + "." + std::to_string(i) + ".";
    VARVE_RETURN_IF_ERROR(add_all(layers[i], prefix));
  }
  if (stage == pipeline.stages - 1) VARVE_RETURN_IF_ERROR(add_all(kLastStage, ""));
  return locals;
}

// Cuts what one pipeline stage and tensor-parallel rank hold among the ranks of its sharding group.
class Sharder {
 public:
  static Result<Sharder> Make(const ParallelPlan& plan, const std::vector<Local>& locals) {
    Sharder sharder(plan);
    std::vector<int64_t> sizes;
    for (const Local& local : locals) sizes.push_back(local.size);
    const OwnerOrder order =
        plan.kind == Sharding::kOwnersInOrder ? OwnerOrder::kAsGiven : OwnerOrder::kLargestFirst;
    VARVE_ASSIGN_OR_RETURN(sharder.owners_, AssignOwners(sizes, plan.sharding, order));
    if (plan.kind == Sharding::kFused) {
      VARVE_ASSIGN_OR_RETURN(sharder.buffer_, FusePadded(sizes, 4, plan.sharding));
    }
    if (plan.kind == Sharding::kBuckets) {
      VARVE_ASSIGN_OR_RETURN(sharder.buffer_, FuseInBuckets(sizes, kBucketSize, plan.sharding));
    }
    return sharder;
  }

  // Returns what a rank holds of the weight and of the optimizer's state. nullopt = the rank has
  // not even an empty part.
  Result<std::optional<ShardLayout>> Weight(const Local& local, size_t index, RankOf rank) const {
    if (plan_.sharded_weights && owners_[index] != rank.rank) return std::optional<ShardLayout>();
    if (plan_.kind == Sharding::kStage3) return Some(SliceLarge(local.layout, 2, rank));
    if (plan_.kind == Sharding::kChunks) return Some(SplitChunks(local.layout, 0, rank));
    return std::optional<ShardLayout>(local.layout);
  }
  Result<std::optional<ShardLayout>> Optimizer(const Local& local, size_t index,
                                               RankOf rank) const {
    switch (plan_.kind) {
      case Sharding::kNone:
        return std::optional<ShardLayout>(local.layout);
      case Sharding::kOwners:
      case Sharding::kOwnersInOrder:
        if (owners_[index] != rank.rank) return std::optional<ShardLayout>();
        return std::optional<ShardLayout>(local.layout);
      case Sharding::kFused:
      case Sharding::kBuckets:
        return Some(SliceOfBuffer(local.layout, buffer_, index, rank));
      case Sharding::kStage3:
        return Some(SliceLarge(local.layout, 4, rank));
      case Sharding::kPerTensor:
        return Some(SliceFlat(local.layout, rank));
      case Sharding::kChunks:
        return Some(SplitChunks(local.layout, 0, rank));
    }
    return Status::InvalidArgument("no such sharding");
  }

 private:
  explicit Sharder(const ParallelPlan& plan) : plan_(plan) {}

  static Result<std::optional<ShardLayout>> Some(Result<ShardLayout> layout) {
    if (!layout.ok()) return layout.status();
    return std::optional<ShardLayout>(*std::move(layout));
  }

  const ParallelPlan& plan_;
  std::vector<int64_t> owners_;
  FlatBuffer buffer_;
};

Status AddTensorsOf(const Sharder& sharder, const Local& local, size_t index, RankOf rank,
                    RankTensors* held) {
  VARVE_ASSIGN_OR_RETURN(const auto weight, sharder.Weight(local, index, rank));
  if (weight.has_value()) {
    VARVE_ASSIGN_OR_RETURN(const auto shards, ShardsOf(local, *weight));
    held->push_back({local.name, DType::kBF16, TensorRole::kParameter, *weight, shards});
  }
  VARVE_ASSIGN_OR_RETURN(const auto optimizer, sharder.Optimizer(local, index, rank));
  if (!optimizer.has_value()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto shards, ShardsOf(local, *optimizer));
  for (const char* kind : {".master", ".moment1", ".moment2"}) {
    held->push_back({local.name + kind, DType::kF32, TensorRole::kOptimizer, *optimizer, shards});
  }
  const ShardLayout scalar = ShardLayout::Whole({1});
  for (const char* kind : {".beta1_pow", ".beta2_pow"}) {
    held->push_back({local.name + kind, DType::kF32, TensorRole::kOptimizer, scalar, {scalar}});
  }
  return Status::Ok();
}

}  // namespace

Model OddModel() {
  Model model{.layers = 7, .parameters = {}};
  model.parameters.push_back({"transformer.wte.weight", {50257, 3}, Cut::kVocabulary});
  model.parameters.push_back({"transformer.wpe.weight", {1009, 3}});
  model.parameters.push_back({"transformer.scale", {1}});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    AddLayer(layer, &model);
    const auto add = [&](const char* name, std::vector<int64_t> shape, Cut cut) {
      model.parameters.push_back({name, std::move(shape), cut, layer});
    };
    if (layer == 1) add("below", {1025, 1023}, Cut::kWhole);  // 2^20 - 1
    if (layer == 3) add("equal", {1024, 1024}, Cut::kRows);
    if (layer == 5) add("prime", {7919}, Cut::kWhole);
    if (layer == 5) add("cube", {31, 37, 3}, Cut::kWhole);
    if (layer == 6) add("above", {17, 61681}, Cut::kWhole);  // 2^20 + 1
  }
  model.parameters.push_back({"transformer.ln_f.weight", {29}, Cut::kWhole, kLastStage});
  model.parameters.push_back({"lm_head.weight", {65535, 2}, Cut::kVocabulary, kLastStage});
  return model;
}

Model HeadsModel() {
  return {.layers = 1,
          .parameters = {{"attn.c_attn.weight", {48, 29}, Cut::kQkv, 0},
                         {"attn.c_attn.bias", {48}, Cut::kQkv, 0}}};
}

Model VocabularyModel() {
  return {.layers = 0,
          .parameters = {{"wte.weight", {50257, 3}, Cut::kVocabulary},
                         {"lm_head.weight", {65535, 2}, Cut::kVocabulary, kLastStage},
                         {"small.weight", {100, 5}, Cut::kVocabulary}}};
}

Result<ParallelPlan> ParsePlan(std::string_view text) {
  ParallelPlan plan;
  plan.name = text;
  std::istringstream words(plan.name);
  for (std::string word; words >> word;) {
    if (!ReadDegree(word, &plan) && !ReadKind(word, &plan)) {
      return Status::InvalidArgument("\"" + word + "\" in the plan \"" + plan.name + "\"");
    }
  }
  return plan;
}

Result<std::vector<RankTensors>> TensorsOfRanks(const Model& model, const ParallelPlan& plan) {
  const Pipeline pipeline{.layers = model.layers, .stages = plan.pp, .chunks = plan.vpp};
  std::vector<RankTensors> ranks;
  for (int64_t stage = 0; stage < plan.pp; ++stage) {
    for (int64_t tp = 0; tp < plan.tp; ++tp) {
      VARVE_ASSIGN_OR_RETURN(const std::vector<Local> locals,
                             ParametersOf(model, pipeline, stage, {tp, plan.tp}));
      VARVE_ASSIGN_OR_RETURN(const Sharder sharder, Sharder::Make(plan, locals));
      for (int64_t shard = 0; shard < plan.sharding; ++shard) {
        RankTensors held;
        for (size_t i = 0; i < locals.size(); ++i) {
          VARVE_RETURN_IF_ERROR(AddTensorsOf(sharder, locals[i], i, {shard, plan.sharding}, &held));
        }
        ranks.insert(ranks.end(), static_cast<size_t>(plan.dp), held);
      }
    }
  }
  return ranks;
}

}  // namespace varve::internal::testing
