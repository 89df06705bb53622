// SPDX-License-Identifier: Apache-2.0
//
// What a load does about the number of ranks. Topologies are compared, and states of single ranks
// only go to the ranks that saved them. Stateless.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "varve/load.h"

namespace varve::internal {

// True when both are known and have different numbers of ranks.
bool AreOtherRanks(const std::optional<Topology>& stored, const std::optional<Topology>& target);

// kInvalidArgument names both topologies when they differ and must not. An unset topology is
// unknown, and fits.
Status CompareTopologies(const std::optional<Topology>& stored,
                         const std::optional<Topology>& target, const LoadOptions& options);

// If the number of ranks differs, removes the states of single ranks from `trainer` and `items`,
// and names them in `dropped`. kInvalidArgument names them when that is not allowed.
Status FitRankStates(const std::optional<Topology>& stored, const std::optional<Topology>& target,
                     RankStates policy, TrainerProgress* trainer, std::vector<StateItem>* items,
                     std::vector<std::string>* dropped);

// The same for tensors that were saved per rank. It removes them from `stored` (as List returns
// them), and excludes them in the target. If the number of ranks is the same, it removes those of
// other ranks. It does nothing without options->rank.
Status FitRankTensors(const std::optional<Topology>& stored_by,
                      const std::optional<Topology>& target, std::vector<TensorInfo>* stored,
                      LoadOptions* options, std::vector<std::string>* dropped);

}  // namespace varve::internal
