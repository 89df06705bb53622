// SPDX-License-Identifier: Apache-2.0
//
// The files of a store that only a writer uses: incoming/, where chunk files are written, and
// RESERVE, the space that makes a drop possible on a full disk. Stateless. Any thread.
#pragma once

#include <filesystem>
#include <vector>

#include "varve/status.h"

namespace varve::internal {

// Checks that db/ and the files in it that a writer appends to are no links.
Status CheckDbHasNoLinks(const std::filesystem::path& store);

// Makes incoming/, or removes what a crash has left in it.
Status ClearIncoming(const std::filesystem::path& store);

// Makes RESERVE if it is not there, or not whole.
Status EnsureReserve(const std::filesystem::path& store);
void ReleaseReserve(const std::filesystem::path& store);

// Says for what the functions above would refuse the store. Changes nothing.
std::vector<Status> FindWhatAWriterRefuses(const std::filesystem::path& store);

}  // namespace varve::internal
