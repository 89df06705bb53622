// SPDX-License-Identifier: Apache-2.0
//
// Folders whose names survive a power cut, and what lies in a folder. Stateless.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

#include "varve/status.h"

namespace varve::internal {

// Makes a folder, and those above it that are missing, and makes their names durable. A folder that
// is there already is no error.
Status MakeDurableFolders(const std::filesystem::path& path);

// What lies in a folder. After an error these are the entries that were read before it. A loop over
// a directory_iterator throws instead when the disk fails in the middle of the folder.
std::vector<std::filesystem::directory_entry> EntriesOf(const std::filesystem::path& folder,
                                                        std::error_code* error);

}  // namespace varve::internal
