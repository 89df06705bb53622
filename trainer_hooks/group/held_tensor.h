// SPDX-License-Identifier: Apache-2.0
//
// What a rank tells the others of a tensor that it holds, so that all of them plan alike who saves
// what, and a list of them as bytes. A HeldTensor borrows its names and its layout, so that they
// are copied only into the bytes of a list. The functions are stateless.
#pragma once

#include <cstddef>
#include <functional>
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

struct HeldTensor {
  std::string_view name{};
  DType dtype = DType::kF32;
  TensorRole role = TensorRole::kOther;
  std::string_view derived_from{};
  // The first name of this memory in the rank's list. Empty: this is the first.
  std::string_view alias_of{};
  // The weight that a step of the optimizer changes together with this moment
  // (optimizer_step.h). Empty: the state names none.
  std::string_view moment_of{};
  std::string_view layout{};  // LayoutBytes of the canonical layout. Equal layouts have equal bytes
  bool can_cut = false;       // a flat range of it lies in the trainer's memory in one piece
  ReplicaPolicy policy = ReplicaPolicy::kMustBeEqual;
  // The elements of the local tensor that the rank's store already has, from an earlier step.
  std::optional<Range> had{};
  bool operator==(const HeldTensor&) const = default;

  // Reads the layout out of its bytes. Precondition: they are those of a layout.
  ShardLayout Layout() const;
  // Returns a digest of name, dtype and layout. Tensors with the same key are replicas.
  Digest Key() const;
};

// Returns what HeldTensor::layout is for a tensor of this layout.
std::string LayoutBytes(const ShardLayout& layout);
std::vector<std::byte> EncodeHeld(std::span<const HeldTensor> tensors);
// Encodes the tensors of a valid state, in its order. `had` finds HeldTensor::had. It may be null.
std::vector<std::byte> EncodeHeld(
    const TrainingState& state, std::span<const ReplicaRule> rules,
    const std::function<std::optional<Range>(const HeldTensor&)>& had = nullptr);
// Returns the digest, with seed 0, of what EncodeHeld returns without `had`. Nothing is copied for
// it.
Digest DigestHeld(const TrainingState& state, std::span<const ReplicaRule> rules);
// The names and layouts of the tensors lie in `bytes`. kCorruption: EncodeHeld did not write these
// bytes.
Result<std::vector<HeldTensor>> DecodeHeld(std::span<const std::byte> bytes);

}  // namespace varve::internal
