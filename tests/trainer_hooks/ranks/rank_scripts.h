// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of RankGroup: what one rank does and expects, whatever the ranks are. Each
// script is run on every rank of a new group. Threads, processes and MPI differ only in how they
// run it (rank_launcher.h, rank_process.cc).
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "varve/rank_group.h"

namespace varve::internal::testing {

struct RankScript {
  // Expects by the macros of GoogleTest. When it returns the rank leaves the group. `folder` is
  // shared by the ranks and empty at first.
  void (*run)(RankGroup* group, const std::filesystem::path& folder);
  // The last rank dies by SIGKILL.
  bool last_is_killed = false;
  int min_size = 1;
};

// How long a rank waits for another, unless its script says otherwise.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(4);
// The same for a rank that does not come.
inline constexpr std::chrono::milliseconds kImpatience{3000};

// Returns the scripts by name.
const std::map<std::string, RankScript>& RankScripts();

}  // namespace varve::internal::testing
