// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads a trainer with varve: all that a trainer needs to know of the library.
//
// Thread rule: one thread at a time; the trainer must not step meanwhile.
#pragma once

#include <cstdint>

#include "gpt/trainer.h"
#include "varve/varve.h"

namespace gpt {

// The run of the store that holds the trainer's checkpoints.
inline constexpr char kRun[] = "main";

// Saves the trainer at its step; a step that is there already is replaced, as happens after a load
// from an older one.
varve::Result<varve::SaveReport> SaveCheckpoint(varve::Store* store, Trainer* trainer);

// Loads a step. The trainer goes on exactly as the one that was saved. kInvalidArgument when the
// checkpoint is another model's; the trainer is of no use after an error.
varve::Status LoadCheckpoint(const varve::Store& store, uint64_t step, Trainer* trainer);

// Drops all but the newest `num` steps.
varve::Status KeepLast(varve::Store* store, size_t num);

}  // namespace gpt
