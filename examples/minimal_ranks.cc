// SPDX-License-Identifier: Apache-2.0
//
// The smallest job of many ranks: two save one checkpoint in the root `ckpt`, three load it. Here
// ranks are threads. Processes would call varve::SocketRanks instead, and nothing else changes.
// docs/hooks.md shows the middle part. tests/examples/minimal_ranks_test.py keeps the two equal.
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "varve/varve.h"

// What a rank of a job holds: its rows of a weight, a bias that all ranks have, and an item.
struct Model {
  static constexpr int64_t kRows = 12, kColumns = 1000;
  std::vector<float> weight;
  std::vector<float> bias = std::vector<float>(kColumns);
  varve::TrainingState state;
};

varve::Status Describe(int rank, int size, Model* model) {
  const auto whole = varve::ShardLayout::Whole({Model::kRows, Model::kColumns});
  VARVE_ASSIGN_OR_RETURN(const auto rows, varve::SplitEvenly(whole, /*axis=*/0, {rank, size}));
  model->weight.resize(rows.NumLocal());
  model->state.tensors = {
      {{.name = "weight", .shape = rows.LocalShape(), .layout = rows}, model->weight.data()},
      {{.name = "bias", .shape = {Model::kColumns}}, model->bias.data()}};  // a replica
  // This item belongs to this rank alone. Without topologies varve cannot tell that the number
  // of ranks has changed, and RankStates::kDrop has no effect.
  model->state.items = {{.name = "sampler", .rank = rank, .value = {std::byte(rank)}}};
  model->state.topology = {.tp = static_cast<uint32_t>(size),
                           .world_size = static_cast<uint32_t>(size)};
  return varve::Status::Ok();
}

varve::Status Save(varve::RankGroup* ranks, Model* model) {
  varve::CheckpointerOptions options;
  options.replicas = {{"bias", varve::ReplicaPolicy::kMustBeEqual}};  // the default: saved once
  VARVE_ASSIGN_OR_RETURN(auto checkpointer, varve::OpenGroupCheckpointer("ckpt", ranks, options));
  VARVE_RETURN_IF_ERROR(checkpointer->Save(/*step=*/100, model->state).status());
  return checkpointer->Close();  // durable
}

varve::Status Load(varve::RankGroup* ranks, Model* model) {
  varve::LoadOptions options;
  options.exchange = true;  // a chunk that several ranks need is read once. Saves need no option
  options.rank_states = varve::RankStates::kDrop;  // samplers of the old ranks are left out
  VARVE_ASSIGN_OR_RETURN(auto checkpointer, varve::OpenGroupCheckpointer("ckpt", ranks));
  VARVE_RETURN_IF_ERROR(checkpointer->Restore("latest", options, &model->state).status());
  return checkpointer->Close();
}

varve::Status RunRank(varve::RankGroup* ranks, bool saves) {
  Model model;
  VARVE_RETURN_IF_ERROR(Describe(ranks->rank(), ranks->size(), &model));
  if (!saves) {
    VARVE_RETURN_IF_ERROR(Load(ranks, &model));
    std::printf("rank %d of %d: its rows begin with %g\n", ranks->rank(), ranks->size(),
                static_cast<double>(model.weight[0]));
    return varve::Status::Ok();
  }
  const size_t first = model.weight.size() * static_cast<size_t>(ranks->rank());
  for (size_t i = 0; i < model.weight.size(); ++i) model.weight[i] = static_cast<float>(first + i);
  return Save(ranks, &model);
}

// Runs one thread a rank. Returns whether all of them succeeded.
bool RunJob(int size, bool saves) {
  const auto groups = varve::ThreadRanks(size);
  std::vector<varve::Status> outcomes(groups.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < groups.size(); ++r) {
      threads.emplace_back([&, r] { outcomes[r] = RunRank(groups[r].get(), saves); });
    }
  }
  for (const varve::Status& outcome : outcomes) {
    if (outcome.ok()) continue;
    std::fprintf(stderr, "%s\n", outcome.ToString().c_str());
    return false;
  }
  return true;
}

int main() { return RunJob(2, /*saves=*/true) && RunJob(3, /*saves=*/false) ? 0 : 1; }
