// SPDX-License-Identifier: Apache-2.0
//
// TBB's hand-overs between its workers are invisible to the thread sanitizer, which would take each
// for a race: under it there is one worker.
#pragma once

#include <tbb/global_control.h>

namespace varve::internal::testing {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderTsan = true;
inline const tbb::global_control one_worker{tbb::global_control::max_allowed_parallelism, 1};
#else
inline constexpr bool kUnderTsan = false;
#endif

}  // namespace varve::internal::testing
