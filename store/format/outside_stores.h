// SPDX-License-Identifier: Apache-2.0
//
// Where a store may be made. Stateless.
#pragma once

#include <filesystem>

#include "varve/status.h"

namespace varve::internal {

// kFailedPrecondition: a folder above `path` is a store. What lies in it is its own, and its writer
// clears some of it.
Status CheckIsOutsideStores(const std::filesystem::path& path);

}  // namespace varve::internal
