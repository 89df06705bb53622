// SPDX-License-Identifier: Apache-2.0
//
// Training text as bytes, and batches drawn from it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
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

// B windows at random positions. The generator alone decides which: its state is the data position.
// Precondition: the text is longer than T.
Batch DrawBatch(const std::string& text, int B, int T, std::mt19937_64* rng);

}  // namespace gpt
