// SPDX-License-Identifier: Apache-2.0
//
// The whole state of a group, in the form that a SNAPSHOT record has. Stateless.
#pragma once

#include <memory>

#include "store/group/group_state.h"
#include "varve/result.h"

namespace varve::fb {
struct GroupStateT;
struct GroupPart;
}  // namespace varve::fb

namespace varve::internal {

std::unique_ptr<fb::GroupStateT> PackState(const GroupState& state);
// Checks that all names in it name something, and counts again. `version` is the group's.
Result<GroupState> UnpackState(const fb::GroupStateT& in, uint32_t version);

// Packs a part without the digest of its catalogue, which has a field of its own.
fb::GroupPart PackPart(const GroupPart& part);
GroupPart UnpackPart(const fb::GroupPart& in);

}  // namespace varve::internal
