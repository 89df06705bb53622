// SPDX-License-Identifier: Apache-2.0
//
// TrainerProgress and Topology as flatbuffers (store/schema/trainer_state.fbs). Stateless.
#pragma once

#include <string>
#include <string_view>

#include "varve/result.h"
#include "varve/trainer_progress.h"

namespace varve::internal {

std::string EncodeTrainerProgress(const TrainerProgress& state);
Result<TrainerProgress> DecodeTrainerProgress(std::string_view value);

std::string EncodeTopology(const Topology& topology);
Result<Topology> DecodeTopology(std::string_view value);

}  // namespace varve::internal
