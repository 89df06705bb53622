// SPDX-License-Identifier: Apache-2.0
#include "store/db/dead_space.h"

#include <rocksdb/table_properties.h>

#include <algorithm>
#include <utility>

namespace varve {

Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  rocksdb::ColumnFamilyMetaData family;
  database.rocksdb()->GetColumnFamilyMetaData(database.handle(Family::kChunks), &family);
  std::vector<ChunkFile> files;
  for (const auto& level : family.levels) {
    for (const auto& file : level.files) {
      const auto first = keys::ParseChunk(file.smallestkey);
      const auto last = keys::ParseChunk(file.largestkey);
      if (!first.has_value() || !last.has_value()) {
        return Status::Corruption("chunk file " + file.name + " has malformed keys");
      }
      ChunkFile& found = files.emplace_back();
      found.name = file.name;
      found.bytes = file.size;
      found.first = *first;
      found.last = *last;
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

namespace {

// Number and bytes of the frames in a file, as the file itself says.
Status ReadTotals(const Database& database, ChunkFile* file) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  const std::string first = keys::Chunk(file->first), last = keys::Chunk(file->last);
  const rocksdb::Range range(first, last);
  rocksdb::TablePropertiesCollection tables;
  VARVE_RETURN_IF_ERROR(FromRocksDb(database.rocksdb()->GetPropertiesOfTablesInRange(
                                        database.handle(Family::kChunks), &range, 1, &tables),
                                    "reading the totals of chunk file " + file->name));
  for (const auto& [path, totals] : tables) {
    if (!path.ends_with(file->name)) continue;
    file->frames = totals->num_entries;
    file->frame_bytes = totals->raw_value_size;
    return Status::Ok();
  }
  return Status::Corruption("chunk file " + file->name + " does not say what it holds");
}

}  // namespace

void DeadSpace::Note(uint64_t birth, const BirthRecord* record) {
  if (is_known_) {
    SetRecord(birth, record);
  } else if (is_learning_) {
    noted_[birth] = record == nullptr ? std::nullopt : std::optional(*record);
  }
}

void DeadSpace::BeginLearning() {
  is_learning_ = true;
  noted_.clear();
}

void DeadSpace::Adopt(DeadSpace learned) {
  if (!is_learning_) return;  // it was forgotten meanwhile
  is_learning_ = false;
  learned.num_births_visited_ += num_births_visited_;
  const auto noted = std::move(noted_);
  *this = std::move(learned);
  for (const auto& [birth, record] : noted) {
    SetRecord(birth, record.has_value() ? &*record : nullptr);
  }
}

void DeadSpace::SetRecord(uint64_t birth, const BirthRecord* record) {
  ended_.erase(birth);
  listed_.erase(birth);
  if (record == nullptr || record->live_chunks == 0) {
    SetLive(birth, {});
    if (record != nullptr) (record->live_lists == 0 ? ended_ : listed_).insert(birth);
    return;
  }
  SetLive(birth, {record->chunks, record->live_chunks, record->Live().stored_bytes});
}

void DeadSpace::SetLive(uint64_t birth, const Live& live) {
  const auto it = births_.find(birth);
  const Live before = it == births_.end() ? Live{} : it->second;
  live_bytes_ += live.bytes - before.bytes;
  if (live.frames > 0) {
    births_[birth] = live;
  } else if (it != births_.end()) {
    births_.erase(it);
  }
  // A file that has more births on both sides has all of this one.
  for (auto file = files_.upper_bound({birth, UINT32_MAX}); file != files_.begin();) {
    KnownFile& known = (--file)->second;
    if (known.file.last.birth < birth) break;
    if (known.file.first.birth < birth && birth < known.file.last.birth) {
      known.file.live_frames += uint64_t{live.frames} - before.frames;
      known.file.live_bytes += live.bytes - before.bytes;
    } else {
      known.is_current = false;
    }
  }
}

Status DeadSpace::Load(const Database& database) {
  births_.clear();
  ended_.clear();
  listed_.clear();
  files_.clear();
  live_bytes_ = 0;
  std::optional<uint64_t> last;  // birth that was found
  const Status status = database.Scan(
      Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseBirth(key);
        // The record of a birth comes before its blocks. Without it the birth is there all the
        // same.
        if (!parsed.has_value() || last == parsed->birth) return Status::Ok();
        last = parsed->birth;
        const Result<BirthRecord> record =
            parsed->block.has_value() ? Status::Corruption("is missing") : DecodeBirthRecord(value);
        record.ok() ? SetRecord(parsed->birth, &*record) : SetUnknown(parsed->birth);
        ++num_births_visited_;
        return Status::Ok();
      });
  is_known_ = status.ok();
  is_learning_ = false;  // who learns beside this has an older state
  noted_.clear();
  return status;
}

// What is known of a file stays: a file never changes.
Status DeadSpace::FindFiles(const Database& database) {
  VARVE_ASSIGN_OR_RETURN(std::vector<ChunkFile> listed, ListChunkFiles(database));
  FileMap files;
  for (ChunkFile& file : listed) {
    const auto known = files_.find(file.first);
    if (known != files_.end() && known->second.file.name == file.name) {
      files.insert(files_.extract(known));
      continue;
    }
    VARVE_RETURN_IF_ERROR(ReadTotals(database, &file));
    const ChunkAddress first = file.first;
    files.emplace(first, KnownFile{std::move(file), false});
  }
  files_ = std::move(files);
  return Status::Ok();
}

Status DeadSpace::Refresh(const Database& database, ReferenceCounts* counts) {
  if (!is_known_) VARVE_RETURN_IF_ERROR(Load(database));
  const Status found = FindFiles(database);
  if (!found.ok()) {
    Forget();
    return found;
  }
  for (auto it = files_.begin(); it != files_.end(); ++it) {
    if (!it->second.is_current) VARVE_RETURN_IF_ERROR(Measure(it, counts));
  }
  return Status::Ok();
}

// Counts what lives of the births in a file.
Status DeadSpace::Measure(FileMap::iterator it, ReferenceCounts* counts) {
  ChunkFile& file = it->second.file;
  const uint64_t before = it == files_.begin() ? 0 : std::prev(it)->second.file.last.birth;
  const uint64_t after = std::next(it) == files_.end() ? 0 : std::next(it)->second.file.first.birth;
  file.live_frames = file.live_bytes = 0;
  for (const uint64_t birth : {file.first.birth, file.last.birth}) {
    if (!IsNoted(birth)) file.live_frames = kUnknown;
  }
  for (auto live = births_.lower_bound(file.first.birth);
       live != births_.end() && live->first <= file.last.birth; ++live) {
    const auto& [birth, of_birth] = *live;
    ++num_births_visited_;
    uint64_t frames = of_birth.frames;
    const bool is_in_two = birth == before || birth == after;  // a part lies in the neighbour
    if (is_in_two && of_birth.frames != kUnknown) {
      const uint32_t begin = birth == file.first.birth ? file.first.ordinal : 0;
      const uint64_t end =
          birth == file.last.birth ? uint64_t{file.last.ordinal} + 1 : of_birth.stored;
      const Result<uint64_t> counted = counts->CountLive(birth, begin, end);
      const StatusCode code = counted.status().code();
      const bool is_damaged = code == StatusCode::kCorruption || code == StatusCode::kNotFound;
      if (!counted.ok() && !is_damaged) return counted.status();
      if (counted.ok()) frames = *counted;  // else all of it is taken to live
    }
    file.live_frames += frames;
    file.live_bytes += frames == of_birth.frames
                           ? of_birth.bytes
                           : static_cast<uint64_t>(static_cast<double>(of_birth.bytes) *
                                                   static_cast<double>(frames) / of_birth.frames);
  }
  it->second.is_current = true;
  return Status::Ok();
}

std::vector<ChunkFile> DeadSpace::Files() const {
  std::vector<ChunkFile> files;
  files.reserve(files_.size());
  for (const auto& [first, known] : files_) files.push_back(known.file);
  return files;
}

uint64_t DeadSpace::DeadBytes() const {
  uint64_t bytes = 0, unknown = 0;
  for (const auto& [first, known] : files_) {
    if (known.file.IsUnknown()) {
      unknown += known.file.live_bytes;
    } else {
      bytes += known.file.frame_bytes;
    }
  }
  const uint64_t live = live_bytes_ - std::min(live_bytes_, unknown);
  return bytes - std::min(bytes, live);
}

bool DeadSpace::LiesInAFile(uint64_t birth) const {
  const auto after = files_.upper_bound({birth, UINT32_MAX});
  return after != files_.begin() && std::prev(after)->second.file.last.birth >= birth;
}

std::vector<uint64_t> DeadSpace::Leftovers() const {
  std::vector<uint64_t> births;
  for (const uint64_t birth : ended_) {
    if (!LiesInAFile(birth)) births.push_back(birth);
  }
  return births;
}

}  // namespace varve
