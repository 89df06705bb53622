// SPDX-License-Identifier: Apache-2.0
//
// Replaces operator new of the program by one that counts. Any thread.
#pragma once

#include <cstdint>

namespace varve::internal::testing {

// Returns how often this thread has called operator new.
int64_t NumAllocations();

}  // namespace varve::internal::testing
