// SPDX-License-Identifier: Apache-2.0
//
// The destination of a backup or a pull: a folder with a copy of a database, which stays as it was
// until one rename makes it the new state (backup.cc says in which order). Thread rule: one thread.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "store/format/format_file.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal {

inline constexpr std::string_view kManifestPrefix = "MANIFEST-";

// Returns the name of the manifest in use. `db` is the folder of the database.
Result<std::string> ReadCurrent(const std::filesystem::path& db);

// The content of BACKUP in a copy's folder. It names the store of which this is a copy, and the
// manifests that a backup left as the current one. There are two while it is being replaced.
struct CopyMarker {
  std::string store_id;
  std::map<std::string, uint64_t> manifests;  // name -> bytes

  std::string ToText() const;
  static Result<CopyMarker> Parse(std::string_view text, const std::filesystem::path& path);
};

class DatabaseCopy {
 public:
  explicit DatabaseCopy(std::filesystem::path destination)
      : destination_(std::move(destination)), db_(destination_ / "db") {}

  const std::filesystem::path& destination() const { return destination_; }
  const std::filesystem::path& db() const { return db_; }
  const std::filesystem::path& staging() const { return staging_; }

  // Makes the folder, which must be new or empty, or a copy of the store with this format.
  Status Prepare(const FormatFile& format);
  // A writer that opens the copy makes a manifest of its own. Replacing that manifest would lose
  // the writer's steps, so that is an error. Returns CURRENT or the manifest of an earlier copy if
  // it is lost or damaged, and empty otherwise. The new state needs neither.
  Result<std::filesystem::path> CheckUntouched() const;
  // Returns a name for the manifest that is `source` elsewhere. No manifest of this copy had it.
  std::string NewManifestName(std::string_view source) const;
  // Makes a store of links whose CURRENT names the manifest. Tables in `aside` are links to the
  // file of that name and the ending .tmp.
  Status Stage(const std::string& manifest, const std::set<std::string>& aside = {}) const;
  // Opens what was staged, and checks it. `what` names the copy. kCorruption: it is damaged.
  Result<CheckReport> CheckStaged(bool read_data, const std::string& what) const;
  // The commit.
  Status Publish(const std::string& manifest);
  // Removes tables and manifests that the new state does not need, and what was staged.
  void RemoveLeftovers(const std::set<std::string>& tables, const std::string& manifest) const;

 private:
  const std::filesystem::path destination_;
  const std::filesystem::path db_;
  const std::filesystem::path staging_ = destination_ / "staging";
  FormatFile format_;
  CopyMarker marker_;
};

}  // namespace varve::internal
