// SPDX-License-Identifier: Apache-2.0
//
// How tensors have changed, for every kind of store: see varve/history.h.
#pragma once

#include <functional>
#include <memory>

#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal {

Result<CheckpointDiff> DiffCheckpoints(const ShardedReader& before, const ShardedReader& after,
                                       const DiffOptions& options);

// `open` opens a step of the run.
Result<std::vector<TensorChange>> LogTensor(
    const Store& store, std::string_view run, std::string_view tensor,
    const std::function<Result<std::unique_ptr<ShardedReader>>(uint64_t step)>& open);

}  // namespace varve::internal
