// SPDX-License-Identifier: Apache-2.0
//
// The part of a check that counts the planes of live frames again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "store/db/database.h"
#include "store/format/record.h"

namespace varve::internal {

// Compares the live planes in the record of a save with those of its live frames. `live_frame`
// returns the bytes of a frame, or the most that they can be, and nullopt for a frame that is not
// alive. A block that cannot be read counts as none.
void CheckPlanes(const Database& database, uint64_t save_id, const SaveRecord& record,
                 const std::function<std::optional<uint32_t>(uint32_t ordinal)>& live_frame,
                 const std::function<void(std::string)>& error);

}  // namespace varve::internal
