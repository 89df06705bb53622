// SPDX-License-Identifier: Apache-2.0
//
// Deliberate mistakes in the protocol of a group, which show that the restart storm would find
// them. Only programs that are built with VARVE_GROUP_MUTATIONS can make them. In varve itself each
// is a constant false.
#pragma once

namespace varve {

enum class Mutation {
  kStaleRoots,        // a sweep reads what must stay from an older state than what is closed
  kSweepWithoutLook,  // a rank that opens a member drops what was undecided without reading back
  kReuseAttempt,      // the number of an aborted attempt is used again
  kForgetShard,       // a rank does not say that it holds its part of one tensor
};

#ifdef VARVE_GROUP_MUTATIONS
bool IsMutated(Mutation mutation);  // defined by the test, as is the next
// These stand where another process may act in between. The test makes them long, the second one
// every time.
void PauseForMutation();
void PauseLongForMutation();
#else
constexpr bool IsMutated(Mutation) { return false; }
constexpr void PauseForMutation() {}
constexpr void PauseLongForMutation() {}
#endif

}  // namespace varve
