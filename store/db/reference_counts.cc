// SPDX-License-Identifier: Apache-2.0
#include "store/db/reference_counts.h"

#include <algorithm>

#include "base/util.h"

namespace varve::internal {

namespace {

// Records of saves up to this size are believed, because a loop over one costs nothing.
constexpr uint64_t kSmallSave = uint64_t{1} << 16;

Result<uint64_t> CountKeys(const Database& database, Family family, std::string_view prefix) {
  uint64_t keys = 0;
  VARVE_RETURN_IF_ERROR(database.Scan(family, prefix, [&](std::string_view, std::string_view) {
    ++keys;
    return Status::Ok();
  }));
  return keys;
}

// Counts the blocks of kCountsPerBlock numbers that hold a list of a save, with one seek for each.
Result<uint64_t> CountListBlocks(const Database& database, uint64_t save_id) {
  const std::string first = keys::List({save_id, 0});
  const std::string_view prefix = std::string_view(first).substr(0, first.size() - 4);
  uint64_t blocks = 0;
  for (uint64_t next = 0; next <= UINT32_MAX; ++blocks) {
    VARVE_ASSIGN_OR_RETURN(
        const auto key, database.FirstKeyFrom(Family::kLists, prefix,
                                              keys::List({save_id, static_cast<uint32_t>(next)})));
    if (!key.has_value()) break;
    const auto list = keys::ParseList(*key);
    if (!list.has_value()) return Status::Corruption("a malformed key in family lists");
    next = (uint64_t{list->number} / kCountsPerBlock + 1) * kCountsPerBlock;
  }
  return blocks;
}

// Loops and allocations follow the counts in a record, so they are checked first. Each chunk that
// it counts is on disk, or a block of counts says that it is gone. Otherwise the record lies. Lists
// are numbered without gaps, so each block of them holds a list or has a block of counts. Twice as
// many pass, so that a lost file is reported as a lost file.
Status CheckPlausible(const Database& database, uint64_t save_id, const SaveRecord& record) {
  if (record.chunks <= kSmallSave && record.lists <= kSmallSave) return Status::Ok();
  const auto count = [&](Family family, const std::string& first_key) {
    // A key starts with the save, and a block's also with its kind. The rest is a number of 4
    // bytes.
    return CountKeys(database, family, std::string_view(first_key).substr(0, first_key.size() - 4));
  };
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  uint64_t chunk_bytes = 0;
  for (const auto& file : database.FilesOf(Family::kChunks)) chunk_bytes += file.size;
  VARVE_ASSIGN_OR_RETURN(const uint64_t chunk_blocks,
                         count(Family::kCounts, keys::Counts(save_id, Counted::kChunk, 0)));
  VARVE_ASSIGN_OR_RETURN(const uint64_t list_blocks,
                         count(Family::kCounts, keys::Counts(save_id, Counted::kList, 0)));
  VARVE_ASSIGN_OR_RETURN(const uint64_t blocks_of_lists, CountListBlocks(database, save_id));
  const uint64_t most_chunks =
      kSmallSave + 2 * (chunk_blocks * kCountsPerBlock + chunk_bytes / kMinFrameBytes);
  const uint64_t most_lists = kSmallSave + 2 * (list_blocks + blocks_of_lists) * kCountsPerBlock;
  if (record.chunks <= most_chunks && record.lists <= most_lists) return Status::Ok();
  return Status::Corruption(
      "save " + std::to_string(save_id) + ": says " + std::to_string(record.chunks) +
      " chunks and " + std::to_string(record.lists) + " lists, but what is on disk holds at most " +
      std::to_string(most_chunks) + " and " + std::to_string(most_lists));
}

}  // namespace

std::string Describe(uint64_t save_id, Counted kind, uint32_t number) {
  return (kind == Counted::kChunk ? "chunk " : "list ") + std::to_string(save_id) + "/" +
         std::to_string(number);
}

void DamageNotes::Add(const std::string& what) {
  constexpr size_t kMaxNoted = 100;
  const bool is_known = std::find(all_.begin(), all_.end(), what) != all_.end();
  if (!is_known && all_.size() < kMaxNoted) all_.push_back(what);
}

std::string DescribeDamagedTensor(std::string_view key, const Status& damage) {
  const auto parsed = keys::ParseTensor(key);
  const std::string name = parsed.has_value() ? std::string(parsed->name) + " of step " +
                                                    std::to_string(parsed->step.step)
                                              : "?";
  return "tensor " + name + ": " + std::string(damage.message());
}

Result<SaveRecord> DecodeSave(const Database& database, uint64_t save_id,
                              const std::optional<std::string>& value) {
  if (!value.has_value()) {
    return Status::NotFound("save " + std::to_string(save_id) + " has no record");
  }
  const Result<SaveRecord> record = DecodeSaveRecord(*value);
  if (!record.ok()) return record.status().WithContext("save " + std::to_string(save_id));
  VARVE_RETURN_IF_ERROR(CheckPlausible(database, save_id, *record));
  return record;
}

Result<std::vector<uint32_t>> DecodeCounts(std::string_view value) {
  if (value.size() % 4 != 0 || value.size() > 4 * size_t{kCountsPerBlock}) {
    return Status::Corruption("counts record: " + std::to_string(value.size()) +
                              " bytes, expected a multiple of 4 up to 16384");
  }
  std::vector<uint32_t> counts(value.size() / 4);
  for (size_t i = 0; i < counts.size(); ++i) {
    for (size_t byte = 0; byte < 4; ++byte) {
      counts[i] |= uint32_t{static_cast<uint8_t>(value[4 * i + byte])} << (8 * byte);
    }
  }
  return counts;
}

std::string EncodeCounts(std::vector<uint32_t> counts) {
  while (!counts.empty() && counts.back() == 1) counts.pop_back();
  std::string value;
  for (const uint32_t count : counts) {
    for (int byte = 0; byte < 4; ++byte) value.push_back(static_cast<char>(count >> (8 * byte)));
  }
  return value;
}

ReferenceCounts::Frame ReferenceCounts::FrameOf(const ChunkRef& ref) {
  if (ref.kind == ChunkKind::kDerived) {
    // The frame is that of the FP32 source, which has twice the bytes of the 16-bit copy.
    return {ref.address, std::nullopt, ref.predictor, 2 * ref.raw_bytes, ref.stored_bytes};
  }
  return {ref.address, ref.digest, ref.predictor, ref.raw_bytes, ref.stored_bytes};
}

ReferenceCounts::Frame ReferenceCounts::FrameOf(const BaseEdge& edge) {
  return {edge.base, edge.base_digest, edge.base_predictor, edge.base_raw_bytes,
          edge.base_stored_bytes};
}

Result<ReferenceCounts::SaveEntry*> ReferenceCounts::FindSave(uint64_t save_id) {
  const auto it = saves_.find(save_id);
  if (it != saves_.end()) return &it->second;
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kBirths, keys::Save(save_id)));
  VARVE_ASSIGN_OR_RETURN(const SaveRecord record, DecodeSave(*database_, save_id, value));
  return &saves_.emplace(save_id, SaveEntry{record, false, false}).first->second;
}

Result<uint32_t*> ReferenceCounts::Count(uint64_t save_id, Counted kind, uint32_t number,
                                         Block** found) {
  const BlockKey key{save_id, kind, number / kCountsPerBlock};
  if (last_ == nullptr || last_->first != key ||
      number % kCountsPerBlock >= last_->second.counts.size()) {
    VARVE_ASSIGN_OR_RETURN(last_, FindCounts(key, number));
  }
  if (found != nullptr) *found = &last_->second;
  return &last_->second.counts[number % kCountsPerBlock];
}

Result<std::map<ReferenceCounts::BlockKey, ReferenceCounts::Block>::value_type*>
ReferenceCounts::FindCounts(const BlockKey& key, uint32_t number) {
  const auto& [save_id, kind, block] = key;
  VARVE_ASSIGN_OR_RETURN(const SaveEntry* entry, FindSave(save_id));
  const uint32_t stored = kind == Counted::kChunk ? entry->record.chunks : entry->record.lists;
  if (number >= stored) {
    return Status::Corruption(Describe(save_id, kind, number) + ": its save stored only " +
                              std::to_string(stored));
  }
  auto it = blocks_.find(key);
  if (it == blocks_.end()) {
    Block loaded;
    VARVE_ASSIGN_OR_RETURN(const auto value,
                           database_->Get(Family::kCounts, keys::Counts(save_id, kind, block)));
    if (value.has_value()) {
      Result<std::vector<uint32_t>> counts = DecodeCounts(*value);
      if (!counts.ok()) return counts.status().WithContext("save " + std::to_string(save_id));
      loaded.counts = *std::move(counts);
    }
    loaded.counts.resize(std::min(kCountsPerBlock, stored - block * kCountsPerBlock), 1);
    it = blocks_.emplace(key, std::move(loaded)).first;
  }
  return &*it;
}

Result<const SaveBlock*> ReferenceCounts::FindBlock(ChunkAddress address) {
  const uint32_t number = address.ordinal / kCountsPerBlock;
  const auto it = save_id_blocks_.find({address.save_id, number});
  if (it != save_id_blocks_.end()) return &it->second;
  SaveBlock block;
  VARVE_ASSIGN_OR_RETURN(const auto value,
                         database_->Get(Family::kBirths, keys::SaveBlock(address.save_id, number)));
  if (value.has_value()) {
    Result<SaveBlock> decoded = DecodeSaveBlock(*value);
    if (!decoded.ok()) {
      return decoded.status().WithContext("save " + std::to_string(address.save_id));
    }
    block = *std::move(decoded);
  }
  return &save_id_blocks_.emplace(std::pair{address.save_id, number}, std::move(block))
              .first->second;
}

Result<std::span<const BaseEdge>> ReferenceCounts::FindEdges(ChunkAddress address) {
  VARVE_ASSIGN_OR_RETURN(const SaveBlock* const block, FindBlock(address));
  const std::span<const BaseEdge> edges = block->EdgesOf(address.ordinal);
  for (const BaseEdge& edge : edges) {
    if (edge.base < address) continue;
    return Status::Corruption(Describe(address.save_id, Counted::kChunk, address.ordinal) +
                              ": its source has no smaller address");
  }
  return edges;
}

Result<CoderTotals> ReferenceCounts::PlanesOf(const Frame& frame) {
  VARVE_ASSIGN_OR_RETURN(const SaveBlock* const block, FindBlock(frame.address));
  return block->PlanesOf(frame.address.ordinal, frame.raw_bytes);
}

Status ReferenceCounts::AddToTotals(const Frame& frame, SaveEntry* entry) {
  SaveRecord& record = entry->record;
  entry->changed = true;
  ++record.live_chunks;
  record.live[static_cast<size_t>(frame.predictor)].Add({1, frame.raw_bytes, frame.stored_bytes});
  if (!record.live_coders.has_value()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const CoderTotals planes, PlanesOf(frame));
  for (size_t c = 0; c < planes.size(); ++c) (*record.live_coders)[c].Add(planes[c]);
  return Status::Ok();
}

Status ReferenceCounts::TakeFromTotals(const Frame& frame, SaveEntry* entry) {
  SaveRecord& record = entry->record;
  entry->changed = true;
  bool enough = record.live_chunks > 0;
  if (enough) --record.live_chunks;
  enough = enough && record.live[static_cast<size_t>(frame.predictor)].Take(
                         {1, frame.raw_bytes, frame.stored_bytes});
  if (enough && record.live_coders.has_value()) {
    VARVE_ASSIGN_OR_RETURN(const CoderTotals planes, PlanesOf(frame));
    for (size_t c = 0; c < planes.size(); ++c) enough &= (*record.live_coders)[c].Take(planes[c]);
  }
  if (!enough) {
    return Status::Corruption(
        "save " + std::to_string(frame.address.save_id) + " has fewer live bytes than " +
        Describe(frame.address.save_id, Counted::kChunk, frame.address.ordinal));
  }
  return Status::Ok();
}

Status ReferenceCounts::AddSave(uint64_t save_id, const SaveRecord& record,
                                const SaveBlock& frames) {
  saves_[save_id] = {record, true, true};
  const auto add_blocks = [&](Counted kind, uint32_t n) {
    for (uint32_t first = 0; first < n; first += kCountsPerBlock) {
      Block block;
      block.counts.assign(std::min(kCountsPerBlock, n - first), 0);
      block.changed = true;
      blocks_[{save_id, kind, first / kCountsPerBlock}] = std::move(block);
    }
  };
  add_blocks(Counted::kChunk, record.chunks);
  add_blocks(Counted::kList, record.lists);
  for (const BaseEdge& edge : frames.edges) {
    save_id_blocks_[{save_id, edge.ordinal / kCountsPerBlock}].edges.push_back(edge);
  }
  for (const CodedPlanes& planes : frames.planes) {
    save_id_blocks_[{save_id, planes.ordinal / kCountsPerBlock}].planes.push_back(planes);
  }
  for (const BaseEdge& edge : frames.edges) VARVE_RETURN_IF_ERROR(AddFrame(FrameOf(edge)));
  return Status::Ok();
}

Status ReferenceCounts::AddChunk(const ChunkRef& ref) { return AddFrame(FrameOf(ref)); }

bool ReferenceCounts::NoteIfDamaged(const Status& status) {
  if (status.code() != StatusCode::kCorruption) return false;
  damage_.AddUncounted(status);
  return true;
}

bool ReferenceCounts::NoteIfUncounted(const Result<uint32_t*>& count) {
  if (count.status().code() != StatusCode::kNotFound) return NoteIfDamaged(count.status());
  return NoteIfDamaged(Status::Corruption(count.status().message()));
}

bool HasReadableCount(const Database& database, ChunkAddress address) {
  const auto record = database.Get(Family::kBirths, keys::Save(address.save_id));
  if (!record.ok() || !record->has_value()) return false;
  const Result<SaveRecord> save_id = DecodeSaveRecord(**record);
  if (!save_id.ok() || address.ordinal >= save_id->chunks) return false;
  const auto block = database.Get(Family::kCounts, keys::Counts(address.save_id, Counted::kChunk,
                                                                address.ordinal / kCountsPerBlock));
  return block.ok() && (!block->has_value() || DecodeCounts(**block).ok());
}

// A frame that becomes live again refers to its sources again, and so on down to frames without.
Status ReferenceCounts::AddFrame(const Frame& frame) {
  std::vector<Frame> left = {frame};
  while (!left.empty()) {
    const Frame next = left.back();
    left.pop_back();
    VARVE_ASSIGN_OR_RETURN(const bool revived, AddOne(next));
    if (!revived) continue;
    VARVE_ASSIGN_OR_RETURN(const std::span<const BaseEdge> edges, FindEdges(next.address));
    for (const BaseEdge& edge : edges) left.push_back(FrameOf(edge));
  }
  return Status::Ok();
}

Result<bool> ReferenceCounts::AddOne(const Frame& frame) {
  const auto [save_id, number] = frame.address;
  Block* block = nullptr;
  const Result<uint32_t*> known = Count(save_id, Counted::kChunk, number, &block);
  if (!known.ok() && NoteIfUncounted(known)) return false;
  VARVE_ASSIGN_OR_RETURN(uint32_t* const count, known);
  VARVE_ASSIGN_OR_RETURN(SaveEntry* const entry, FindSave(save_id));
  block->changed = true;
  if (*count == 0) {
    if (!entry->is_new)
      return Status::NotFound(Describe(save_id, Counted::kChunk, number) + " is gone");
    *count = 1;
    return false;
  }
  if ((*count & kDeadBit) == 0) {
    if (*count == kMaxCount) {
      return Status::FailedPrecondition(Describe(save_id, Counted::kChunk, number) +
                                        " has too many references");
    }
    ++*count;
    return false;
  }
  // An interrupted reclaim may have removed the frame without marking it.
  rocksdb::PinnableSlice on_disk;
  VARVE_RETURN_IF_ERROR(database_->GetFrame(frame.address, &on_disk));
  *count = 1;
  VARVE_RETURN_IF_ERROR(AddToTotals(frame, entry));
  return true;
}

Status ReferenceCounts::AddList(ListAddress list) {
  Block* block = nullptr;
  const Result<uint32_t*> known = Count(list.save_id, Counted::kList, list.number, &block);
  if (!known.ok() && NoteIfUncounted(known)) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(uint32_t* const count, known);
  if (*count == 0) {
    VARVE_ASSIGN_OR_RETURN(const SaveEntry* entry, FindSave(list.save_id));
    if (!entry->is_new) {
      return Status::NotFound(Describe(list.save_id, Counted::kList, list.number) + " is gone");
    }
  }
  ++*count;
  block->changed = true;
  return Status::Ok();
}

// A frame that dies releases its sources, and so on down to frames without.
Status ReferenceCounts::ReleaseFrame(const Frame& frame, CommitBatch* batch) {
  std::vector<Frame> left = {frame};
  while (!left.empty()) {
    const Frame next = left.back();
    left.pop_back();
    VARVE_ASSIGN_OR_RETURN(const bool died, ReleaseOne(next, batch));
    if (!died) continue;
    const auto found = FindEdges(next.address);
    if (!found.ok() && NoteIfDamaged(found.status())) continue;  // its sources stay
    VARVE_ASSIGN_OR_RETURN(const std::span<const BaseEdge> edges, found);
    for (const BaseEdge& edge : edges) left.push_back(FrameOf(edge));
  }
  return Status::Ok();
}

Result<bool> ReferenceCounts::ReleaseOne(const Frame& frame, CommitBatch* batch) {
  const auto [save_id, number] = frame.address;
  Block* block = nullptr;
  const Result<uint32_t*> known = Count(save_id, Counted::kChunk, number, &block);
  if (!known.ok() && NoteIfUncounted(known)) return false;
  VARVE_ASSIGN_OR_RETURN(uint32_t* const count, known);
  if (*count == 0 || (*count & kDeadBit) != 0) {
    NoteDamage(Describe(save_id, Counted::kChunk, number) +
               " is released more often than it is named");
    return false;
  }
  block->changed = true;
  if (--*count > 0) return false;
  *count = kDeadBit | frame.stored_bytes;
  VARVE_ASSIGN_OR_RETURN(SaveEntry* const entry, FindSave(save_id));
  const Status taken = TakeFromTotals(frame, entry);
  if (!taken.ok() && !NoteIfDamaged(taken)) return taken;  // totals are for people
  if (const auto digest = DigestOf(frame)) batch->Delete(Family::kIndex, keys::Index(*digest));
  return true;
}

// The last reference to a frame may be a derived chunk, which has another digest. Then the frame
// tells its digest. A frame that cannot be read keeps its entry in the index, which is a hint and
// costs only space.
std::optional<Digest> ReferenceCounts::DigestOf(const Frame& frame) const {
  if (frame.digest.has_value()) return frame.digest;
  rocksdb::PinnableSlice bytes;
  if (!database_->GetFrame(frame.address, &bytes).ok()) return std::nullopt;
  const Result<FrameInfo> info = ParseFrame(AsBytes({bytes.data(), bytes.size()}));
  return info.ok() ? std::optional(info->digest) : std::nullopt;
}

Status ReferenceCounts::ReleaseList(ListAddress list, CommitBatch* batch) {
  Block* block = nullptr;
  const Result<uint32_t*> known = Count(list.save_id, Counted::kList, list.number, &block);
  if (!known.ok() && NoteIfUncounted(known)) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(uint32_t* const count, known);
  if (*count == 0) {
    NoteDamage(Describe(list.save_id, Counted::kList, list.number) +
               " is released more often than it is named");
    return Status::Ok();
  }
  block->changed = true;
  if (--*count > 0) return Status::Ok();
  const std::string key = keys::List(list);
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kLists, key));
  Result<std::vector<ChunkRef>> refs = Status::Corruption("is missing");
  if (value.has_value()) refs = DecodeChunkList(*value);
  if (!refs.ok()) {
    NoteDamage(Describe(list.save_id, Counted::kList, list.number) + ": " +
               refs.status().message());
    refs = std::vector<ChunkRef>();
  }
  batch->Delete(Family::kLists, key);
  VARVE_ASSIGN_OR_RETURN(SaveEntry* const entry, FindSave(list.save_id));
  if (entry->record.live_lists > 0) {
    --entry->record.live_lists;
  } else {
    NoteDamage("save " + std::to_string(list.save_id) + " has no live list left");
  }
  entry->changed = true;
  for (const ChunkRef& ref : *refs) {
    if (ref.NamesFrame()) VARVE_RETURN_IF_ERROR(ReleaseFrame(FrameOf(ref), batch));
  }
  return Status::Ok();
}

Status ReferenceCounts::MarkGone(ChunkAddress address) {
  Block* block = nullptr;
  VARVE_ASSIGN_OR_RETURN(uint32_t* const count,
                         Count(address.save_id, Counted::kChunk, address.ordinal, &block));
  if ((*count & kDeadBit) == 0) {
    return Status::Corruption(Describe(address.save_id, Counted::kChunk, address.ordinal) +
                              " is alive and cannot be reclaimed");
  }
  *count = 0;
  block->changed = true;
  saves_[address.save_id].changed = true;
  return Status::Ok();
}

Result<uint32_t> ReferenceCounts::ChunkCount(ChunkAddress address) {
  VARVE_ASSIGN_OR_RETURN(const uint32_t* const count,
                         Count(address.save_id, Counted::kChunk, address.ordinal));
  return *count;
}

Result<uint32_t> ReferenceCounts::ListCount(ListAddress list) {
  VARVE_ASSIGN_OR_RETURN(const uint32_t* const count,
                         Count(list.save_id, Counted::kList, list.number));
  return *count;
}

Result<const SaveRecord*> ReferenceCounts::Save(uint64_t save_id) {
  VARVE_ASSIGN_OR_RETURN(const SaveEntry* const entry, FindSave(save_id));
  return &entry->record;
}

Result<uint64_t> ReferenceCounts::CountLive(uint64_t save_id, uint32_t begin, uint64_t end) {
  VARVE_ASSIGN_OR_RETURN(const SaveRecord* const record, Save(save_id));
  end = std::min<uint64_t>(end, record->chunks);
  if (record->live_chunks == 0 || begin >= end) return 0;
  if (record->live_chunks == record->chunks) return end - begin;
  uint64_t live = 0;
  for (uint64_t at = begin; at < end;) {
    // The counts of a block lie side by side.
    const auto ordinal = static_cast<uint32_t>(at);
    VARVE_ASSIGN_OR_RETURN(const uint32_t* const counts, Count(save_id, Counted::kChunk, ordinal));
    const uint64_t n = std::min<uint64_t>(end - at, kCountsPerBlock - ordinal % kCountsPerBlock);
    live += static_cast<uint64_t>(std::count_if(
        counts, counts + n, [](uint32_t count) { return count != 0 && (count & kDeadBit) == 0; }));
    at += n;
  }
  return live;
}

void ReferenceCounts::VisitChanged(
    const std::function<void(uint64_t save_id, const SaveRecord* record)>& visit) const {
  for (const auto& [save_id, entry] : saves_) {
    if (!entry.changed) continue;
    visit(save_id, deleted_saves_.contains(save_id) ? nullptr : &entry.record);
  }
}

Status ReferenceCounts::WriteTo(CommitBatch* batch) {
  for (auto& [save_id, entry] : saves_) {
    if (entry.is_new) {
      for (auto it = save_id_blocks_.lower_bound({save_id, 0});
           it != save_id_blocks_.end() && it->first.first == save_id; ++it) {
        batch->Put(Family::kBirths, keys::SaveBlock(save_id, it->first.second),
                   EncodeSaveBlock(it->second));
      }
    }
    if (!entry.changed) continue;
    const SaveRecord& record = entry.record;
    VARVE_ASSIGN_OR_RETURN(const bool empty, NothingLeft(save_id, record));
    if (empty) {
      DeleteSave(save_id, record, batch);
    } else {
      batch->Put(Family::kBirths, keys::Save(save_id), EncodeSaveRecord(record));
    }
  }
  for (const auto& [key, block] : blocks_) {
    if (!block.changed) continue;
    const auto& [save_id, kind, number] = key;
    if (deleted_saves_.contains(save_id)) continue;
    std::string value = EncodeCounts(block.counts);
    if (value.empty() && saves_[save_id].is_new) continue;
    batch->Put(Family::kCounts, keys::Counts(save_id, kind, number), std::move(value));
  }
  return Status::Ok();
}

Result<bool> ReferenceCounts::NothingLeft(uint64_t save_id, const SaveRecord& record) {
  if (record.live_chunks > 0 || record.live_lists > 0) return false;
  // Goes from the end. A reclaim marks chunks gone from the start, so mostly one look is enough.
  for (uint32_t i = record.chunks; i > 0; --i) {
    const Result<uint32_t> count = ChunkCount({save_id, i - 1});
    // The chunk is dead and its frame is still on disk, or its count is unknown.
    if (!count.ok() || *count != 0) return false;
  }
  return true;
}

void ReferenceCounts::DeleteSave(uint64_t save_id, const SaveRecord& record, CommitBatch* batch) {
  deleted_saves_.insert(save_id);
  batch->Delete(Family::kBirths, keys::Save(save_id));
  const auto blocks = [](uint32_t n) { return (n + kCountsPerBlock - 1) / kCountsPerBlock; };
  for (uint32_t i = 0; i < blocks(record.chunks); ++i) {
    batch->Delete(Family::kCounts, keys::Counts(save_id, Counted::kChunk, i));
    batch->Delete(Family::kBirths, keys::SaveBlock(save_id, i));
  }
  for (uint32_t i = 0; i < blocks(record.lists); ++i) {
    batch->Delete(Family::kCounts, keys::Counts(save_id, Counted::kList, i));
  }
}

}  // namespace varve::internal
