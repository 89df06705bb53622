// SPDX-License-Identifier: Apache-2.0
//
// What the model check saves. A content is a pure function of its number. Neighbours share chunks,
// are deltas of each other, and have rounded copies, which may be wrong by a bit. All functions are
// stateless.
#pragma once

#include <cstdint>
#include <string>

#include "varve/store.h"

namespace varve::internal::testing {

inline constexpr uint8_t kNumContents = 64;

// What a checkpoint of this content says of itself: "9 tensors, 1234 bytes".
std::string SizeOfContent(uint8_t content);
uint64_t BytesOfContent(uint8_t content);

// Puts all of it: tensors, an item, the trainer's progress and the topology.
Status PutContent(uint8_t content, CheckpointWriter* writer);
// kCorruption names the first difference: tensors bit by bit, and all else that a reader gives.
Status CompareContent(uint8_t content, const CheckpointReader& reader);

}  // namespace varve::internal::testing
