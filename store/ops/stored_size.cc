// SPDX-License-Identifier: Apache-2.0
#include "store/ops/stored_size.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "store/db/store_impl.h"

namespace varve::internal {

namespace {

using Frame = std::pair<const StoreImpl*, ChunkAddress>;

// Returns the frames of all shards of a tensor, each with its bytes.
Result<std::map<Frame, uint64_t>> FindFrames(std::span<const StoredShard> shards) {
  std::map<Frame, uint64_t> frames;
  for (const StoredShard& shard : shards) {
    for (size_t i = 0; i < shard.record.lists.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(const auto refs, shard.store->ReadList(shard.record, i));
      for (const ChunkRef& ref : refs) {
        if (ref.kind == ChunkKind::kStored) {
          frames.emplace(Frame(shard.store, ref.address), ref.stored_bytes);
        }
      }
    }
  }
  return frames;
}

}  // namespace

Result<StoredSizes> MeasureStored(const ShardedReader& reader, std::string_view glob) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<StoredShard> all, reader.FindMatching(glob));
  StoredSizes sizes;
  std::set<Frame> counted;
  std::span<const StoredShard> left = all;
  while (!left.empty()) {
    const std::string& name = left[0].name;
    const auto end =
        std::ranges::find_if(left, [&](const StoredShard& shard) { return shard.name != name; });
    const auto shards = left.first(static_cast<size_t>(end - left.begin()));
    left = left.subspan(shards.size());
    std::map<Frame, uint64_t> frames;
    const Status status = reader.WithFrozenView([&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(frames, FindFrames(shards));
      return Status::Ok();
    });
    if (status.code() == StatusCode::kCorruption) {
      sizes.errors.push_back("tensor " + name + ": " + status.message());
      continue;
    }
    VARVE_RETURN_IF_ERROR(status);
    uint64_t& bytes = sizes.by_tensor[name];
    for (const auto& [frame, frame_bytes] : frames) {
      bytes += frame_bytes;
      if (counted.insert(frame).second) sizes.total += frame_bytes;
    }
  }
  return sizes;
}

}  // namespace varve::internal
