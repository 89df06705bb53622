// SPDX-License-Identifier: Apache-2.0
//
// The whole state of a group as it stands in a SNAPSHOT record. Stateless.
#pragma once

#include <memory>

#include "store/group/group_state.h"
#include "varve/result.h"

namespace varve {

namespace fb {
struct GroupStateT;
struct GroupPart;
}  // namespace fb

std::unique_ptr<fb::GroupStateT> PackState(const GroupState& state);
// Checks that all names in it name something; counts are counted again. `version`: of the group.
Result<GroupState> UnpackState(const fb::GroupStateT& in, uint32_t version);

// A part without its catalogue's digest, which is a field of its own.
fb::GroupPart PackPart(const GroupPart& part);
GroupPart UnpackPart(const fb::GroupPart& in);

}  // namespace varve
