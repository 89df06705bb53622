// SPDX-License-Identifier: Apache-2.0
//
// A load whose large reads go another way than through its reader alone. Stateless.
#pragma once

#include <functional>
#include <span>

#include "varve/load.h"

namespace varve {

// Reads as CheckpointReader::ReadMany does.
using ReadRegions = std::function<Status(const CheckpointReader&, std::span<const ReadRequest>)>;
// The way of LoadState.
Status ReadThroughReader(const CheckpointReader& reader, std::span<const ReadRequest> requests);

// As LoadState. What is read as it is, into its place, is read by one call of `read`, which comes
// when nothing can be wrong with the target any more.
Result<LoadReport> LoadThrough(const CheckpointReader& reader, const LoadOptions& options,
                               const ReadRegions& read, TrainingState* into);

}  // namespace varve
