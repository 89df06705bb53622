// SPDX-License-Identifier: Apache-2.0
//
// Training text as bytes, and batches drawn from it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "varve/result.h"

namespace gpt {

// The bytes of a file, or of all regular files in a folder, one after another by rising name.
// Links and subfolders are skipped. kNotFound, kIOError name the path.
varve::Result<std::string> ReadText(const std::filesystem::path& path);

// Sequences and, for each of their tokens, the one that follows it.
struct Batch {
  std::vector<uint8_t> inputs;   // (B, T)
  std::vector<uint8_t> targets;  // (B, T)
};

// Returns where a sample starts in the text. It is a random one of `num_starts` places, and always
// the same for the same seed and index. So the number of consumed samples is the whole state of the
// data, whatever the batch size.
size_t SampleStart(uint64_t seed, int64_t sample, size_t num_starts);

// The samples first, first + 1, ... first + B - 1. Precondition: the text is longer than T.
Batch DrawBatch(const std::string& text, uint64_t seed, int64_t first, int B, int T);

}  // namespace gpt
