// SPDX-License-Identifier: Apache-2.0
//
// Does RepairStore (varve/repair.h). Object stores are opened above, in store/remote.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "store/ops/salvage.h"
#include "varve/repair.h"

namespace varve::internal {

// Opens the snapshot to which RepairOptions::from leads, with `store` and `health` set.
using OpenUrl = std::function<Result<SalvageSource>(const std::string& url)>;

Result<RepairReport> RepairWith(const std::filesystem::path& path, const RepairOptions& options,
                                const OpenUrl& open_url);

}  // namespace varve::internal
