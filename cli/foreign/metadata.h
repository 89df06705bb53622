// SPDX-License-Identifier: Apache-2.0
//
// Keeps the `__metadata__` of an imported safetensors file, so that an export can give it back. It
// is kept as strings in the trainer state's `extra`, under keys that start with "safetensors.". The
// keys consumed_samples and consumed_train_samples also set the trainer state's consumed_samples.
// A trainer that resumes the import saves all of this again with every step, so `extra` also says
// as which step it was imported. Functions are stateless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/formats/safetensors.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

TrainerProgress StateFromMetadata(uint64_t step, const formats::SafetensorsMetadata& metadata);
// Returns the metadata as they were imported if `state` is that of the import. If a trainer has
// gone on since, the counts of steps and samples are those of `state`, and a note names what else
// the metadata say.
formats::SafetensorsMetadata MetadataFromState(const TrainerProgress& state,
                                               std::vector<std::string>* notes);

}  // namespace varve::internal::cli
