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
  // A rank must be missed soon.
  bool is_impatient = false;
  // The last rank dies by SIGKILL.
  bool last_is_killed = false;
  int min_size = 1;

  std::chrono::milliseconds timeout() const {
    return is_impatient ? std::chrono::seconds(2) : std::chrono::minutes(4);
  }
};

// Returns the scripts by name.
const std::map<std::string, RankScript>& RankScripts();

}  // namespace varve::internal::testing
