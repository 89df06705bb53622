// SPDX-License-Identifier: Apache-2.0
//
// SYNCED, a small file of the store. It says how many bytes of which manifest have been synced. A
// manifest that has lost its end reads like an earlier manifest, so the newest steps would
// disappear without an error. With the note, a manifest that is shorter than what was synced is
// damage, and so is one in which RocksDB would end before that.
//
// The note is written after the sync, so it never says more than what is on the disk. The first
// note about a manifest is synced, and later ones are not. So a power cut may leave an older note,
// which says less. What lies behind it may be torn by the cut, and is then no damage: see
// manifest_file_system.h. A note about another manifest than the current one is ignored. Without a
// note, a manifest that ends before its copy in spare/ is damage. Stores with neither are read as
// they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::internal {

inline constexpr std::string_view kManifestNoteName = "SYNCED";

// The writer's side. Thread-safe.
class ManifestNote {
 public:
  explicit ManifestNote(const std::filesystem::path& store) : path_(store / kManifestNoteName) {}
  ManifestNote(const ManifestNote&) = delete;
  ManifestNote& operator=(const ManifestNote&) = delete;
  ~ManifestNote();

  // Notes that `bytes` of this manifest have been synced. If the note cannot be written, the old
  // one is removed.
  void Write(std::string_view manifest, uint64_t bytes);

 private:
  const std::filesystem::path path_;
  std::mutex mutex_;
  int fd_ = -1;                 // guarded by mutex_
  uint64_t synced_number_ = 0;  // of the manifest whose note has been synced. Guarded by mutex_
};

// Notes the manifest of a store that is new, all of which is synced.
void NoteNewManifest(const std::filesystem::path& store);

// Returns what CURRENT says, which may not be the name of a manifest.
Result<std::string> ReadCurrentName(const std::filesystem::path& store);

bool IsManifestName(std::string_view name);
// 12 of MANIFEST-000012. Later manifests have higher numbers. 0: it is no such name.
uint64_t ManifestNumber(std::string_view name);
std::string ManifestName(uint64_t number);

// What the note says, or BACKUP of a copy that no writer has opened. nullopt = there is none that
// can be read. An error: this process lacks what it takes to read one (IsShortage).
struct NotedManifest {
  std::string manifest;  // MANIFEST-000012
  uint64_t bytes = 0;
};
Result<std::optional<NotedManifest>> ReadManifestNote(const std::filesystem::path& store);

// kCorruption: the manifest that CURRENT names is shorter than the note says, or ends earlier for
// RocksDB, or there is no note and its copy goes on, or CURRENT is older than its copy. Any thread
// and any process may call it, also while a writer works.
Status CheckManifestLength(const std::filesystem::path& store);

}  // namespace varve::internal
