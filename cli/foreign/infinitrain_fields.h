// SPDX-License-Identifier: Apache-2.0
//
// Maps the fields of InfiniTrain's trainer_state.json to varve's trainer state. global_step and
// consumed_train_samples go to the fields for them, and the sizes go to the topology. All others go
// to the trainer state's `extra`, under keys that start with "infinitrain.". Functions are
// stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "varve/result.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

struct InfiniTrainFields {
  std::optional<uint64_t> step;  // global_step, if it is there
  TrainerProgress state;
  std::optional<Topology> topology;  // if there is any size
};

// kInvalidArgument names a field whose value is impossible.
Result<InfiniTrainFields> FieldsFromJson(const nlohmann::json& root);

// Returns valid JSON in InfiniTrain's order, with exact doubles. Unknown fields are left out.
nlohmann::ordered_json JsonFromFields(const TrainerProgress& state,
                                      const std::optional<Topology>& topology);

}  // namespace varve::internal::cli
