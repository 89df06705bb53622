// SPDX-License-Identifier: Apache-2.0
//
// Reads of keys, ranges and frames. Each sees one state of its family.
#include <rocksdb/cache.h>
#include <rocksdb/table.h>

#include <optional>
#include <string>

#include "base/util.h"
#include "store/db/database.h"
#include "store/db/frame_file_system.h"

namespace varve::internal {

namespace {

// Lets all blocks of frames go from the cache but those that somebody reads now.
void ForgetBlocks(const Database::Use& use) {
  const rocksdb::Options options = use.rocksdb()->GetOptions(use.handle(Family::kChunks));
  const auto* const table = options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();
  table->block_cache->EraseUnRefEntries();
}

}  // namespace

// For a read whose answer would be wrong if the family were out of date, or between two states.
// While RocksDB catches up, a family may show less than it does before and after. So `read(use)` is
// called again if that has happened meanwhile. The last time no catch-up may begin.
template <typename Read>
Status Database::ReadOneState(Family family, const std::string& what, const Read& read) const {
  constexpr int kAttempts = 8;
  std::unique_lock no_catch_up(catch_up_mutex_, std::defer_lock);
  for (int attempt = 1;; ++attempt) {
    if (attempt == kAttempts) no_catch_up.lock();
    const uint64_t events = ingest_events_;
    if (for_writing_ || events % 2 == 0) {
      VARVE_ASSIGN_OR_RETURN(Use use, BeginRead());
      VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
      read(std::move(use));
      if (for_writing_ || events == ingest_events_) return Status::Ok();
    }
    if (attempt + 1 < kAttempts) AwaitCommits();
  }
}

// An iterator shows one state however long it lives. `seek` moves it to the first key that is read.
// The caller reads no key outside of the range.
Result<Database::Reading> Database::BeginScan(Family family, const std::string& what,
                                              const rocksdb::ReadOptions& options,
                                              const Range& range, const Seek& seek) const {
  std::optional<Reading> reading;
  const auto open = [&](const OpenRocksDb& from) {
    reading->at.reset(from.db()->NewIterator(options, from.handle(family)));
    seek(reading->at.get());
  };
  VARVE_RETURN_IF_ERROR(ReadOneState(family, what, [&](Use use) {
    reading.reset();
    reading.emplace(Reading{std::move(use), sound_, nullptr});
    open(SoundPlaceOf(family, reading->use));
  }));
  if (reading->at->status().IsCorruption()) {
    if (auto partial = OpenAround(family, range.first, range.end, reading->use)) {
      reading->at.reset();  // before what it reads
      reading->partial = std::move(partial);
      open(*reading->partial->open);
    }
  }
  if (!reading->at->status().ok()) return ReadError(family, reading->at->status(), what, range);
  return *std::move(reading);
}

Result<std::optional<std::string>> Database::Get(Family family, std::string_view key) const {
  const std::string what = "reading family " + std::string(kFamilyNames[static_cast<int>(family)]);
  std::string value;
  rocksdb::Status status;
  VARVE_RETURN_IF_ERROR(ReadOneState(family, what, [&](const Use& use) {
    value.clear();
    const OpenRocksDb& open = PlaceOf(family, key, use);
    status = open.db()->Get(rocksdb::ReadOptions(), open.handle(family), {key.data(), key.size()},
                            &value);
  }));
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return ReadError(family, status, what, {key, std::string(key) + '\0'});
  return std::optional<std::string>(std::move(value));
}

Status Database::GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const {
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  const std::string key = keys::Chunk(address);
  rocksdb::ReadOptions options;
  options.verify_checksums = false;
  frame->Reset();
  rocksdb::Status status;
  const OpenRocksDb& open = PlaceOf(Family::kChunks, key, use);
  {
    const FrameFileSystem::ReadOfFrame looks;
    status = open.db()->Get(options, open.handle(Family::kChunks), key, frame);
  }
  if (status.ok()) return Status::Ok();
  // Where the block does not look sound, or lacks the key, its checksum decides. RocksDB verifies a
  // block only when it reads the file, so the block must not be in the cache.
  options.verify_checksums = true;
  frame->Reset();
  ForgetBlocks(use);
  status = open.db()->Get(options, open.handle(Family::kChunks), key, frame);
  if (status.ok()) return Status::Ok();
  const std::string what =
      "reading frame " + std::to_string(address.save_id) + "/" + std::to_string(address.ordinal);
  if (status.IsNotFound()) VARVE_RETURN_IF_ERROR(CheckNotStale(Family::kChunks, what));
  if (status.IsNotFound()) return Status::NotFound(what + ": it is missing");
  return ReadError(Family::kChunks, status, what, {key, key + '\0'});
}

std::map<ChunkAddress, rocksdb::PinnableSlice> Database::GetFrames(
    std::span<const ChunkAddress> addresses) const {
  std::map<ChunkAddress, rocksdb::PinnableSlice> found;
  const auto use = BeginRead();
  if (!use.ok()) return found;
  std::vector<std::string> names;
  for (const ChunkAddress& address : addresses) names.push_back(keys::Chunk(address));
  const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
  std::vector<rocksdb::PinnableSlice> frames(keys.size());
  std::vector<rocksdb::Status> statuses(keys.size());
  use->rocksdb()->MultiGet(rocksdb::ReadOptions(), use->handle(Family::kChunks), keys.size(),
                           keys.data(), frames.data(), statuses.data(), /*sorted_input=*/true);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (statuses[i].ok()) found.emplace(addresses[i], std::move(frames[i]));
  }
  return found;
}

Status Database::ScanFrom(Family family, std::string_view prefix, std::string_view first,
                          const Visit& visit) const {
  const std::string what = "scanning family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const std::string end = keys::PrefixEnd(prefix);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  if (!end.empty()) options.iterate_upper_bound = &bound;
  VARVE_RETURN_IF_ERROR(CheckRange(family, {first, end}, what));
  const auto seek = [first](rocksdb::Iterator* at) { at->Seek({first.data(), first.size()}); };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, options, {first, end}, seek));
  rocksdb::Iterator* const it = reading.at.get();
  for (; it->Valid(); it->Next()) {
    VARVE_RETURN_IF_ERROR(
        visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()}));
  }
  if (it->status().ok()) return Status::Ok();
  return ReadError(family, it->status(), what, {first, end});
}

Result<std::optional<std::string>> Database::FirstKeyFrom(Family family, std::string_view prefix,
                                                          std::string_view first) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const std::string limit = keys::PrefixEnd(prefix);
  const auto seek = [first](rocksdb::Iterator* at) { at->Seek({first.data(), first.size()}); };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, rocksdb::ReadOptions(), {first, limit}, seek));
  const rocksdb::Iterator* const it = reading.at.get();
  std::optional<std::string> key;
  if (it->Valid() && it->key().starts_with({prefix.data(), prefix.size()})) {
    key = it->key().ToString();
  }
  const std::string end = key.has_value() ? *key + '\0' : limit;
  VARVE_RETURN_IF_ERROR(CheckRange(family, {first, end}, what));
  return key;
}

Result<std::optional<std::string>> Database::LastKeyBefore(Family family, std::string_view prefix,
                                                           std::string_view end) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const auto seek = [end](rocksdb::Iterator* at) {
    if (end.empty()) return at->SeekToLast();
    const rocksdb::Slice bound(end.data(), end.size());
    at->SeekForPrev(bound);
    if (at->Valid() && at->key() == bound) at->Prev();
  };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, rocksdb::ReadOptions(), {prefix, end}, seek));
  const rocksdb::Iterator* const it = reading.at.get();
  std::optional<std::string> key;
  if (it->Valid() && it->key().starts_with({prefix.data(), prefix.size()})) {
    key = it->key().ToString();
  }
  VARVE_RETURN_IF_ERROR(
      CheckRange(family, {key.has_value() ? std::string_view(*key) : prefix, end}, what));
  return key;
}

}  // namespace varve::internal
