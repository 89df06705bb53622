// SPDX-License-Identifier: Apache-2.0
//
// How tensors have changed, for every kind of store: see varve/history.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal {

// Bytes that were compared, and those of all tensors to compare.
using DiffProgress = std::function<void(uint64_t done, uint64_t total)>;

// The bytes of a tensor, as Store's List tells them.
struct TensorBytes {
  std::string name;
  uint64_t bytes = 0;
};

// Puts the tensors of `after` into `bytes_after`, by name, unless that is null. The diff has looked
// them up, and they are many.
//
// The checkpoints may be of two stores. If these have different digest seeds, it reads every tensor
// that both have. Stores of one group have one seed, and so have a store and its backup.
Result<CheckpointDiff> DiffCheckpoints(const ShardedReader& before, const ShardedReader& after,
                                       const DiffOptions& options,
                                       const DiffProgress& progress = nullptr,
                                       std::vector<TensorBytes>* bytes_after = nullptr);

// `open` opens a step of the run.
using OpenStepOfRun = std::function<Result<std::unique_ptr<ShardedReader>>(uint64_t step)>;
Result<std::vector<TensorChange>> LogTensor(const Store& store, std::string_view run,
                                            std::string_view tensor, const OpenStepOfRun& open);

// The same of a damaged store, as far as it can be read. A change at a step that is left out counts
// as a change at the next step that is not.
struct KnownLog {
  std::vector<TensorChange> changes;
  std::vector<std::string> errors;  // name the steps that are left out
};
// kCorruption: not even the list of steps can be read. kNotFound: no step has the tensor.
Result<KnownLog> LogKnown(const Store& store, std::string_view run, std::string_view tensor);

}  // namespace varve::internal
