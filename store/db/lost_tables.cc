// SPDX-License-Identifier: Apache-2.0
//
// How a reader goes around table files that are lost or damaged. Keys that lie elsewhere are found,
// and an error names the file that would hold the others.
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/util.h"
#include "store/db/database.h"
#include "store/db/frame_file_system.h"
#include "store/db/sound_tables.h"

namespace varve::internal {

namespace {

// Compares tables by their numbers.
bool ContainsTable(std::span<const LostTable> tables, uint64_t number) {
  return std::ranges::find(tables, number, &LostTable::number) != tables.end();
}

FamilyTables TablesWithout(std::span<const LostTable> left_out, FamilyTables tables) {
  for (const LostTable& table : left_out) {
    tables[table.family].erase(table.number);
    if (tables[table.family].empty()) tables.erase(table.family);
  }
  return tables;
}

}  // namespace

// Opens the state that `whole` shows once more, without these tables. It has no chunk, either:
// those are read from `whole`, where their tables, which do not overlap, are not in the way of each
// other.
Result<std::shared_ptr<const Database::Partial>> Database::OpenWithout(
    std::vector<LostTable> tables, const OpenRocksDb& whole) const {
  std::vector<rocksdb::LiveFileMetaData> files_of_whole;
  whole.db()->GetLiveFilesMetaData(&files_of_whole);
  const auto* const chunks = whole.handle(Family::kChunks);
  for (const rocksdb::LiveFileMetaData& file : files_of_whole) {
    if (file.column_family_name != chunks->GetName() || ContainsTable(tables, file.file_number))
      continue;
    tables.push_back({.family = file.column_family_name,
                      .number = file.file_number,
                      .level = file.level,
                      .family_id = chunks->GetID()});
  }
  auto partial = std::make_shared<Partial>();
  VARVE_ASSIGN_OR_RETURN(const auto files, FileSystemWithout(path_, tables));
  partial->env = rocksdb::NewCompositeEnv(std::make_shared<FrameFileSystem>(files));
  rocksdb::DBOptions options = MakeDbOptionsOf(path_);
  options.env = partial->env.get();
  const rocksdb::Status status = OpenRocksDb::Open(
      [&](auto* handles, auto** db) {
        return rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, handles,
                                            db);
      },
      &partial->open);
  if (!status.ok()) return OpenError(status, path_);
  if (partial->open->Tables() == TablesWithout(tables, whole.Tables())) {
    return std::shared_ptr<const Partial>(partial);
  }
  return Status::Unavailable("the store in " + path_.string() + " has changed meanwhile");
}

// Returns the tables of the family that hold no key of the range, and in which a search for the
// range fails all the same: RocksDB looks for the next key in each table of level 0.
std::vector<LostTable> Database::FindInTheWay(Family family, std::string_view first,
                                              std::string_view end, const Use& use) const {
  std::vector<LostTable> found;
  for (const rocksdb::LiveFileMetaData& file : FilesOf(family)) {
    if (Overlaps(file.smallestkey, file.largestkey, first, end)) continue;
    rocksdb::SstFileReader reader(MakeTableOptions());
    rocksdb::Status status = reader.Open((DbPath(path_) / file.name).string());
    for (const bool forward : {true, false}) {
      if (!status.ok()) break;
      const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(rocksdb::ReadOptions()));
      const std::string_view key = forward || end.empty() ? first : end;
      forward ? at->Seek({key.data(), key.size()}) : at->SeekForPrev({key.data(), key.size()});
      status = at->status();
    }
    if (!status.IsCorruption()) continue;
    found.push_back({.family = file.column_family_name,
                     .number = file.file_number,
                     .level = file.level,
                     .family_id = use.handle(family)->GetID()});
  }
  return found;
}

// For a search that has met a damaged block: the same state without the tables that are in its way.
// Null: there is none.
std::shared_ptr<const Database::Partial> Database::OpenAround(Family family, std::string_view first,
                                                              std::string_view end,
                                                              const Use& use) const {
  if (is_frozen_ || guard_ != nullptr || family == Family::kChunks) return nullptr;
  std::vector<LostTable> left_out = FindInTheWay(family, first, end, use);
  if (left_out.empty()) return nullptr;
  {
    const std::lock_guard lock(lost_mutex_);
    for (const LostTable& table : lost_) {
      if (sound_ != nullptr && !ContainsTable(left_out, table.number)) left_out.push_back(table);
    }
  }
  const std::lock_guard lock(around_mutex_);
  FamilyTables wanted = TablesWithout(left_out, use.open()->Tables());
  wanted.erase(use.handle(Family::kChunks)->GetName());
  if (around_ != nullptr && around_->open->Tables() == wanted)
    return around_;  // tables never change
  const auto opened = OpenWithout(left_out, *use.open());
  if (!opened.ok()) return nullptr;
  around_ = *opened;
  return around_;
}

// What is shown from now on has other tables.
void Database::ForgetAround() const {
  const std::lock_guard lock(around_mutex_);
  around_.reset();
}

// Says which files of a family are lost. Empty = none.
std::string Database::LostOf(Family family) const {
  constexpr int kMaxNamed = 3;
  const std::lock_guard lock(lost_mutex_);
  std::string all;
  int named = 0;
  for (const LostTable& table : lost_) {
    if (table.family != kFamilyNames[static_cast<int>(family)]) continue;
    if (++named > kMaxNamed) return all + "; and more";
    all += (all.empty() ? "" : "; ") + table.what;
  }
  return all;
}

// Says which file is lost that may hold keys of the range. Empty = none.
std::string Database::LostIn(Family family, const Range& range) const {
  const std::lock_guard lock(lost_mutex_);
  for (const LostTable& table : lost_) {
    const bool is_of_family = table.family == kFamilyNames[static_cast<int>(family)];
    if (is_of_family && Overlaps(table.first_key, table.last_key, range.first, range.end)) {
      return table.what;
    }
  }
  return "";
}

// An error if a lost table may hold keys of the range.
Status Database::CheckRange(Family family, const Range& range, const std::string& what) const {
  if (sound_ == nullptr) return Status::Ok();  // RocksDB meets the lost table itself
  const std::string lost = LostIn(family, range);
  return lost.empty() ? Status::Ok() : Status::Corruption(what + ": " + lost);
}

// Where a family is scanned: without lost tables, if it was opened so.
const OpenRocksDb& Database::SoundPlaceOf(Family family, const Use& use) const {
  return sound_ == nullptr || family == Family::kChunks ? *use.open() : *sound_->open;
}

// Where a key is read. RocksDB looks into each table of a family that has three or fewer, whatever
// keys these hold, so a lost one is left out unless it may hold the key.
const OpenRocksDb& Database::PlaceOf(Family family, std::string_view key, const Use& use) const {
  if (sound_ == nullptr) return *use.open();
  const bool is_lost = !LostIn(family, {key, std::string(key) + '\0'}).empty();
  return is_lost ? *use.open() : SoundPlaceOf(family, use);
}

// The error of a read that met one. Only where RocksDB looks into lost tables that hold nothing of
// the range may one of them be the cause.
Status Database::ReadError(Family family, const rocksdb::Status& status, const std::string& what,
                           const Range& range) const {
  const bool skips_others = sound_ != nullptr || (despite_lost_ && family == Family::kChunks);
  const std::string lost = skips_others ? LostIn(family, range) : LostOf(family);
  return lost.empty() ? FromRocksDb(status, what) : Status::Corruption(what + ": " + lost);
}

}  // namespace varve::internal
