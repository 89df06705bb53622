// SPDX-License-Identifier: Apache-2.0
#include "store/read/list_reader.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "base/startable_threads.h"
#include "store/db/cursor.h"
#include "store/db/store_impl.h"

namespace varve::internal {

namespace {

// A cursor opens every table of the family, which does not pay for fewer lists.
constexpr size_t kListsOfCursor = 1024;

}  // namespace

bool ListReader::List::operator<(const List& other) const {
  return std::tie(store, address.save_id, address.number) <
         std::tie(other.store, other.address.save_id, other.address.number);
}

ListReader::List ListReader::Name(const StoredShard& shard, size_t index) {
  return {shard.store, shard.record.lists[index], shard.record.NumChunks() - index * kChunksPerList,
          nullptr};
}

std::vector<ListReader::List> ListReader::Names(std::span<const StoredShard> shards) {
  std::vector<List> lists;
  lists.reserve(shards.size());
  for (const StoredShard& shard : shards) {
    for (size_t i = 0; i < shard.record.lists.size(); ++i) lists.push_back(Name(shard, i));
  }
  std::ranges::sort(lists, std::less<>());
  return lists;
}

void ListReader::ReadAhead(std::span<const StoredShard> shards) {
  lists_ = Names(shards);
  ReadAll();
}

void ListReader::ReadAheadDifferent(std::span<const StoredShard> a,
                                    std::span<const StoredShard> b) {
  std::ranges::set_symmetric_difference(Names(a), Names(b), std::back_inserter(lists_),
                                        std::less<>());
  ReadAll();
}

void ListReader::ReadAll() {
  if (lists_.size() < kListsOfCursor) return lists_.clear();
  tbb::task_arena arena(StartableThreads(lists_[0].store->num_threads()));
  arena.execute([this] {
    tbb::parallel_for(tbb::blocked_range<size_t>(0, lists_.size(), kListsOfCursor),
                      [this](const tbb::blocked_range<size_t>& range) {
                        std::optional<Cursor> cursor;
                        const StoreImpl* store = nullptr;
                        for (size_t i = range.begin(); i < range.end(); ++i) {
                          List& list = lists_[i];
                          if (list.store != store)
                            cursor.emplace(list.store->database(), Family::kLists);
                          store = list.store;
                          std::vector<ChunkRef> refs;
                          if (!store->AppendList(list.address, list.chunks, &*cursor, &refs).ok())
                            continue;
                          list.refs =
                              std::make_shared<const std::vector<ChunkRef>>(std::move(refs));
                        }
                      });
  });
}

Result<ChunkList> ListReader::Read(const StoredShard& shard, size_t index) const {
  const List wanted = Name(shard, index);
  const auto found = std::ranges::lower_bound(lists_, wanted, std::less<>());
  const bool is_known = found != lists_.end() && !(wanted < *found) && found->refs != nullptr;
  if (is_known && CheckFits(*found->refs, shard.record.GeometryOfList(index)).ok()) {
    return found->refs;
  }
  VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> refs, shard.store->ReadList(shard.record, index));
  return std::make_shared<const std::vector<ChunkRef>>(std::move(refs));
}

}  // namespace varve::internal
