// SPDX-License-Identifier: Apache-2.0
//
// A RecordLog in a folder. Each record is one file, and its name is the number in 20 digits. Named
// files lie beside them, or in folders below it, which are made with their first file.
#pragma once

#include <filesystem>
#include <memory>

#include "store/group/record_log.h"

namespace varve::internal {

// The folder must exist.
std::unique_ptr<RecordLog> MakePosixRecordLog(std::filesystem::path folder);

}  // namespace varve::internal
