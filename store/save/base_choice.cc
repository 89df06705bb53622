// SPDX-License-Identifier: Apache-2.0
#include "store/save/base_choice.h"

#include <utility>
#include <vector>

namespace varve::internal {

bool IsLong(const FrameGraph& graph, ChunkAddress address, const StoreOptions& options) {
  const FrameInfo& nearest = graph.InfoOf(address);
  const double next_path = static_cast<double>(nearest.path_bytes) + graph.FrameBytesOf(address);
  const ChunkAddress keyframe = graph.BasesOf(address).back();
  return graph.is_large() || static_cast<int>(nearest.depth) >= options.max_delta_depth ||
         next_path > options.max_path_ratio * graph.FrameBytesOf(keyframe);
}

Result<StoredChunk> ReadBase(const ChunkReader& reader, const StoreOptions& options,
                             const ChunkRef& parent, bool begins_chain, ChunkScratch* scratch) {
  const FrameSource wanted{parent.address, parent.digest};
  VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, reader.FetchGraph({&wanted, 1}));
  const bool from_keyframe = begins_chain || IsLong(graph, parent.address, options);
  const ChunkAddress chosen = from_keyframe ? graph.BasesOf(parent.address).back() : parent.address;
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredChunk> decoded,
                         reader.Decode(graph, {&chosen, 1}, scratch));
  return std::move(decoded[0]);
}

FrameBase BaseOf(const StoredChunk& chunk) {
  return {.address = chunk.address,
          .digest = chunk.info.digest,
          .raw = chunk.raw.bytes(),
          .depth = chunk.info.depth,
          .path_bytes = chunk.info.path_bytes};
}

BaseEdge EdgeTo(const StoredChunk& chunk, uint32_t ordinal) {
  return {.ordinal = ordinal,
          .base = chunk.address,
          .base_digest = chunk.info.digest,
          .base_raw_bytes = chunk.info.raw_bytes,
          .base_stored_bytes = chunk.frame_bytes,
          .base_predictor = chunk.info.predictor};
}

}  // namespace varve::internal
