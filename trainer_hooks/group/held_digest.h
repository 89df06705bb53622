// SPDX-License-Identifier: Apache-2.0
//
// Digests the part of the global tensor that a shard holds, without the shard's padding. It is
// stateless.
#pragma once

#include <optional>

#include "base/digest.h"
#include "varve/training_state.h"

namespace varve::internal {

// The digests of two replicas are equal if only their padding differs. `layout` is that of the
// tensor. Returns nullopt if the tensor is on a device, if its elements are smaller than a byte, or
// if there is no memory.
std::optional<Digest> DigestWithoutPadding(const StateTensor& tensor, const ShardLayout& layout);

}  // namespace varve::internal
