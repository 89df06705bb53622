// SPDX-License-Identifier: Apache-2.0
#include "store/db/dead_space.h"

#include <rocksdb/table_properties.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace varve::internal {

Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  std::vector<ChunkFile> files;
  for (const auto& file : database.FilesOf(Family::kChunks)) {
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
  std::sort(files.begin(), files.end());
  return files;
}

namespace {

// Reads the number and bytes of the frames in a file, as the file itself says. Returns false if the
// file is not there any more.
Result<bool> ReadTotals(const Database& database, ChunkFile* file) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  const std::string first = keys::Chunk(file->first), last = keys::Chunk(file->last);
  const rocksdb::Range range(first, last);
  rocksdb::TablePropertiesCollection tables;
  VARVE_RETURN_IF_ERROR(FromRocksDb(
      use.rocksdb()->GetPropertiesOfTablesInRange(use.handle(Family::kChunks), &range, 1, &tables),
      "reading the totals of chunk file " + file->name));
  for (const auto& [path, totals] : tables) {
    if (std::filesystem::path(path).filename() != file->name) continue;
    file->frames = totals->num_entries;
    file->frame_bytes = totals->raw_value_size;
    return true;
  }
  return false;
}

}  // namespace

void DeadSpace::Note(uint64_t save_id, const SaveRecord* record) {
  if (is_known_) {
    SetRecord(save_id, record);
  } else if (is_learning_) {
    noted_[save_id] = record == nullptr ? std::nullopt : std::optional(*record);
  }
}

void DeadSpace::BeginLearning() {
  is_learning_ = true;
  noted_.clear();
}

void DeadSpace::Adopt(DeadSpace learned) {
  if (!is_learning_) return;  // it was forgotten meanwhile
  is_learning_ = false;
  learned.num_saves_visited_ += num_saves_visited_;
  const auto noted = std::move(noted_);
  *this = std::move(learned);
  for (const auto& [save_id, record] : noted) {
    SetRecord(save_id, record.has_value() ? &*record : nullptr);
  }
}

void DeadSpace::SetRecord(uint64_t save_id, const SaveRecord* record) {
  ended_.erase(save_id);
  listed_.erase(save_id);
  if (record == nullptr || record->live_chunks == 0) {
    SetLive(save_id, {});
    if (record != nullptr) (record->live_lists == 0 ? ended_ : listed_).insert(save_id);
    return;
  }
  SetLive(save_id, {record->chunks, record->live_chunks, record->Live().stored_bytes});
}

void DeadSpace::SetLive(uint64_t save_id, const Live& live) {
  const auto it = saves_.find(save_id);
  const Live before = it == saves_.end() ? Live{} : it->second;
  live_bytes_ += live.bytes - before.bytes;
  if (live.frames > 0) {
    saves_[save_id] = live;
  } else if (it != saves_.end()) {
    saves_.erase(it);
  }
  // If a file has other saves on both sides of this one, it holds all of this one.
  for (auto file = files_.upper_bound({save_id, UINT32_MAX}); file != files_.begin();) {
    KnownFile& known = (--file)->second;
    if (known.file.last.save_id < save_id) break;
    if (known.file.first.save_id < save_id && save_id < known.file.last.save_id) {
      known.file.live_frames += uint64_t{live.frames} - before.frames;
      known.file.live_bytes += live.bytes - before.bytes;
    } else {
      known.is_current = false;
    }
  }
}

Status DeadSpace::Load(const Database& database) {
  saves_.clear();
  ended_.clear();
  listed_.clear();
  files_.clear();
  live_bytes_ = 0;
  std::optional<uint64_t> last;  // save that was found
  const Status status = database.Scan(
      Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseSave(key);
        // The record of a save comes before its blocks. A save without a record counts as well.
        if (!parsed.has_value() || last == parsed->save_id) return Status::Ok();
        last = parsed->save_id;
        const Result<SaveRecord> record =
            parsed->block.has_value() ? Status::Corruption("is missing") : DecodeSaveRecord(value);
        record.ok() ? SetRecord(parsed->save_id, &*record) : SetUnknown(parsed->save_id);
        ++num_saves_visited_;
        return Status::Ok();
      });
  is_known_ = status.ok();
  is_learning_ = false;  // another that learns meanwhile has an older state
  noted_.clear();
  return status;
}

// Facts about a file stay valid, because a file never changes. But another thread may merge a file
// between the listing and the look at its totals. The files are then listed anew.
Status DeadSpace::FindFiles(const Database& database) {
  std::string lost;  // a file that the last listing named and that was not there
  do {
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkFile> listed, ListChunkFiles(database));
    const bool is_listed_again = std::any_of(
        listed.begin(), listed.end(), [&](const ChunkFile& file) { return file.name == lost; });
    if (is_listed_again) {
      return Status::Corruption("chunk file " + lost + " does not tell how many frames it holds");
    }
    VARVE_ASSIGN_OR_RETURN(lost, TakeFiles(database, std::move(listed)));
  } while (!lost.empty());
  return Status::Ok();
}

Result<std::string> DeadSpace::TakeFiles(const Database& database, std::vector<ChunkFile> listed) {
  std::string lost;
  FileMap files;
  for (ChunkFile& file : listed) {
    const auto known = files_.find(file.first);
    if (known != files_.end() && known->second.file.name == file.name) {
      files.insert(files_.extract(known));
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const bool is_there, ReadTotals(database, &file));
    if (!is_there) {
      lost = file.name;
      continue;
    }
    const ChunkAddress first = file.first;
    files.emplace(first, KnownFile{std::move(file), false});
  }
  files_ = std::move(files);
  return lost;
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

// Counts the live frames of the saves in a file.
Status DeadSpace::Measure(FileMap::iterator it, ReferenceCounts* counts) {
  ChunkFile& file = it->second.file;
  const uint64_t before = it == files_.begin() ? 0 : std::prev(it)->second.file.last.save_id;
  const uint64_t after =
      std::next(it) == files_.end() ? 0 : std::next(it)->second.file.first.save_id;
  file.live_frames = file.live_bytes = 0;
  for (const uint64_t save_id : {file.first.save_id, file.last.save_id}) {
    if (!IsNoted(save_id)) file.live_frames = kUnknown;
  }
  for (auto live = saves_.lower_bound(file.first.save_id);
       live != saves_.end() && live->first <= file.last.save_id; ++live) {
    const auto& [save_id, of_save_id] = *live;
    ++num_saves_visited_;
    uint64_t frames = of_save_id.frames;
    const bool is_in_two = save_id == before || save_id == after;  // a part lies in the neighbour
    if (is_in_two && of_save_id.frames != kUnknown) {
      const uint32_t begin = save_id == file.first.save_id ? file.first.ordinal : 0;
      const uint64_t end =
          save_id == file.last.save_id ? uint64_t{file.last.ordinal} + 1 : of_save_id.stored;
      const Result<uint64_t> counted = counts->CountLive(save_id, begin, end);
      const StatusCode code = counted.status().code();
      const bool is_damaged = code == StatusCode::kCorruption || code == StatusCode::kNotFound;
      if (!counted.ok() && !is_damaged) return counted.status();
      if (counted.ok()) frames = *counted;  // else everything in it counts as live
    }
    file.live_frames += frames;
    file.live_bytes += frames == of_save_id.frames
                           ? of_save_id.bytes
                           : static_cast<uint64_t>(static_cast<double>(of_save_id.bytes) *
                                                   static_cast<double>(frames) / of_save_id.frames);
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

bool DeadSpace::LiesInAFile(uint64_t save_id) const {
  const auto after = files_.upper_bound({save_id, UINT32_MAX});
  return after != files_.begin() && std::prev(after)->second.file.last.save_id >= save_id;
}

std::vector<uint64_t> DeadSpace::Leftovers() const {
  std::vector<uint64_t> saves;
  for (const uint64_t save_id : ended_) {
    if (!LiesInAFile(save_id)) saves.push_back(save_id);
  }
  return saves;
}

}  // namespace varve::internal
