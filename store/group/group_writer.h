// SPDX-License-Identifier: Apache-2.0
//
// What both sides of a save of a group agree on. Stateless.
#pragma once

#include <string_view>

#include "varve/status.h"

namespace varve {

// kInvalidArgument: an item name that another rank's could be shown under.
Status ValidateGroupItem(std::string_view name);

}  // namespace varve
