// SPDX-License-Identifier: Apache-2.0
//
// Each record of a manifest (manifest_log.h) is a VersionEdit: tags and values as varints. That has
// not changed since LevelDB. The two tags that are needed here are stable parts of the format of
// every manifest.
#include "store/db/salvage_view.h"

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/current_copy.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/db/rocksdb_options.h"
#include "store/db/spare_files.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDeletedFileTag = 6;
constexpr uint64_t kFamilyTag = 200;
constexpr uint64_t kCopyBytes = uint64_t{4} << 20;

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

Status CannotList(const fs::path& store, const std::error_code& error) {
  return Status::IOError("cannot list " + DbPath(store).string() + ": " + error.message());
}

// Without its properties RocksDB opens an ingested table, and takes its records for older ones.
Result<bool> HasProperties(const fs::path& file) {
  std::unique_ptr<rocksdb::SstFileReader> reader;
  const Status opened = FromRocksDb(OpenTable(file, &reader), "opening " + file.string());
  if (IsShortage(opened)) return opened;
  if (!opened.ok()) return false;
  const auto properties = reader->GetTableProperties();
  return properties != nullptr && !properties->column_family_name.empty();
}

// The database in `view` names the tables that it should.
Status CheckView(const fs::path& view, const std::set<std::string>& expected) {
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> found, FindTableNames(view));
  if (found == expected) return Status::Ok();
  return Status::Corruption("the manifest of the view in " + view.string() + " names " +
                            std::to_string(found.size()) + " table files, expected " +
                            std::to_string(expected.size()));
}

Status LinkInto(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return Status::Ok();
  return Status::FailedPrecondition("cannot link " + from.string() + " to " + to.string() + ": " +
                                    error.message() +
                                    "; both must lie on one file system that has hard links, and "
                                    "the file must belong to this user, or be writable");
}

}  // namespace

Result<std::vector<DamagedTable>> FindDamagedTables(const fs::path& store, const Sealer* sealer,
                                                    const Progress& progress) {
  VARVE_ASSIGN_OR_RETURN(const Families families,
                         FindFamilies(store, MakeDbOptionsOf(store), MakeFamilyOptions(nullptr)));
  FamilyIds ids;
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(store, families, &ids));
  VARVE_ASSIGN_OR_RETURN(const auto lost, FindLostTables(store, families));
  std::map<std::string, std::string> lost_because;
  for (const LostTable& table : lost) lost_because.emplace(table.file, table.what);
  uint64_t total = 0, done = 0;
  for (const auto& file : files) total += file.size;
  std::vector<DamagedTable> damaged;
  for (const rocksdb::LiveFileMetaData& file : files) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    DamagedTable table;
    table.family = file.column_family_name;
    table.file = fs::path(file.name).filename();
    table.number = file.file_number;
    table.level = file.level;
    table.family_id = ids[file.column_family_name];
    table.first_key = file.smallestkey;
    table.last_key = file.largestkey;
    const fs::path path = DbPath(store) / table.file;
    if (const auto reason = lost_because.find(table.file); reason != lost_because.end()) {
      table.what = reason->second;
    } else if (const Status verified = VerifyTableFile(path); !verified.ok()) {
      if (IsShortage(verified)) return verified;
      table.what = "table file " + path.string() + " of family " + table.family +
                   " has a damaged block: " + verified.message();
      if (sealer == nullptr) {
        VARVE_ASSIGN_OR_RETURN(table.is_readable, HasProperties(path));
      }
    } else if (sealer != nullptr) {
      const Status compared = sealer->CompareTable(path, file.file_checksum);
      if (compared.code() == StatusCode::kAborted || IsShortage(compared)) return compared;
      table.what = compared.message();
    }
    table.is_untrusted = sealer != nullptr;  // a damaged file does not have its tag, either
    if (!table.what.empty()) damaged.push_back(std::move(table));
    done += file.size;
    if (progress) progress(done, total);
  }
  return damaged;
}

namespace {

// Appends the record that takes a table file out of a manifest.
void AppendRemoval(const LostTable& table, std::string* manifest) {
  std::string edit;
  AppendVarint(kDeletedFileTag, &edit);
  AppendVarint(static_cast<uint64_t>(table.level), &edit);
  AppendVarint(table.number, &edit);
  if (table.family_id != 0) {
    AppendVarint(kFamilyTag, &edit);
    AppendVarint(table.family_id, &edit);
  }
  AppendLogRecord(edit, manifest);
}

}  // namespace

std::string WithoutTables(std::string manifest, std::span<const LostTable> left_out) {
  manifest.resize(EndOfLogRecords(manifest, LogChecksums::kCompare));
  // A crash in a commit leaves some of its records. RocksDB expects the others next.
  const auto end = VisitManifestStates(manifest, manifest.size(), [](const auto&, size_t) {});
  if (end.has_value()) manifest.resize(*end);
  for (const LostTable& table : left_out) AppendRemoval(table, &manifest);
  return manifest;
}

namespace {

// nullopt: it is missing or cannot be read. An error: the process lacks what it takes to read it.
Result<std::optional<std::string>> ReadWhole(const fs::path& file) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(file, error);
  if (error) return std::optional<std::string>();
  Result<std::string> content = ReadSmallFile(file, bytes);
  if (IsShortage(content.status())) return content.status();
  if (!content.ok()) return std::optional<std::string>();
  return std::optional(*std::move(content));
}

// Returns the name of the newest manifest, as CURRENT says or a newer copy of it, or as SYNCED
// does, or because there is no other.
Result<std::string> FindManifestName(const fs::path& store, std::vector<std::string>* damage) {
  const fs::path current = DbPath(store) / "CURRENT";
  const auto exists = [&](const std::string& name) {
    std::error_code ignored;
    return fs::exists(DbPath(store) / name, ignored) ||
           fs::exists(SpareFolder(store) / name, ignored);
  };
  VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> said, ReadWhole(current));
  if (said.has_value()) {
    const std::string name = said->substr(0, said->find('\n'));
    if (IsManifestName(name) && *said == name + "\n" && exists(name)) {
      const Status newest = CheckCurrentIsNewest(store);
      if (IsShortage(newest)) return newest;
      if (newest.ok()) return name;
      VARVE_ASSIGN_OR_RETURN(const std::string copy, ReadCurrentCopy(store));
      if (!exists(copy)) {
        return Status::Corruption(newest.message() + ". " + copy +
                                  " is lost, so take the store from a backup");
      }
      damage->push_back(newest.message());
      return copy;
    }
  }
  damage->push_back(current.string() + (said.has_value() ? " does not name a manifest that is there"
                                                         : " is missing or cannot be read"));
  VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
  if (note.has_value() && exists(note->manifest)) return note->manifest;
  VARVE_ASSIGN_OR_RETURN(const std::string copy, ReadCurrentCopy(store));
  if (!copy.empty() && exists(copy)) return copy;
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(DbPath(store), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (IsManifestName(name)) names.insert(name);
  }
  if (error && error != std::errc::no_such_file_or_directory) return CannotList(store, error);
  if (names.size() == 1) return *names.begin();
  return Status::Corruption(damage->back() + ", and nothing says which of " +
                            std::to_string(names.size()) +
                            " manifests is the newest; take the store from a backup");
}

}  // namespace

Result<FoundManifest> FindManifest(const fs::path& store) {
  FoundManifest found;
  VARVE_ASSIGN_OR_RETURN(found.name, FindManifestName(store, &found.damage));
  VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
  const bool is_noted = note.has_value() && note->manifest == found.name;
  const uint64_t noted = is_noted ? note->bytes : 0;
  const auto end_of = [](const std::optional<std::string>& log) {
    return log.has_value() ? EndOfLogRecords(*log, LogChecksums::kCompare) : 0;
  };
  const fs::path file = DbPath(store) / found.name, spare = SpareFolder(store) / found.name;
  VARVE_ASSIGN_OR_RETURN(std::optional<std::string> log, ReadWhole(file));
  VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> copy, ReadWhole(spare));
  const size_t end = end_of(log), copy_end = end_of(copy);
  // Without a note: RocksDB takes a record with a wrong checksum for damage. And as the copy gets a
  // record after the manifest does, it is never longer.
  const bool has_bad_record =
      !is_noted && end > 0 && EndOfLogRecords(*log, LogChecksums::kIgnore) > end;
  const bool copy_goes_on =
      !is_noted && end > 0 && copy_end > end && copy->starts_with(log->substr(0, end));
  if (end > 0 && end >= noted && !has_bad_record && !copy_goes_on) {
    found.log = *std::move(log);
    return found;
  }
  const std::string expected = std::to_string(copy_goes_on ? copy_end : std::max(noted, end + 1));
  found.damage.push_back(log.has_value()
                             ? file.string() + " is damaged: it can be read up to byte " +
                                   std::to_string(end) + ", expected " + expected
                             : file.string() + " is missing or cannot be read");
  if (!is_noted) {
    found.doubt = (store / kManifestNoteName).string() + " does not say how long " + found.name +
                  " was, and its copy " + spare.string() + " may lack the end of it";
  }
  if (copy_end > 0 && copy_end >= std::max(noted, end)) {
    found.log = copy->substr(0, copy_end);
    return found;
  }
  if (end > 0 && !is_noted) {
    found.log = log->substr(0, end);
    return found;
  }
  return Status::Corruption(found.damage.back() + ", and " + spare.string() +
                            " is no whole copy of it; take the store from a backup");
}

Result<std::vector<std::string>> FindUnnamedTables(const fs::path& store,
                                                   const std::set<std::string>& named) {
  std::set<std::string> unnamed;
  std::error_code error;
  for (fs::directory_iterator it(DbPath(store), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (it->path().extension() == ".sst" && !named.contains(name)) unnamed.insert(name);
  }
  if (error) return CannotList(store, error);
  return std::vector(unnamed.begin(), unnamed.end());
}

Status MakeViewOfManifest(const fs::path& store, const FormatFile& format,
                          const FoundManifest& manifest, const fs::path& view) {
  const fs::path to = DbPath(view);
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return Status::IOError("cannot make " + to.string() + ": " + error.message());
  for (fs::directory_iterator it(DbPath(store), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".sst") {
      VARVE_RETURN_IF_ERROR(LinkInto(it->path(), to / it->path().filename()));
    }
  }
  if (error) return CannotList(store, error);
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(to / manifest.name, manifest.log));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(to / "CURRENT", manifest.name + "\n"));
  return WriteFormatFile(view, format);
}

Result<std::vector<LongTable>> FindLongTables(const fs::path& store) {
  VARVE_ASSIGN_OR_RETURN(const Families families,
                         FindFamilies(store, MakeDbOptionsOf(store), MakeFamilyOptions(nullptr)));
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(store, families));
  std::vector<LongTable> found;
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string name = fs::path(file.name).filename();
    const fs::path path = DbPath(store) / name;
    std::error_code error;  // then it is a lost table
    const uint64_t bytes = fs::file_size(path, error);
    if (error || bytes <= file.size) continue;
    found.push_back({name, file.size,
                     "table file " + path.string() + " of family " + file.column_family_name +
                         " has " + std::to_string(bytes) + " bytes, expected " +
                         std::to_string(file.size) + "; those behind are left out"});
  }
  return found;
}

Status CutLongTable(const LongTable& table, const fs::path& store, const fs::path& view) {
  const fs::path from = DbPath(store) / table.file, to = DbPath(view) / table.file;
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor source, OpenFileToRead(from));
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor target, ReplaceFile(to));
  for (uint64_t done = 0; done < table.bytes;) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const auto part = ReadAtMost(source.get(), std::min(table.bytes - done, kCopyBytes), from);
    if (IsShortage(part.status())) return part.status();
    if (!part.ok() || part->empty()) break;
    VARVE_RETURN_IF_ERROR(WriteAll(target.get(), AsBytes(*part), to));
    done += part->size();
  }
  return Status::Ok();
}

Status MakeSalvageView(const fs::path& store, const FormatFile& format,
                       std::span<const DamagedTable> left_out, const fs::path& view) {
  const fs::path from = DbPath(store), to = view / "db";
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return Status::IOError("cannot make " + to.string() + ": " + error.message());
  VARVE_ASSIGN_OR_RETURN(std::set<std::string> names, FindTableNames(store));
  for (const DamagedTable& table : left_out) names.erase(table.file);
  for (const std::string& name : names) {
    VARVE_RETURN_IF_ERROR(LinkInto(from / name, to / name));
  }
  constexpr size_t kMaxCurrentBytes = 256;
  VARVE_ASSIGN_OR_RETURN(std::string current, ReadSmallFile(from / "CURRENT", kMaxCurrentBytes));
  const std::string manifest = current.substr(0, current.find('\n'));
  const uint64_t bytes = fs::file_size(from / manifest, error);
  if (error) return Status::IOError("cannot look at " + manifest + ": " + error.message());
  VARVE_ASSIGN_OR_RETURN(std::string log, ReadSmallFile(from / manifest, bytes));
  const std::vector<LostTable> removed(left_out.begin(), left_out.end());
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(to / manifest, WithoutTables(std::move(log), removed)));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(to / "CURRENT", current));
  VARVE_RETURN_IF_ERROR(WriteFormatFile(view, format));
  return CheckView(view, names);
}

}  // namespace varve::internal
