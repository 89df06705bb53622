// SPDX-License-Identifier: Apache-2.0
//
// spare/, a folder of a store with copies of the files without which no table file can be used:
// FORMAT and the manifest. Only a repair reads them, when the file itself is lost or damaged.
//
// The copy of a manifest is written beside it, after it, and is not synced. So it costs no wait. A
// power cut may leave a copy that is shorter or torn. Its records have checksums, and SYNCED says
// how long it must be. A copy that cannot be written is removed. A store without copies works as
// one with them does. Thread-safe, but for SpareFile.
#pragma once

#include <filesystem>
#include <string_view>

#include "store/format/format_file.h"
#include "varve/status.h"

namespace varve::internal {

// Returns the folder of the copies. ReadFormatFile reads the FORMAT in it.
std::filesystem::path SpareFolder(const std::filesystem::path& store);
// `manifest` lies in db/ of a store.
std::filesystem::path SpareOfManifest(const std::filesystem::path& manifest);
// Removes the copy of a file of db/.
void RemoveSpare(const std::filesystem::path& file);

// kCorruption: FORMAT and its copy are of two stores, so one of them does not belong here. `format`
// is what FORMAT says.
Status CompareFormatWithCopy(const std::filesystem::path& store, const FormatFile& format);

// Copies FORMAT unless there is a copy. Removes copies of manifests that are gone.
void TidySpareFiles(const std::filesystem::path& store);

// A copy that is being written. One thread at a time.
class SpareFile {
 public:
  explicit SpareFile(std::filesystem::path path);
  SpareFile(const SpareFile&) = delete;
  SpareFile& operator=(const SpareFile&) = delete;
  ~SpareFile();

  void Append(std::string_view bytes);

 private:
  void GiveUp();

  const std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace varve::internal
