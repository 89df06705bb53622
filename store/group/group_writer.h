// SPDX-License-Identifier: Apache-2.0
//
// What both sides of a group's save agree on. Stateless.
#pragma once

#include <string_view>

#include "varve/status.h"

namespace varve::internal {

// kInvalidArgument: another rank's item could be shown under this name.
Status ValidateGroupItem(std::string_view name);

}  // namespace varve::internal
