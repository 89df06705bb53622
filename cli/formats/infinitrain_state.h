// SPDX-License-Identifier: Apache-2.0
//
// InfiniTrain's trainer_state.json. InfiniTrain writes JSON that is not valid: the comma after the
// number of "vocab_size" is missing. Stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "varve/result.h"

namespace varve::internal::formats {

// Returns the object in the text. It accepts valid JSON and the one defect above, and no other.
// kInvalidArgument says what is wrong and where.
Result<nlohmann::json> ParseInfiniTrainState(std::string_view text);

}  // namespace varve::internal::formats
