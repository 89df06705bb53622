// SPDX-License-Identifier: Apache-2.0
//
// The opaque items with which an import of llm.c files keeps what is no tensor in them, so that an
// export is equal byte for byte.
#pragma once

namespace varve::cli {

inline constexpr char kLlmcItems[] = "llmc.";  // how the names of all begin
// The header of the model file.
inline constexpr char kLlmcModelItem[] = "llmc.model";
// With the rank behind it: the header of its state file, then the state of its data loader.
inline constexpr char kLlmcStateItems[] = "llmc.state.";

// Where the trainer state has what those headers say, too: keys of `extra`, and the generator's
// name.
inline constexpr char kLlmcShardKey[] = "llmc.shard_index";
inline constexpr char kLlmcSampleKey[] = "llmc.sample_index";
inline constexpr char kLlmcGenerator[] = "llmc";

}  // namespace varve::cli
