// SPDX-License-Identifier: Apache-2.0
//
// The digest of what a shard holds of its global tensor, without its padding. Stateless.
#pragma once

#include <optional>

#include "base/digest.h"
#include "varve/training_state.h"

namespace varve::internal {

// Equal for replicas that differ in their padding at most. nullopt: not known, as the tensor is on
// a device, has elements of parts of bytes, or there is no memory.
std::optional<Digest> DigestWithoutPadding(const StateTensor& tensor);

}  // namespace varve::internal
