// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/util.h"
#include "cli/foreign/import_source.h"
#include "cli/foreign/llmc_items.h"
#include "cli/formats/llmc_files.h"

namespace varve::internal::cli {
namespace {

using formats::LlmcFiles;

// The numbers that a user may want to see. The items hold all of them.
TrainerProgress StateOf(const LlmcFiles& files) {
  const formats::LlmcStateHeader& first = files.states().front().parsed.header;
  TrainerProgress state;
  state.global_step = static_cast<int64_t>(first.step);
  state.extra[kLlmcShardKey] = static_cast<int64_t>(first.shard_index);
  state.extra[kLlmcSampleKey] = static_cast<int64_t>(first.sample_index);
  for (const LlmcFiles::State& each : files.states()) {
    const formats::LlmcStateHeader& header = each.parsed.header;
    const auto* rng = reinterpret_cast<const uint8_t*>(header.rng.data());
    state.rng.push_back({.rank = header.rank,
                         .generator = kLlmcGenerator,
                         .state = {rng, rng + header.rng.size()}});
  }
  return state;
}

Topology TopologyOf(const formats::LlmcState& state) {
  Topology topology;
  topology.dp = topology.world_size = state.header.num_processes;
  topology.zero_stage = state.is_sharded ? 1 : 0;
  return topology;
}

}  // namespace

Result<ImportSource> ReadLlmc(std::span<const std::filesystem::path> paths) {
  VARVE_ASSIGN_OR_RETURN(const LlmcFiles files, LlmcFiles::Open(paths));
  ImportSource source;
  source.tensors = files.model().tensors;
  source.items[kLlmcModelItem] = AsString(files.model_header());
  for (const LlmcFiles::State& state : files.states()) {
    const auto& tensors = state.parsed.tensors;
    source.tensors.insert(source.tensors.end(), tensors.begin(), tensors.end());
    std::string& item = source.items[kLlmcStateItems + std::to_string(state.parsed.header.rank)];
    item = AsString(state.header);
    item += AsString(state.parsed.loader);
  }
  if (!files.states().empty()) {
    source.step = files.states().front().parsed.header.step;
    source.state = StateOf(files);
    source.topology = TopologyOf(files.states().front().parsed);
  }
  return source;
}

}  // namespace varve::internal::cli
