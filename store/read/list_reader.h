// SPDX-License-Identifier: Apache-2.0
//
// Reads the lists of chunks of many shards. It first reads all of them in the order in which they
// are stored, by several threads, because each then costs a step instead of a search.
//
//   ListReader lists;
//   lists.ReadAhead(shards);
//   VARVE_ASSIGN_OR_RETURN(const auto refs, lists.Read(shards[0], 0));
//
// Use it within WithFrozenView of the shards' readers. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/format/record.h"
#include "store/read/sharded_reader.h"

namespace varve::internal {

using ChunkList = std::shared_ptr<const std::vector<ChunkRef>>;

class ListReader {
 public:
  // Reads the lists of these shards. A list that cannot be read is left to Read. Call it once.
  void ReadAhead(std::span<const StoredShard> shards);
  // Reads the lists that only one of the two names.
  void ReadAheadDifferent(std::span<const StoredShard> a, std::span<const StoredShard> b);

  // Returns list `index` of a shard.
  Result<ChunkList> Read(const StoredShard& shard, size_t index) const;

 private:
  struct List {
    const StoreImpl* store = nullptr;
    ListAddress address;
    uint64_t chunks = 0;  // of the tensor, from this list on
    ChunkList refs;       // null: could not be read ahead
    bool operator<(const List& other) const;
  };

  static List Name(const StoredShard& shard, size_t index);
  static std::vector<List> Names(std::span<const StoredShard> shards);
  void ReadAll();

  std::vector<List> lists_;  // in the order in which they are stored
};

}  // namespace varve::internal
