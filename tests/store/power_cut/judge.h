// SPDX-License-Identifier: Apache-2.0
//
// What must hold of a store that a power cut has left: every step whose save had returned is there,
// bit for bit, and nothing of a save that had not. The store checks clean and can be written. Each
// function returns what is wrong. Empty = nothing. Stateless.
#pragma once

#include <string>
#include <vector>

#include "tests/store/power_cut/driver.h"

namespace varve::internal::testing {

// The states that may be there at a moment. `states` has one for each operation.
std::vector<State> AllowedStates(const std::vector<State>& states, const Moment& moment);
bool MayLackStore(const std::vector<State>& allowed);

// Reads, opens, checks and writes the store in `path`. With a key it is sealed.
std::string JudgeStore(const std::filesystem::path& path, const std::vector<State>& allowed,
                       uint64_t seed, const std::string& key = {});

}  // namespace varve::internal::testing
