// SPDX-License-Identifier: Apache-2.0
//
// Which save ids a store gives. They are persisted as used in blocks: one small commit for many
// saves. A new store has used the first block, so that its first save needs no such commit.
#pragma once

#include <cstdint>

namespace varve::internal {

inline constexpr uint64_t kFirstSaveId = 1;
inline constexpr uint64_t kSaveBlock = 4096;

}  // namespace varve::internal
