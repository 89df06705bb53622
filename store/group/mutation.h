// SPDX-License-Identifier: Apache-2.0
//
// Mistakes in the protocol of a group that a test makes on purpose, to show that the restart storm
// would find them. Only programs that are built with VARVE_GROUP_MUTATIONS can make any; in varve
// itself each of these is a constant false.
#pragma once

namespace varve {

enum class Mutation {
  kStaleRoots,        // a sweep takes what must stay from an older state than what is closed
  kSweepWithoutLook,  // a rank that opens a member drops what was undecided without reading back
  kReuseAttempt,      // the number of an aborted attempt is given out again
  kForgetShard,       // a rank does not say that it holds its part of one tensor
};

#ifdef VARVE_GROUP_MUTATIONS
bool IsMutated(Mutation mutation);  // the test's, as the next
// Stand where another process may come in between; the test makes them long, the second always.
void PauseForMutation();
void PauseLongForMutation();
#else
constexpr bool IsMutated(Mutation) { return false; }
constexpr void PauseForMutation() {}
constexpr void PauseLongForMutation() {}
#endif

}  // namespace varve
