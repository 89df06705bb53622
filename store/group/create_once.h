// SPDX-License-Identifier: Apache-2.0
//
// A file that is made whole, once, by one of those who try. Stateless; any thread and any process.
#pragma once

#include <filesystem>
#include <string_view>

#include "store/group/record_log.h"

namespace varve {

// What files that are not finished yet begin with.
inline constexpr std::string_view kTemporaryPrefix = "tmp-";

// Writes a temporary file beside `path`, syncs it, links it to `path`, and syncs the folder.
// Whether the link was made is decided by the link count of the temporary file, because over a
// network the answer to link(2) may get lost.
Result<CreateOutcome> CreateOnce(const std::filesystem::path& path, std::string_view bytes);

}  // namespace varve
