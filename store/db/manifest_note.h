// SPDX-License-Identifier: Apache-2.0
//
// SYNCED, a small file of the store: how many bytes of which manifest have been synced. A manifest
// without its end reads like the manifest of an earlier time, so the newest steps would be gone
// without a word. With the note, a manifest that is shorter than what was synced is damage.
//
// The note is written after the sync, so it never says more than what is on the disk. It is not
// synced itself: a power cut may leave an older note, which says less, or none. A note of another
// manifest than the current one says nothing. Stores without a note are read as they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "varve/status.h"

namespace varve {

inline constexpr std::string_view kManifestNoteName = "SYNCED";

// The writer's side. Thread-safe.
class ManifestNote {
 public:
  explicit ManifestNote(std::filesystem::path store) : path_(store / kManifestNoteName) {}
  ManifestNote(const ManifestNote&) = delete;
  ManifestNote& operator=(const ManifestNote&) = delete;
  ~ManifestNote();

  // `bytes` of this manifest have been synced. Where the note cannot be written, the old one goes.
  void Write(std::string_view manifest, uint64_t bytes);

 private:
  const std::filesystem::path path_;
  std::mutex mutex_;
  int fd_ = -1;  // guarded by mutex_
};

// kCorruption: the manifest that CURRENT names in the store is shorter than the note says. Any
// thread and any process, also while a writer works.
Status CheckManifestLength(const std::filesystem::path& store);

}  // namespace varve
