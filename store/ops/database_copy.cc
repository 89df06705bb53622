// SPDX-License-Identifier: Apache-2.0
#include "store/ops/database_copy.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/util.h"
#include "store/db/manifest_note.h"
#include "store/db/sealed_manifest.h"
#include "store/db/store_impl.h"
#include "store/db/table_files.h"
#include "store/format/outside_stores.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkerName = "BACKUP";
constexpr std::string_view kMarkerTitle = "varve backup 1";
constexpr std::string_view kAside = ".tmp";  // a table under this name is not yet one of the copy

}  // namespace

Result<std::string> ReadCurrent(const fs::path& db) {
  constexpr size_t kMaxBytes = 256;
  VARVE_ASSIGN_OR_RETURN(std::string name, ReadSmallFile(db / "CURRENT", kMaxBytes));
  if (name.ends_with('\n')) name.pop_back();
  if (name.starts_with(kManifestPrefix) && name.find('/') == std::string::npos) return name;
  return Status::Corruption((db / "CURRENT").string() + " names no manifest");
}

std::string CopyMarker::ToText() const {
  std::string text = std::string(kMarkerTitle) + "\nstore " + store_id + "\n";
  for (const auto& [name, bytes] : manifests) {
    text += "manifest " + name + " " + std::to_string(bytes) + "\n";
  }
  return text;
}

Result<CopyMarker> CopyMarker::Parse(std::string_view text, const fs::path& path) {
  const Status bad = Status::Corruption(path.string() + " does not describe a backup");
  CopyMarker marker;
  for (int line = 0; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return bad;
    const std::string_view words = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == 0) {
      if (words != kMarkerTitle) return bad;
    } else if (line == 1) {
      if (!words.starts_with("store ")) return bad;
      marker.store_id = words.substr(6);
    } else {
      const size_t space = words.rfind(' ');
      uint64_t bytes = 0;
      if (!words.starts_with("manifest ") || space < 10) return bad;
      const auto [last, error] =
          std::from_chars(words.data() + space + 1, words.data() + words.size(), bytes);
      if (error != std::errc() || last != words.data() + words.size()) return bad;
      marker.manifests.emplace(words.substr(9, space - 9), bytes);
    }
  }
  if (marker.store_id.empty()) return bad;
  return marker;
}

Status DatabaseCopy::Prepare(const FormatFile& format) {
  format_ = format;
  std::error_code error;
  VARVE_RETURN_IF_ERROR(CheckIsOutsideStores(destination_));
  VARVE_RETURN_IF_ERROR(MakeDurableFolders(destination_));
  marker_.store_id = ToHex(format_.store_id);
  const fs::path marker = destination_ / kMarkerName;
  // It is left from a first backup that failed at its first write.
  fs::remove(destination_ / (std::string(kMarkerName) + ".tmp"), error);
  if (fs::exists(marker, error)) {
    constexpr size_t kMaxBytes = 64 << 10;
    VARVE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(marker, kMaxBytes));
    VARVE_ASSIGN_OR_RETURN(const CopyMarker found, CopyMarker::Parse(text, marker));
    if (found.store_id != marker_.store_id) {
      return Status::FailedPrecondition(destination_.string() +
                                        " holds the copy of another store, " + found.store_id +
                                        ", not of " + marker_.store_id);
    }
    marker_ = found;
  } else if (fs::is_empty(destination_, error)) {
    VARVE_RETURN_IF_ERROR(WriteFileAtomically(marker, marker_.ToText()));
  } else {
    return Status::FailedPrecondition(destination_.string() + " is not empty and no backup");
  }
  VARVE_RETURN_IF_ERROR(CheckDbIsNoLink(destination_));
  fs::create_directory(db_, error);
  if (error) return Status::IOError("cannot make " + db_.string() + ": " + error.message());
  return SyncFolder(destination_);
}

Result<fs::path> DatabaseCopy::CheckUntouched() const {
  const auto touched = [this](const std::string& because) {
    return Status::FailedPrecondition(
        destination_.string() + " was written to after the last backup or pull, because " +
        because + "; its own steps would be lost. Take another folder");
  };
  std::error_code error;
  for (const char* const name : {"SYNCED", "spare", "incoming", "RESERVE"}) {
    if (fs::exists(fs::symlink_status(destination_ / name, error))) {
      return touched(std::string(name) + " of a writer is there");
    }
  }
  const Result<std::string> current = ReadCurrent(db_);
  if (current.status().code() == StatusCode::kIOError) return current.status();
  if (!current.ok()) {
    const bool is_published = fs::exists(destination_ / kFormatFileName, error);
    return is_published ? db_ / "CURRENT" : fs::path();
  }
  const auto known = marker_.manifests.find(*current);
  if (known == marker_.manifests.end()) {
    return touched("CURRENT names " + *current + ", which BACKUP does not name");
  }
  const fs::path manifest = db_ / *current;
  const uint64_t bytes = fs::file_size(manifest, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    return Status::IOError("cannot look at " + manifest.string() + ": " + error.message());
  }
  return error || bytes != known->second ? manifest : fs::path();
}

std::string DatabaseCopy::NewManifestName(std::string_view source) const {
  uint64_t number = ManifestNumber(source);
  for (const auto& [name, bytes] : marker_.manifests) {
    number = std::max(number, ManifestNumber(name) + 1);
  }
  char name[32];
  std::snprintf(name, sizeof(name), "%s%06llu", kManifestPrefix.data(),
                static_cast<unsigned long long>(number));
  return name;
}

Status DatabaseCopy::Stage(const std::string& manifest, const std::set<std::string>& aside) const {
  std::error_code error;
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(staging_));
  // The folder itself stays: it says that a first copy was cut short (IsUsed, format_file.cc).
  fs::create_directories(staging_, error);
  for (const fs::directory_entry& entry : EntriesOf(staging_, &error)) {
    if (error) break;
    fs::remove_all(entry.path(), error);
  }
  if (!error) fs::create_directory(staging_ / "db", error);
  for (const fs::directory_entry& entry : EntriesOf(db_, &error)) {
    const std::string name = entry.path().filename();
    if (entry.path().extension() != ".sst" && name != manifest) continue;
    if (aside.contains(name)) continue;
    fs::create_symlink(fs::path("../../db") / name, staging_ / "db" / name, error);
    if (error) break;
  }
  for (const std::string& name : aside) {
    if (error) break;
    fs::create_symlink("../../db/" + name + std::string(kAside), staging_ / "db" / name, error);
  }
  if (error) return Status::IOError("cannot make " + staging_.string() + ": " + error.message());
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(staging_ / "db" / "CURRENT", manifest + "\n"));
  return WriteFormatFile(staging_, format_);
}

Result<CheckReport> DatabaseCopy::CheckStaged(bool read_data, const std::string& what) const {
  VARVE_ASSIGN_OR_RETURN(const auto staged,
                         StoreImpl::OpenPath(staging_, {}, /*for_writing=*/false));
  VARVE_ASSIGN_OR_RETURN(CheckReport check, staged->Check({.read_data = read_data}));
  if (check.ok()) return check;
  return Status::Corruption(what + " is damaged: " + check.errors[0]);
}

Status DatabaseCopy::Publish(const std::string& manifest) {
  std::error_code error;
  std::map<std::string, uint64_t> earlier;
  const Result<std::string> current = ReadCurrent(db_);
  // If BACKUP lost the manifest that CURRENT still names, nothing could be copied here again.
  if (current.status().code() == StatusCode::kIOError) return current.status();
  if (current.ok() && marker_.manifests.contains(*current)) {
    earlier.emplace(*current, marker_.manifests[*current]);
  }
  marker_.manifests = std::move(earlier);
  marker_.manifests.emplace(manifest, fs::file_size(db_ / manifest, error));
  if (error) return Status::IOError("cannot look at " + manifest + ": " + error.message());
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(destination_ / kMarkerName, marker_.ToText()));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(db_ / "CURRENT", manifest + "\n"));
  return WriteFormatFile(destination_, format_);
}

// The next call removes what stays after an error.
void DatabaseCopy::RemoveLeftovers(const std::set<std::string>& tables,
                                   const std::string& manifest) const {
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  for (const fs::directory_entry& entry : EntriesOf(db_, &ignored)) {
    const std::string name = entry.path().filename();
    const bool unused_table = entry.path().extension() == ".sst" && !tables.contains(name);
    const bool unused_manifest = name.starts_with(kManifestPrefix) && name != manifest;
    if (unused_table || unused_manifest || entry.path().extension() == ".tmp") {
      fs::remove(entry.path(), ignored);
    }
  }
  if (format_.is_sealed()) RemoveUnusedSeals(destination_);
}

}  // namespace varve::internal
