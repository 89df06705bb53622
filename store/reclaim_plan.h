// SPDX-License-Identifier: Apache-2.0
//
// What a reclaim would do, for those who only ask (store/reclaim.cc does it). All functions are
// stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/database.h"
#include "store/keys.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve {

struct ChunkFile {
  std::string name;
  uint64_t bytes = 0;
  ChunkAddress first;
  ChunkAddress last;

  bool operator<(const ChunkFile& other) const { return first < other.first; }
};

// All chunk files, by rising address; none overlaps another.
Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database);

// What a chunk file holds.
struct ChunkFileUse {
  uint64_t live_chunks = 0;
  uint64_t dead_chunks = 0;
  uint64_t dead_bytes = 0;
};

// What a reclaim without `all` gives back of the dead bytes, and what it leaves. `uses[i]` is what
// `files[i]` holds.
DropForecast ForecastReclaim(std::span<const ChunkFile> files, std::span<const ChunkFileUse> uses);

}  // namespace varve
