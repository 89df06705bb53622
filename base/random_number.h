// SPDX-License-Identifier: Apache-2.0
//
// Names and nonces that nobody else draws, in any process on any host. Thread rule: any.
#pragma once

#include <cstdint>

namespace varve {

uint64_t RandomNumber();

}  // namespace varve
