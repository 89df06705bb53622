// SPDX-License-Identifier: Apache-2.0
//
// Keeps the `__metadata__` of an imported safetensors file, so that an export can give it back. It
// is kept as strings in the trainer state's `extra`, under keys that start with "safetensors.". The
// keys consumed_samples and consumed_train_samples also set the trainer state's consumed_samples.
// Functions are stateless.
#pragma once

#include <cstdint>

#include "cli/formats/safetensors.h"
#include "varve/trainer_progress.h"

namespace varve::cli {

TrainerProgress StateFromMetadata(uint64_t step, const formats::SafetensorsMetadata& metadata);
formats::SafetensorsMetadata MetadataFromState(const TrainerProgress& state);

}  // namespace varve::cli
