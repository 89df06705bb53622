// SPDX-License-Identifier: Apache-2.0
//
// What a process that dies now leaves of a store. Stateless.
#pragma once

#include <filesystem>

#include "varve/status.h"

namespace varve::internal::testing {

// Copies the folder of an open store, as it is at one moment. Nobody may call the store meanwhile.
// Its own threads may change files: it is then copied again. RESERVE is left out, because it is
// large, has no content, and is made again.
Status CopyAtOneMoment(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace varve::internal::testing
