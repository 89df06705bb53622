// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "varve/status.h"

namespace varve::internal {

// Runs work(0), ..., work(count - 1) on at most so many threads, and ends with the first error. The
// workers see the StopScope of the caller. Any thread.
Status RunParallel(size_t count, int num_threads, const std::function<Status(size_t)>& work);

}  // namespace varve::internal
