// SPDX-License-Identifier: Apache-2.0
//
// Deliberate mistakes in the protocol of a group, which show that the tests of groups would find
// them. Only programs that are built with VARVE_GROUP_MUTATIONS can make them. In varve itself each
// is a constant false.
#pragma once

namespace varve::internal {

enum class Mutation {
  kStaleRoots,        // a sweep reads what must stay from an older state than what is closed
  kSweepWithoutLook,  // a rank that opens a member drops what was undecided without reading back
  kReuseAttempt,      // the number of an aborted attempt is used again
  kForgetShard,       // a rank does not say that it holds its part of one tensor
};

// Where another process may act in between.
enum class MutationPoint {
  kSweeping,     // a sweep is about to look at what its member holds
  kAborting,     // a rank that opens a member is about to abort an attempt that is open
  kPrepared,     // a rank has said that its part is durable, and is about to wait for the outcome
  kAllPrepared,  // rank 0 has the parts of all ranks, and is about to commit
};

#ifdef VARVE_GROUP_MUTATIONS
bool IsMutated(Mutation mutation);  // defined by the test, as is the next
void PassMutationPoint(MutationPoint point);
#else
constexpr bool IsMutated(Mutation) { return false; }
constexpr void PassMutationPoint(MutationPoint) {}
#endif

}  // namespace varve::internal
