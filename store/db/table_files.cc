// SPDX-License-Identifier: Apache-2.0
#include "store/db/table_files.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "base/coding.h"
#include "base/file_descriptor.h"
#include "base/util.h"
#include "store/db/manifest_tables.h"
#include "store/db/open_rocksdb.h"
#include "store/db/rocksdb_options.h"
#include "store/db/sound_tables.h"
#include "store/format/keys.h"

namespace varve::internal {

namespace {

size_t CountFiles(const std::filesystem::path& folder) {
  std::error_code error;  // then as few as can be found
  size_t num_files = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    ++num_files;
  }
  return num_files;
}

// RocksDB gives an ingested table a number, which the manifest names. It opens no table whose
// properties have another one but 0. The checksum of the properties does not cover this number.
std::string WhatAilsNumber(const rocksdb::TableProperties& properties, uint64_t expected) {
  const auto& named = properties.user_collected_properties;
  const auto found = named.find("rocksdb.external_sst_file.global_seqno");
  if (found == named.end() || found->second.size() != sizeof(uint64_t)) return "";
  const auto number = LoadLittle<uint64_t>(AsBytes(found->second).data());
  if (number == 0 || number == expected) return "";
  return "has the sequence number " + std::to_string(number) + " in its properties, expected " +
         std::to_string(expected);
}

template <typename Work>
rocksdb::Status TwiceIfTheDiskFails(const Work& work) {
  const rocksdb::Status status = work();
  return status.IsIOError() ? work() : status;
}

// False also for what cannot be looked at, because this process may not.
bool IsMissing(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

bool IsForbidden(const Status& status) {
  return !status.ok() && status.message().find(std::strerror(EACCES)) != std::string::npos;
}

// Says what is wrong with a table file. Empty = it opens. An error: for lack of descriptors, memory
// or permission nobody can say.
Result<std::string> WhatAilsTable(const std::filesystem::path& file,
                                  const rocksdb::LiveFileMetaData& expected) {
  const uint64_t bytes = expected.size;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) {
    if (errno == EACCES) return ErrnoStatus("look at", file, errno);
    return errno == ENOENT ? "is missing, expected " + std::to_string(bytes) + " bytes"
                           : std::string("cannot be looked at: ") + std::strerror(errno);
  }
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return "has " + std::to_string(info.st_size) + " bytes, expected " + std::to_string(bytes);
  }
  std::unique_ptr<rocksdb::SstFileReader> reader;
  const rocksdb::Status opened = OpenTable(file, &reader);
  Status status = FromRocksDb(opened, "opening " + file.string());
  if (IsShortage(status) || IsForbidden(status)) return status;
  if (!status.ok()) return "cannot be opened: " + opened.ToString();
  return WhatAilsNumber(*reader->GetTableProperties(), expected.largest_seqno);
}

Result<Families> FindFamiliesOf(const std::filesystem::path& store) {
  return FindFamilies(store, MakeDbOptions(), MakeFamilyOptions(nullptr));
}

// Opens the database for reading and returns what the manifest says of its table files.
rocksdb::Status ReadLiveFiles(const std::filesystem::path& store, const rocksdb::DBOptions& options,
                              const Families& families,
                              std::vector<rocksdb::LiveFileMetaData>* files,
                              FamilyIds* ids = nullptr) {
  std::shared_ptr<const OpenRocksDb> open;
  const rocksdb::Status status = OpenRocksDb::Open(
      [&](auto* handles, auto** db) {
        return rocksdb::DB::OpenForReadOnly(options, DbPath(store).string(), families, handles, db);
      },
      &open);
  if (!status.ok()) return status;
  open->db()->GetLiveFilesMetaData(files);
  if (ids != nullptr) {
    for (auto* handle : open->handles()) (*ids)[handle->GetName()] = handle->GetID();
  }
  return status;
}

// Opens the database without these tables, as a reader would. RocksDB compares the unique id of
// each table with the one in the manifest. Returns the number of the first table that has another
// one: it is of another store, or of another time.
std::optional<uint64_t> FindForeign(const std::filesystem::path& store, const Families& families,
                                    const std::vector<LostTable>& left_out) {
  constexpr std::string_view kLead = "Mismatch in unique ID on table file ";
  const auto file_system = FileSystemWithout(store, left_out);
  if (!file_system.ok()) return std::nullopt;
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(*file_system);
  rocksdb::DBOptions options = MakeDbOptionsOf(store);
  options.env = env.get();
  std::vector<rocksdb::LiveFileMetaData> files;
  const rocksdb::Status status = ReadLiveFiles(store, options, families, &files);
  const std::string said = status.ToString();
  const size_t at = said.find(kLead);
  if (!status.IsCorruption() || at == std::string::npos) return std::nullopt;
  uint64_t number = 0;
  const char* const digits = said.data() + at + kLead.size();
  std::from_chars(digits, said.data() + said.size(), number);
  return number;
}

Status NoManifest(const std::string& what) {
  return Status::Corruption(what +
                            ", without which no file of the database can be found. varve repair "
                            "takes the copy in spare/, if there is one. Else put it back, or take "
                            "the store from a backup");
}

}  // namespace

void RaiseDescriptorLimit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // best effort: the old limit may well do
}

Status CheckDescriptorsLeft(const std::filesystem::path& store) {
  constexpr size_t kOthers = 32;  // manifests, logs, folders, and what other threads open meanwhile
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return Status::Ok();
  const size_t open = CountFiles("/proc/self/fd");
  const size_t needed = CountFiles(DbPath(store)) + kOthers;
  if (open + needed <= limit.rlim_cur) return Status::Ok();
  return Status::IOError("opening the database in " + store.string() + " once more takes up to " +
                         std::to_string(needed) + " descriptors beside the " +
                         std::to_string(open) + " of this process, and its limit is " +
                         std::to_string(limit.rlim_cur) + ". Raise it (ulimit -Hn)");
}

rocksdb::DBOptions MakeDbOptionsOf(const std::filesystem::path& store) {
  RaiseDescriptorLimit();
  return MakeDbOptions(CountFiles(DbPath(store)));
}

std::filesystem::path DbPath(const std::filesystem::path& store) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(store, error);
  return (error ? store : canonical) / "db";
}

Status CheckDbIsNoLink(const std::filesystem::path& store) {
  const std::filesystem::path db = DbPath(store);
  if (CheckIsNoLink(db).ok()) return Status::Ok();
  return Status::Corruption(db.string() + " is a link, expected none. Move the folder that it " +
                            "leads to back, to take its place");
}

Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store) {
  constexpr size_t kMaxBytes = 256;
  const std::string what = "opening the database in " + store.string();
  const std::filesystem::path db = DbPath(store);
  for (const auto& needed : {db, db / "CURRENT"}) {
    if (IsMissing(needed)) return NoManifest(needed.string() + " is missing");
  }
  const Result<std::string> current = ReadSmallFile(db / "CURRENT", kMaxBytes);
  // RocksDB calls it missing then.
  if (IsForbidden(current.status())) return current.status().WithContext(what);
  if (!current.ok()) return FromRocksDb(status, what);
  const std::string manifest = current->substr(0, current->find('\n'));
  if (*current != manifest + "\n") {
    return NoManifest((db / "CURRENT").string() + " does not name a manifest");
  }
  if (IsMissing(db / manifest)) {
    return NoManifest((db / manifest).string() + " is missing, which CURRENT names");
  }
  return FromRocksDb(status, what);
}

Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store,
                 const Families& families) {
  constexpr size_t kMaxNamed = 3;
  if (!status.IsCorruption()) return OpenError(status, store);
  const auto lost = FindLostTables(store, families);
  if (!lost.ok() || lost->empty()) return OpenError(status, store);
  std::string all;
  for (size_t i = 0; i < std::min(lost->size(), kMaxNamed); ++i) {
    all += (i > 0 ? "; " : "") + (*lost)[i].what;
  }
  if (lost->size() > kMaxNamed) {
    all += "; and " + std::to_string(lost->size() - kMaxNamed) + " more";
  }
  return Status::Corruption("opening the database in " + store.string() + ": " + all);
}

Result<Families> FindFamilies(const std::filesystem::path& store,
                              const rocksdb::DBOptions& db_options,
                              const std::vector<rocksdb::ColumnFamilyOptions>& family_options) {
  std::vector<std::string> names;
  if (const auto found = ReadManifestTables(store)) {
    for (const auto& [id, name] : found->families) names.push_back(name);
    return FamiliesOf(names, family_options);
  }
  const rocksdb::Status status =
      rocksdb::DB::ListColumnFamilies(db_options, DbPath(store).string(), &names);
  if (!status.ok()) return OpenError(status, store);
  return FamiliesOf(names, family_options);
}

Families FamiliesOf(const std::vector<std::string>& names,
                    const std::vector<rocksdb::ColumnFamilyOptions>& family_options) {
  Families families;
  for (int i = 0; i < kNumFamilies; ++i) {
    families.emplace_back(std::string(kFamilyNames[i]), family_options[static_cast<size_t>(i)]);
  }
  for (const std::string& name : names) {
    if (std::find(std::begin(kFamilyNames), std::end(kFamilyNames), name) == std::end(kFamilyNames))
      families.emplace_back(name, family_options[0]);
  }
  return families;
}

Result<std::string> ManifestStamp(const std::filesystem::path& store) {
  constexpr size_t kMaxBytes = 256;
  const std::filesystem::path db = DbPath(store);
  VARVE_ASSIGN_OR_RETURN(const std::string current, ReadSmallFile(db / "CURRENT", kMaxBytes));
  const std::filesystem::path manifest = db / current.substr(0, current.find('\n'));
  // Over a network only an open asks the server how long it is.
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenFileToRead(manifest));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("look at", manifest, errno);
  return current + std::to_string(info.st_size);
}

Result<std::string> AwaitManifestStamp(const std::filesystem::path& store) {
  constexpr int kAttempts = 6;
  Result<std::string> stamp = ManifestStamp(store);
  for (int attempt = 0; attempt < kAttempts && !stamp.ok(); ++attempt) {
    ::usleep(1000 << attempt);
    stamp = ManifestStamp(store);
  }
  if (stamp.status().code() != StatusCode::kNotFound) return stamp;
  return OpenError(rocksdb::Status::Corruption(stamp.status().message()), store);
}

std::set<std::string> NamesOf(const std::vector<rocksdb::LiveFileMetaData>& files) {
  std::set<std::string> names;
  for (const auto& file : files) names.insert(std::filesystem::path(file.name).filename());
  return names;
}

Result<std::vector<rocksdb::LiveFileMetaData>> ReadManifest(const std::filesystem::path& store,
                                                            const Families& families,
                                                            FamilyIds* ids) {
  rocksdb::DBOptions options = MakeDbOptions();
  options.paranoid_checks = false;  // or lost files are an error
  options.max_open_files = 20;      // the least there is: no table is needed
  std::vector<rocksdb::LiveFileMetaData> files;
  rocksdb::Status status;
  // The writer may roll its manifest between our looking and opening it.
  for (int attempt = 0; attempt < 20; ++attempt) {
    status = ReadLiveFiles(store, options, families, &files, ids);
    if (status.ok()) return files;
    ::usleep(1000 << std::min(attempt, 5));
  }
  return FromRocksDb(status, "reading the manifest of " + store.string());
}

Result<std::set<std::string>> FindTableNames(const std::filesystem::path& store) {
  VARVE_ASSIGN_OR_RETURN(const Families families, FindFamiliesOf(store));
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(store, families));
  return NamesOf(files);
}

Result<TableFiles> FindTableFiles(const std::filesystem::path& store) {
  const rocksdb::DBOptions options = MakeDbOptionsOf(store);
  VARVE_ASSIGN_OR_RETURN(const Families families,
                         FindFamilies(store, options, MakeFamilyOptions(nullptr)));
  std::vector<rocksdb::LiveFileMetaData> files;
  const rocksdb::Status status = ReadLiveFiles(store, options, families, &files);
  if (!status.ok()) return OpenError(status, store);
  TableFiles found{.names = NamesOf(files)};
  for (const rocksdb::LiveFileMetaData& file : files) found.bytes += file.size;
  return found;
}

Result<std::vector<LostTable>> FindLostTables(const std::filesystem::path& store,
                                              const Families& families,
                                              const std::set<std::string>& sound) {
  FamilyIds ids;
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(store, families, &ids));
  std::vector<LostTable> lost;
  const auto add = [&](const rocksdb::LiveFileMetaData& file, const std::string& what) {
    const std::string name = std::filesystem::path(file.name).filename();
    lost.push_back({.family = file.column_family_name,
                    .file = name,
                    .what = "table file " + (DbPath(store) / name).string() + " of family " +
                            file.column_family_name + " " + what,
                    .number = file.file_number,
                    .level = file.level,
                    .family_id = ids[file.column_family_name],
                    .first_key = file.smallestkey,
                    .last_key = file.largestkey});
  };
  std::vector<LostTable> known;  // tables that are sound, so that they need not be opened
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string name = std::filesystem::path(file.name).filename();
    if (sound.contains(name)) {
      known.push_back({.family = file.column_family_name,
                       .number = file.file_number,
                       .level = file.level,
                       .family_id = ids[file.column_family_name]});
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const std::string what, WhatAilsTable(DbPath(store) / name, file));
    if (!what.empty()) add(file, what);
  }
  while (known.size() + lost.size() < files.size()) {
    std::vector<LostTable> left_out = known;
    left_out.insert(left_out.end(), lost.begin(), lost.end());
    const std::optional<uint64_t> number = FindForeign(store, families, left_out);
    if (!number.has_value()) break;
    const auto file = std::ranges::find(files, *number, &rocksdb::LiveFileMetaData::file_number);
    if (file == files.end() || std::ranges::find(lost, *number, &LostTable::number) != lost.end())
      break;
    add(*file, "is sound, but it is not the table that the manifest names: its unique id differs");
  }
  if (lost.empty()) return lost;
  // A writer removes a file only after the manifest has ceased to name it.
  VARVE_ASSIGN_OR_RETURN(const auto now, ReadManifest(store, families));
  const std::set<std::string> names = NamesOf(now);
  std::erase_if(lost, [&](const LostTable& table) { return !names.contains(table.file); });
  return lost;
}

Result<std::vector<LostTable>> FindLostTables(const std::filesystem::path& store) {
  VARVE_ASSIGN_OR_RETURN(const Families families, FindFamiliesOf(store));
  return FindLostTables(store, families);
}

rocksdb::Status OpenTable(const std::filesystem::path& file,
                          std::unique_ptr<rocksdb::SstFileReader>* reader) {
  return TwiceIfTheDiskFails([&] {
    *reader = std::make_unique<rocksdb::SstFileReader>(MakeTableOptions());
    return (*reader)->Open(file.string());
  });
}

Status VerifyTableFile(const std::filesystem::path& file) {
  const rocksdb::Status status = TwiceIfTheDiskFails([&] {
    rocksdb::SstFileReader reader(MakeTableOptions());
    const rocksdb::Status opened = reader.Open(file.string());
    return opened.ok() ? reader.VerifyChecksum() : opened;
  });
  return FromRocksDb(status, "verifying " + file.string());
}

}  // namespace varve::internal
