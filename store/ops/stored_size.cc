// SPDX-License-Identifier: Apache-2.0
#include "store/ops/stored_size.h"

#include <algorithm>
#include <functional>
#include <span>
#include <tuple>
#include <utility>

#include "store/db/store_impl.h"
#include "store/read/list_reader.h"

namespace varve::internal {

namespace {

// Encoded bytes of a frame, which several chunks may name.
struct Frame {
  const StoreImpl* store = nullptr;
  ChunkAddress address;
  uint64_t bytes = 0;

  auto Name() const { return std::tie(store, address); }
  bool operator<(const Frame& other) const { return Name() < other.Name(); }
  bool operator==(const Frame& other) const { return Name() == other.Name(); }
};
using Frames = std::vector<Frame>;

// Returns the bytes of the frames, each of which counts once.
uint64_t SumOfDistinct(Frames* frames) {
  std::ranges::sort(*frames, std::less<>());
  // Clang 14 does not know the subrange of std::ranges::unique.
  frames->erase(std::unique(frames->begin(), frames->end()), frames->end());
  uint64_t sum = 0;
  for (const Frame& frame : *frames) sum += frame.bytes;
  return sum;
}

// Puts the frames of all shards of a tensor into `frames`.
Status FindFrames(std::span<const StoredShard> shards, const ListReader& lists, Frames* frames) {
  frames->clear();
  for (const StoredShard& shard : shards) {
    for (size_t i = 0; i < shard.record.lists.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(const ChunkList refs, lists.Read(shard, i));
      for (const ChunkRef& ref : *refs) {
        if (ref.kind != ChunkKind::kStored) continue;
        frames->push_back({shard.store, ref.address, ref.stored_bytes});
      }
    }
  }
  return Status::Ok();
}

using Shards = std::span<const StoredShard>;

// Takes the shards of the first name off `left`.
Shards TakeTensor(Shards* left) {
  const auto end = std::ranges::find_if(
      *left, [&](const StoredShard& shard) { return shard.name != left->front().name; });
  const Shards tensor = left->first(static_cast<size_t>(end - left->begin()));
  *left = left->subspan(tensor.size());
  return tensor;
}

// Measures the tensors on one state of the store. Those that cannot be read become errors.
Result<StoredSizes> Measure(Shards left) {
  StoredSizes sizes;
  Frames all, frames;
  ListReader lists;
  lists.ReadAhead(left);
  while (!left.empty()) {
    const Shards tensor = TakeTensor(&left);
    const Status found = FindFrames(tensor, lists, &frames);
    if (found.code() == StatusCode::kCorruption) {
      sizes.errors.push_back("tensor " + tensor[0].name + ": " + found.message());
      continue;
    }
    VARVE_RETURN_IF_ERROR(found);
    sizes.by_tensor.emplace_hint(sizes.by_tensor.end(), tensor[0].name, SumOfDistinct(&frames));
    all.insert(all.end(), frames.begin(), frames.end());
  }
  sizes.total = SumOfDistinct(&all);
  return sizes;
}

}  // namespace

Result<StoredSizes> MeasureStored(const ShardedReader& reader, std::string_view glob) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<StoredShard> all, reader.FindMatching(glob));
  StoredSizes sizes;
  // What cannot be read may have moved meanwhile, so it is tried again after a catch-up.
  const Status status = reader.WithFrozenView([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(sizes, Measure(all));
    return sizes.errors.empty() ? Status::Ok() : Status::Corruption(sizes.errors[0]);
  });
  if (status.ok() || (status.code() == StatusCode::kCorruption && !sizes.errors.empty())) {
    return sizes;
  }
  return status;
}

}  // namespace varve::internal
