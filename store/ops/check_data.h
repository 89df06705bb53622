// SPDX-License-Identifier: Apache-2.0
//
// The part of a check that reads chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "store/db/store_impl.h"
#include "store/format/record.h"

namespace varve::internal {

// What the records of saves say: the chunks that each chunk is predicted from.
struct SourcesOfSaves {
  std::multimap<ChunkAddress, BaseEdge> edges;
  // Blocks that say nothing, because they are damaged, by save and number. An error names them.
  std::set<std::pair<uint64_t, uint32_t>> unknown;
};

struct ChunkToCheck {
  ChunkRef ref;
  ListAddress list;          // that names it
  uint32_t index = 0;        // in the list
  bool with_source = false;  // a derived chunk: the frame of its source is compared, too
};

// Decodes each chunk and compares its digest. Counts follow the sources that saves name, and
// readers those in the frames, so the two are compared. Each chunk that differs is given to
// `error`, from several threads at once. Returns the stored bytes of all. kAborted: the caller's
// StopFlag is set. Other errors: memory, threads or descriptors are short.
Result<uint64_t> CheckData(const StoreImpl& store, const CheckOptions& options,
                           const SourcesOfSaves& sources, std::span<const ChunkToCheck> chunks,
                           const std::function<void(const ChunkToCheck&, const Status&)>& error);

}  // namespace varve::internal
