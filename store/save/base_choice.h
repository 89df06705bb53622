// SPDX-License-Identifier: Apache-2.0
//
// Of which stored chunk a new chunk may be a delta.
#pragma once

#include "store/db/chunk_reader.h"
#include "store/format/record.h"
#include "varve/options.h"

namespace varve::internal {

// True: the chain of a chunk has grown as long as the options let it.
bool IsLong(const FrameGraph& graph, ChunkAddress address, const StoreOptions& options);

// Reads the chunk of the step before, which must be stored. If its chain has grown as long as the
// options let it, or `begins_chain`, reads the keyframe at the chain's end instead, so that chains
// turn into stars. Any thread, each with its own scratch.
Result<StoredChunk> ReadBase(const ChunkReader& reader, const StoreOptions& options,
                             const ChunkRef& parent, bool begins_chain, ChunkScratch* scratch);

// What a delta of that chunk needs to know of it. It points to the bytes of the chunk.
FrameBase BaseOf(const StoredChunk& chunk);

// That the frame at `ordinal` is predicted from the chunk.
BaseEdge EdgeTo(const StoredChunk& chunk, uint32_t ordinal);

}  // namespace varve::internal
