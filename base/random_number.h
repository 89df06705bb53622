// SPDX-License-Identifier: Apache-2.0
//
// Names and nonces that no other process on any host draws. Any thread may call these functions.
#pragma once

#include <cstdint>

namespace varve::internal {

uint64_t RandomNumber();

}  // namespace varve::internal
