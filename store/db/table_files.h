// SPDX-License-Identifier: Apache-2.0
//
// The table files of a database as its newest manifest names them, and those that are lost. Nothing
// here needs an open Database. Thread rule: any thread. Unless a function says otherwise, a writer
// may work meanwhile. `store` is always the path of the store.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/sst_file_reader.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

// Returns one name for one folder. RocksDB's lock knows by name what this process holds, and the
// system's lock would not keep this process from taking it twice.
std::filesystem::path DbPath(const std::filesystem::path& store);

// Returns kCorruption if `db` is a link. A writer refuses it, and a reader follows it.
Status CheckDbIsNoLink(const std::filesystem::path& store);

// Raises the soft limit of descriptors, often 1,024, as far as this process may. All table files
// stay open, because a reader must keep what the writer unlinks.
void RaiseDescriptorLimit();

// kIOError: this process may not open as many more files as the database has. `store` is opened
// already, and shall be opened beside that.
Status CheckDescriptorsLeft(const std::filesystem::path& store);

// Returns RocksDB's options for this database. All table files stay open, so the soft limit of
// descriptors is raised.
rocksdb::DBOptions MakeDbOptionsOf(const std::filesystem::path& store);

using Families = std::vector<rocksdb::ColumnFamilyDescriptor>;

// The error of an existing database that does not open. If CURRENT or the manifest that it names is
// lost, this is damage, whatever RocksDB calls it. What this process may not read is not lost.
Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store);
// The same, where table files may be lost. About a table file, RocksDB may name the expected size
// as the real one, another file, or none. So this looks at the files.
Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store,
                 const Families& families);

// Returns our families in the order of Family, then unknown ones of `names`, which must be opened,
// too.
Families FamiliesOf(const std::vector<std::string>& names,
                    const std::vector<rocksdb::ColumnFamilyOptions>& family_options);
// The same for the families of a database.
Result<Families> FindFamilies(const std::filesystem::path& store,
                              const rocksdb::DBOptions& db_options,
                              const std::vector<rocksdb::ColumnFamilyOptions>& family_options);

// Returns everything that the newest manifest names, even if it is missing. If `ids` is not null,
// it gets RocksDB's number of each family.
using FamilyIds = std::map<std::string, uint32_t>;
Result<std::vector<rocksdb::LiveFileMetaData>> ReadManifest(const std::filesystem::path& store,
                                                            const Families& families,
                                                            FamilyIds* ids = nullptr);

// Returns a text that changes whenever the manifest does.
Result<std::string> ManifestStamp(const std::filesystem::path& store);
// The same while a writer may be at work. A writer removes a manifest once CURRENT names the next
// one.
Result<std::string> AwaitManifestStamp(const std::filesystem::path& store);

// Returns the names of the files: 000012.sst.
std::set<std::string> NamesOf(const std::vector<rocksdb::LiveFileMetaData>& files);
// Returns the names of all table files that the newest manifest names, even if they are missing.
Result<std::set<std::string>> FindTableNames(const std::filesystem::path& store);

// Returns the table files and their bytes. Nobody may change the database meanwhile. It fails
// unless every file exists and has its size.
struct TableFiles {
  std::set<std::string> names;
  uint64_t bytes = 0;
};
Result<TableFiles> FindTableFiles(const std::filesystem::path& store);

// True if keys from `first_key` to `last_key` may be among those from `first` to before `end`. An
// empty `end`: to the last key.
inline bool Overlaps(std::string_view first_key, std::string_view last_key, std::string_view first,
                     std::string_view end) {
  return last_key >= first && (end.empty() || first_key < end);
}

// A table file that is missing, or differs from what the manifest says, or has a block that cannot
// be read.
struct LostTable {
  std::string family;
  std::string file;  // its name in `db`: 000012.sst
  std::string what;  // a sentence that names the file and what is wrong with it
  uint64_t number = 0;
  int level = 0;
  uint32_t family_id = 0;
  std::string first_key, last_key;  // as the manifest has them
};
// Returns every lost table file of the newest state. It does not look at files in `sound`. A file
// that a writer removes meanwhile is not lost. kIOError: this process may not read one, or lacks
// what it takes.
Result<std::vector<LostTable>> FindLostTables(const std::filesystem::path& store,
                                              const Families& families,
                                              const std::set<std::string>& sound = {});
Result<std::vector<LostTable>> FindLostTables(const std::filesystem::path& store);

// Opens a table file. It tries again if the disk fails, because an error that passes is no damage:
// a repair would leave the file out.
rocksdb::Status OpenTable(const std::filesystem::path& file,
                          std::unique_ptr<rocksdb::SstFileReader>* reader);

// Reads a whole table file, and tries again if the disk fails. kCorruption unless all its blocks
// have their checksums.
Status VerifyTableFile(const std::filesystem::path& file);

}  // namespace varve::internal
