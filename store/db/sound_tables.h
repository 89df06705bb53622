// SPDX-License-Identifier: Apache-2.0
//
// The database of a damaged store without its lost table files. A reader reads from it what no lost
// file may hold. For a scan RocksDB opens every table file of level 0 of a family, whatever keys it
// looks for, and for a single key it does so if the family has three files or fewer. So one lost
// file would be an error for all keys. Nothing on the disk changes. Stateless.
#pragma once

#include <rocksdb/file_system.h>

#include <filesystem>
#include <memory>
#include <span>

#include "store/db/table_files.h"
#include "varve/result.h"

namespace varve::internal {

// Returns this machine's file system, but the newest manifest of the store does not name the lost
// tables. It is the manifest of now: a writer may change the one on the disk.
Result<std::shared_ptr<rocksdb::FileSystem>> FileSystemWithout(const std::filesystem::path& store,
                                                               std::span<const LostTable> lost);

}  // namespace varve::internal
