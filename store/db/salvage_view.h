// SPDX-License-Identifier: Apache-2.0
//
// A view of a damaged store: a folder that holds the same database without some of its table files.
// It opens as a store does, and shows all records that lie in the other files. The table files in
// it are hard links. The manifest in it is a copy, to which records are appended that take the
// damaged files out (docs/durability.md, "Repair"). Nothing is written to the damaged store. Thread
// rule: any thread. The caller holds the lock of the damaged store (DatabaseLock).
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/db/sealer.h"
#include "store/db/table_files.h"
#include "store/format/format_file.h"
#include "varve/options.h"
#include "varve/result.h"

namespace varve::internal {

// A table file of the newest state that is missing, cut, does not open, or has a damaged block.
struct DamagedTable : LostTable {
  // True: it opens, so that a read fails only where it needs a damaged block.
  bool is_readable = false;
  // True: it may not have its tag, so nothing in it may be read. So is every damaged table of a
  // sealed store: whoever forges one block can damage another.
  bool is_untrusted = false;
};

// Verifies every block of every table file. With a sealer, a file without its tag is damaged, and
// nothing in it can be read.
Result<std::vector<DamagedTable>> FindDamagedTables(const std::filesystem::path& store,
                                                    const Sealer* sealer, const Progress& progress);

// The newest manifest of a store, and what is wrong with the files that should say so.
struct FoundManifest {
  std::string name;                 // MANIFEST-000012
  std::string log;                  // its bytes, or those of its copy in spare/
  std::vector<std::string> damage;  // of CURRENT and of the manifest. Empty = both are sound
  // Why records may be missing at the end of `log`, and with them the newest steps. Empty: SYNCED
  // says how long the manifest was, and `log` is that long.
  std::string doubt;
};
// If SYNCED says nothing of the manifest, a copy that goes on behind the last whole record of the
// manifest shows that the manifest has lost its end. kCorruption: neither the manifest nor its copy
// can be read as far as SYNCED says, or nothing says which manifest is the newest.
Result<FoundManifest> FindManifest(const std::filesystem::path& store);

// Returns the table files in db/ that `named` does not have. A crash leaves such files, and so does
// the loss of the records of a manifest that name them.
Result<std::vector<std::string>> FindUnnamedTables(const std::filesystem::path& store,
                                                   const std::set<std::string>& named);

// Makes a view with all table files of a store, whose CURRENT or manifest may be damaged.
Status MakeViewOfManifest(const std::filesystem::path& store, const FormatFile& format,
                          const FoundManifest& manifest, const std::filesystem::path& view);

// A table file with bytes behind those that the manifest counts. RocksDB reads none of them.
struct LongTable {
  std::string file;    // its name in `db`: 000012.sst
  uint64_t bytes = 0;  // as the manifest says
  std::string what;    // a sentence that names the file and says how long it is
};
Result<std::vector<LongTable>> FindLongTables(const std::filesystem::path& store);
// Replaces the link of a view to such a table by a copy of the bytes that the manifest counts. What
// of them cannot be read is missing in the copy.
Status CutLongTable(const LongTable& table, const std::filesystem::path& store,
                    const std::filesystem::path& view);

// Makes the view in `view`, a new folder on the file system of the store. Every table file that is
// not in `left_out` must open. kFailedPrecondition: files of the store cannot be linked there.
Status MakeSalvageView(const std::filesystem::path& store, const FormatFile& format,
                       std::span<const DamagedTable> left_out, const std::filesystem::path& view);

// Returns a manifest with the records appended that take the table files out of it. What comes
// after the last whole change, as a crash may leave it, is cut off.
std::string WithoutTables(std::string manifest, std::span<const LostTable> left_out);

}  // namespace varve::internal
