// SPDX-License-Identifier: Apache-2.0
//
// What the model check saves. A content is a pure function of its number. Neighbours share chunks,
// are deltas of each other, and have rounded copies, which may be wrong by a bit. Contents from
// kFirstTrained on are steps of an optimizer (Training), which a save predicts from the step
// before, if it has the hint. All functions are stateless.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "varve/store.h"

namespace varve::internal::testing {

inline constexpr uint8_t kNumContents = 64;  // that are no steps of an optimizer
inline constexpr uint8_t kFirstTrained = kNumContents;
// Trainings that leave the first one after some of its steps, and go on with other gradients. The
// last of them has BF16 gradients.
inline constexpr uint8_t kNumTrainings = 3;
inline constexpr uint8_t kStepsOfTraining = 20;
inline constexpr uint8_t kStepsUntilOneLeaves = 3;

// The step that follows this content. Where another training leaves, an odd `way` follows that.
// After the last step of a training, and after a content that is no step, it is a first step.
uint8_t NextTrained(uint8_t content, uint8_t way);
// What the optimizer did in that step.
std::shared_ptr<const OptimizerStep> HintOf(uint8_t trained);

// What a checkpoint of this content says of itself: "9 tensors, 1234 bytes".
std::string SizeOfContent(uint8_t content);
uint64_t BytesOfContent(uint8_t content);

// Puts all of it: tensors, an item, the trainer's progress and the topology.
Status PutContent(uint8_t content, CheckpointWriter* writer);
// kCorruption names the first difference: tensors bit by bit, and all else that a reader gives.
Status CompareContent(uint8_t content, const CheckpointReader& reader);

}  // namespace varve::internal::testing
