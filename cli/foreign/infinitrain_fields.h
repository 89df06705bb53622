// SPDX-License-Identifier: Apache-2.0
//
// Where the fields of InfiniTrain's trainer_state.json are kept: global_step and
// consumed_train_samples in the trainer state, the sizes in the topology, all others in the trainer
// state's `extra`, under keys that begin with "infinitrain.". Functions are stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "varve/result.h"
#include "varve/trainer_progress.h"

namespace varve::cli {

struct InfiniTrainFields {
  std::optional<uint64_t> step;  // global_step, if it is there
  TrainerProgress state;
  std::optional<Topology> topology;  // if there is any size
};

// kInvalidArgument names a field whose value cannot be.
Result<InfiniTrainFields> FieldsFromJson(const nlohmann::json& root);

// Valid JSON in InfiniTrain's order, doubles exact. Fields that are not known are left out.
nlohmann::ordered_json JsonFromFields(const TrainerProgress& state,
                                      const std::optional<Topology>& topology);

}  // namespace varve::cli
