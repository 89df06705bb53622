// SPDX-License-Identifier: Apache-2.0
//
// TrainerState and Topology as flatbuffers (store/schema/trainer_state.fbs). Stateless.
#pragma once

#include <string>
#include <string_view>

#include "varve/result.h"
#include "varve/trainer_state.h"

namespace varve {

std::string EncodeTrainerState(const TrainerState& state);
Result<TrainerState> DecodeTrainerState(std::string_view value);

std::string EncodeTopology(const Topology& topology);
Result<Topology> DecodeTopology(std::string_view value);

}  // namespace varve
