// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "store/ops/step_part.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal {

// Does Store::CopyTo for every kind of store. `digest_seed` is the seed of the digests of the
// shards that `open` returns.
Result<std::vector<SaveReport>> CopyCheckpoints(
    std::span<const CheckpointId> ids, uint64_t digest_seed, Store* destination,
    const CopyOptions& options,
    const std::function<Result<std::unique_ptr<ShardedReader>>(const CheckpointId&)>& open);

// Copies a part of the step that `from` reads into CopyOptions::run of a store with the same seed.
Result<SaveReport> CopyPart(const ShardedReader& from, const StepPart& part, StoreImpl* destination,
                            const CopyOptions& options);

}  // namespace varve::internal
