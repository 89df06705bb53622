// SPDX-License-Identifier: Apache-2.0
//
// The opaque items in which an import of llm.c files keeps all bytes that are no tensors, so that
// an export is equal byte for byte.
#pragma once

namespace varve::internal::cli {

inline constexpr char kLlmcItems[] = "llmc.";  // all their names start with this
// The header of the model file.
inline constexpr char kLlmcModelItem[] = "llmc.model";
// Followed by the rank. Holds the header of the rank's state file, then the state of its data
// loader.
inline constexpr char kLlmcStateItems[] = "llmc.state.";

// Where the trainer state repeats what those headers say: keys of `extra`, and the generator's
// name.
inline constexpr char kLlmcShardKey[] = "llmc.shard_index";
inline constexpr char kLlmcSampleKey[] = "llmc.sample_index";
inline constexpr char kLlmcGenerator[] = "llmc";

}  // namespace varve::internal::cli
