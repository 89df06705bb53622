// SPDX-License-Identifier: Apache-2.0
//
// Runs a script of the conformance suite on all ranks of a new group.
#pragma once

#include <cstdint>
#include <string>

#include "tests/trainer_hooks/ranks/rank_scripts.h"

namespace varve::internal::testing {

enum class RankKind {
  kThreads,
  kProcesses,  // of rank_process, over sockets on the loopback
};

void RunScript(RankKind kind, int size, const std::string& name);

// A port of the loopback that nobody listens on. The kernel gives out none of these by itself, so
// nobody else gets it before the program that it is for listens there.
uint16_t FreePort();

}  // namespace varve::internal::testing
