// SPDX-License-Identifier: Apache-2.0
//
// The error about something of the wrong size. A pure function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve::internal {

// With `what_has` "base has" it returns "base has 5 bytes, expected 6".
inline Status SizeError(std::string_view what_has, size_t found, size_t expected) {
  return Status::Corruption(std::string(what_has) + " " + std::to_string(found) +
                            " bytes, expected " + std::to_string(expected));
}

}  // namespace varve::internal
