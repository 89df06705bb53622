// SPDX-License-Identifier: Apache-2.0
//
// ReclaimRemote, and mistakes that tests must find.
#pragma once

#include <functional>

#include "objects/objects.h"
#include "varve/remote.h"

namespace varve::internal {

// For tests. A program makes none of these mistakes.
struct ReclaimMutation {
  bool reads_roots_first = false;     // reads the state before it lists the blobs
  bool makes_no_fence = false;        // leaves the state as it is when nothing is dropped
  std::function<void()> after_roots;  // runs when the state has been read
};

// As ReclaimRemote, but `wait_for_pushes` may be as short as one likes, so a push that is alive may
// count as dead. Thread rule: any thread and any process.
Result<RemoteReclaimReport> Reclaim(Objects* objects, const RemoteReclaimOptions& options,
                                    const ReclaimMutation& mutation = {});

}  // namespace varve::internal
