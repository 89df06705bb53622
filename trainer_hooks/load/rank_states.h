// SPDX-License-Identifier: Apache-2.0
//
// What a load does about the number of ranks: topologies are compared, and states of single ranks
// are for the ranks that saved them only. Stateless.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "varve/load.h"

namespace varve {

// kInvalidArgument names both topologies when they differ and may not. Unset = unknown, fits.
Status CompareTopologies(const std::optional<Topology>& stored,
                         const std::optional<Topology>& target, const LoadOptions& options);

// Takes the states of single ranks out of `trainer` and `items` when the number of ranks differs,
// and names them in `dropped`; kInvalidArgument names them when that is not allowed.
Status FitRankStates(const std::optional<Topology>& stored, const std::optional<Topology>& target,
                     RankStates policy, TrainerProgress* trainer, std::vector<StateItem>* items,
                     std::vector<std::string>* dropped);

// The same for tensors that were saved per rank, which `stored` (as List gives them) then lacks; in
// the target they are excluded. When the number of ranks is the same, takes out those of other
// ranks. No effect without options->rank.
Status FitRankTensors(const std::optional<Topology>& stored_by,
                      const std::optional<Topology>& target, std::vector<TensorInfo>* stored,
                      LoadOptions* options, std::vector<std::string>* dropped);

}  // namespace varve
