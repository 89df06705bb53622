// SPDX-License-Identifier: Apache-2.0
//
// How often this process has asked the system about a file: opens, looks, links, removals, renames
// and syncs. Linked in, it takes the place of these functions of the C library. Thread rule: any.
#pragma once

#include <cstdint>

namespace varve::internal::bench {

uint64_t NumFileCalls();

}  // namespace varve::internal::bench
