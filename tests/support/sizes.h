// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace varve::internal::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace varve::internal::testing
