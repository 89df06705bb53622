// SPDX-License-Identifier: Apache-2.0
//
// The part of a check that looks at what protects a store: SYNCED, and the copies in spare/. No
// answer needs them while the rest is sound. Stateless. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

// Returns a warning for each of these files that is missing, damaged or out of date. A copy that no
// writer has opened, such as a backup, has none of them. A writer may be at work. An error: this
// process lacks what it takes to read one (IsShortage).
Result<std::vector<std::string>> FindSpareWarnings(const std::filesystem::path& store);

}  // namespace varve::internal
