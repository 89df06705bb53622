// SPDX-License-Identifier: Apache-2.0
//
// What a rank tells the others of a tensor that it holds, so that all of them plan alike who saves
// what, and a list of them as bytes. They are plain values, and the functions are stateless.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/async_checkpointer.h"
#include "varve/digest.h"
#include "varve/result.h"
#include "varve/training_state.h"

namespace varve::internal {

// `layout` is set, and canonical. `alias_of` is the first name of this memory in the rank's list.
// Empty: this is the first.
struct HeldTensor : TensorSpec {
  bool can_cut = false;  // a flat range of it lies in the trainer's memory in one piece
  ReplicaPolicy policy = ReplicaPolicy::kMustBeEqual;
  // The elements of the local tensor that the rank's store already has, from an earlier step.
  std::optional<Range> had{};
  bool operator==(const HeldTensor&) const = default;

  uint64_t Bytes() const;
};

// Returns the tensors in the order of the state. Precondition: the state is valid.
std::vector<HeldTensor> ListHeld(const TrainingState& state, std::span<const ReplicaRule> rules);

std::string EncodeHeld(std::span<const HeldTensor> tensors);
// Returns the digest, with seed 0, of what EncodeHeld returns for ListHeld. Nothing is copied for
// it.
Digest DigestHeld(const TrainingState& state, std::span<const ReplicaRule> rules);
// kCorruption: EncodeHeld did not write these bytes.
Result<std::vector<HeldTensor>> DecodeHeld(std::string_view bytes);

}  // namespace varve::internal
