// SPDX-License-Identifier: Apache-2.0
//
// JSON from files of unknown origin: what nlohmann/json takes, less objects that hold a key twice
// (it would keep one of the two in silence, and another reader perhaps the other) and values nested
// more than 16 deep. Stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "varve/result.h"

namespace varve::formats {

// kInvalidArgument with the parser's own words, the key that comes twice, or the depth.
Result<nlohmann::json> ParseStrictJson(std::string_view text);

}  // namespace varve::formats
