// SPDX-License-Identifier: Apache-2.0
//
// Finds chunks that are lost, without reading any.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "store/db/store_impl.h"

namespace varve::internal {

// The chunks that lie in a table file which exists. It describes the state of the store at Of.
// Thread rule: one thread at a time.
class ChunkPresence {
 public:
  static Result<ChunkPresence> Of(const StoreImpl& store);

  // kCorruption: the chunk, or one that it is predicted from, lies in no file. Where no record
  // says from which chunks one is predicted, its frame is read, which says so, too.
  Status Find(ChunkAddress address);

 private:
  explicit ChunkPresence(const Database* db) : db_(db) {}
  bool LiesInFile(ChunkAddress address) const;
  Result<std::vector<ChunkAddress>> SourcesOf(ChunkAddress address);
  const std::optional<SaveBlock>& FindBlock(ChunkAddress address);

  const Database* db_;
  std::map<ChunkAddress, ChunkAddress> ranges_;  // of the files: from the first to the last chunk
  // By save and number. Empty: it cannot be read.
  std::map<std::pair<uint64_t, uint32_t>, std::optional<SaveBlock>> blocks_;
};

}  // namespace varve::internal
