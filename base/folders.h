// SPDX-License-Identifier: Apache-2.0
//
// Folders whose names survive a power cut. Stateless.
#pragma once

#include <filesystem>

#include "varve/status.h"

namespace varve::internal {

// Makes a folder, and those above it that are missing, and makes their names durable. A folder that
// is there already is no error.
Status MakeDurableFolders(const std::filesystem::path& path);

}  // namespace varve::internal
