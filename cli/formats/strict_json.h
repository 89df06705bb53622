// SPDX-License-Identifier: Apache-2.0
//
// JSON from files of unknown origin. It accepts what nlohmann/json accepts, except values nested
// more than 16 deep and objects that hold a key twice. nlohmann/json would keep one of the two
// values in silence, and another reader perhaps the other. Stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "varve/result.h"

namespace varve::internal::formats {

// kInvalidArgument has the parser's own words, names the key that occurs twice, or tells the depth.
Result<nlohmann::json> ParseStrictJson(std::string_view text);

}  // namespace varve::internal::formats
