// SPDX-License-Identifier: Apache-2.0
//
// InfiniTrain's trainer_state.json. InfiniTrain itself writes no valid JSON: the comma after the
// number of "vocab_size" is missing. Stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "varve/result.h"

namespace varve::formats {

// The object that the text holds. Takes valid JSON and the one defect above, nothing else that is
// malformed. kInvalidArgument says what is wrong and where.
Result<nlohmann::json> ParseInfiniTrainState(std::string_view text);

}  // namespace varve::formats
