// SPDX-License-Identifier: Apache-2.0
//
// Checks whether a save will fit on the disk. It is stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "varve/status.h"

namespace varve::internal {

// kIOError: the disk of `folder` has less than `needed` bytes left for `what`. The message says
// what makes room. `where` names the folder to the user.
Status CheckFreeSpace(const std::filesystem::path& folder, const std::string& where,
                      const std::string& what, uint64_t needed);

}  // namespace varve::internal
