// SPDX-License-Identifier: Apache-2.0
//
// Digests in the flatbuffers of a group's log. Pure functions.
#pragma once

#include <memory>

#include "base/digest.h"
#include "store/schema/group_generated.h"

namespace varve::internal {

inline std::unique_ptr<fb::Digest> PackDigest(const Digest& digest) {
  return std::make_unique<fb::Digest>(digest.lo, digest.hi);
}
// A digest that is missing is zero.
inline Digest UnpackDigest(const std::unique_ptr<fb::Digest>& in) {
  return in == nullptr ? Digest{} : Digest{in->lo(), in->hi()};
}

}  // namespace varve::internal
