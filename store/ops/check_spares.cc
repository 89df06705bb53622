// SPDX-License-Identifier: Apache-2.0
#include "store/ops/check_spares.h"

#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>

#include "base/util.h"
#include "store/db/current_copy.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/db/spare_files.h"
#include "store/format/format_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// A writer may stand between a write of a file and that of its copy.
constexpr int kMaxLooks = 3;
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

constexpr char kUntil[] = " The next program that opens the store for writing writes it anew.";

std::string NoteWarning(const fs::path& store, const std::string& what) {
  return (store / kManifestNoteName).string() + " " + what +
         ". Without it only the copy in spare/ tells when a manifest has lost its end." + kUntil;
}

std::string CopyWarning(const fs::path& copy, const fs::path& of, const std::string& what) {
  return copy.string() + " " + what + ". Without it nothing can take the place of " + of.string() +
         " if that is lost, but a backup." + kUntil;
}

// `whole`: bytes that the copy must begin with.
Status CompareCopy(const fs::path& copy, const fs::path& of, std::string_view whole,
                   std::vector<std::string>* warnings) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(copy, error);
  const Result<std::string> copied = ReadSmallFile(copy, error ? whole.size() : bytes);
  if (IsShortage(copied.status())) return copied.status();
  if (!copied.ok()) {
    const bool is_missing = copied.status().code() == StatusCode::kNotFound;
    warnings->push_back(CopyWarning(
        copy, of, is_missing ? "is missing" : "cannot be read: " + copied.status().message()));
  } else if (!copied->starts_with(whole)) {
    warnings->push_back(CopyWarning(copy, of, "does not have the bytes of " + of.string()));
  }
  return Status::Ok();
}

Result<std::vector<std::string>> FindOnce(const fs::path& store) {
  std::vector<std::string> warnings;
  // What cannot be read here is an error of the check already, or of opening the store.
  const auto text = ReadManifestText(store);
  if (text.has_value()) {
    const std::string manifest = text->current.substr(0, text->current.size() - 1);
    VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
    if (!note.has_value()) {
      warnings.push_back(NoteWarning(store, "is missing or cannot be read"));
    } else if (note->manifest != manifest) {
      warnings.push_back(NoteWarning(
          store, "is about " + note->manifest + ", expected " + manifest + " as in CURRENT"));
    }
    const std::string_view records(text->log.data(),
                                   EndOfLogRecords(text->log, LogChecksums::kCompare));
    const fs::path of = store / "db" / manifest, current = store / "db" / "CURRENT";
    VARVE_RETURN_IF_ERROR(CompareCopy(SpareOfManifest(of), of, records, &warnings));
    VARVE_ASSIGN_OR_RETURN(const std::string named, ReadCurrentCopy(store));
    if (named != manifest) {
      warnings.push_back(CopyWarning(
          SpareFolder(store) / "CURRENT", current,
          named.empty() ? "is missing or cannot be read" : "names " + named + ", not " + manifest));
    }
  }
  constexpr size_t kMaxFormatBytes = 4096;
  const fs::path of = store / kFormatFileName;
  const Result<std::string> format = ReadSmallFile(of, kMaxFormatBytes);
  if (IsShortage(format.status())) return format.status();
  if (format.ok()) {
    VARVE_RETURN_IF_ERROR(
        CompareCopy(SpareFolder(store) / kFormatFileName, of, *format, &warnings));
  }
  return warnings;
}

bool IsUnopenedCopy(const fs::path& store) {
  std::error_code ignored;
  return fs::exists(store / "BACKUP", ignored) && !fs::exists(store / kManifestNoteName, ignored);
}

}  // namespace

Result<std::vector<std::string>> FindSpareWarnings(const fs::path& store) {
  std::vector<std::string> warnings;
  if (IsUnopenedCopy(store)) {
    VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
    if (note.has_value()) return warnings;
    warnings.push_back((store / "BACKUP").string() +
                       " does not say how long the manifest of this copy is. Without it nothing "
                       "tells when the manifest has lost its end, and no backup goes into this "
                       "copy. Make a new backup in another folder");
    return warnings;
  }
  for (int attempt = 1;; ++attempt) {
    VARVE_ASSIGN_OR_RETURN(warnings, FindOnce(store));
    if (warnings.empty() || attempt == kMaxLooks) return warnings;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace varve::internal
