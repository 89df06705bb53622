// SPDX-License-Identifier: Apache-2.0
#include "store/db/manifest_note.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/util.h"
#include "store/db/current_copy.h"
#include "store/db/manifest_log.h"
#include "store/db/spare_files.h"
#include "store/format/fixed_file.h"
#include "store/format/format_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// docs/format.md, "SYNCED".
constexpr std::string_view kMagic = "varvem\n\x1a";
constexpr uint32_t kVersion = 1;
constexpr size_t kNumFields = 2;  // number of the manifest, bytes
constexpr std::string_view kPrefix = "MANIFEST-";

std::optional<uint64_t> NumberOf(std::string_view manifest) {
  uint64_t number = 0;
  if (!manifest.starts_with(kPrefix)) return std::nullopt;
  manifest.remove_prefix(kPrefix.size());
  const auto [end, error] =
      std::from_chars(manifest.data(), manifest.data() + manifest.size(), number);
  if (error != std::errc() || end != manifest.data() + manifest.size()) return std::nullopt;
  return number;
}

// A copy that no writer has opened has no SYNCED, but BACKUP (docs/format.md), with lines
// "manifest NAME BYTES". They are the manifests that CURRENT may name.
Result<std::optional<NotedManifest>> ReadBackupNote(const fs::path& store) {
  constexpr size_t kMaxBytes = 64 << 10;
  const std::optional<NotedManifest> none;
  const Result<std::string> text = ReadSmallFile(store / "BACKUP", kMaxBytes);
  if (IsShortage(text.status())) return text.status();
  if (!text.ok()) return none;
  const Result<std::string> name = ReadCurrentName(store);
  if (IsShortage(name.status())) return name.status();
  if (!name.ok()) return none;
  const std::string start = "\nmanifest " + *name + " ";
  const size_t at = text->find(start);
  if (at == std::string::npos) return none;
  NotedManifest noted{*name, 0};
  const char* const digits = text->data() + at + start.size();
  const auto [end, error] = std::from_chars(digits, text->data() + text->size(), noted.bytes);
  if (error != std::errc() || end == text->data() + text->size() || *end != '\n') return none;
  return std::optional(std::move(noted));
}

// How a manifest is, beside what a note says of it.
struct ManifestFacts {
  uint64_t size = 0;
  uint64_t readable = 0;  // bytes of whole records, as far as the note goes
};

// Opens the file, so that a network file system asks for its size again.
Result<ManifestFacts> LookAt(const fs::path& file, uint64_t noted) {
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenFileToRead(file));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("look at", file, errno);
  ManifestFacts facts{.size = static_cast<uint64_t>(info.st_size)};
  if (facts.size < noted) return facts;
  VARVE_ASSIGN_OR_RETURN(const std::string log, ReadSmallFile(file, noted));
  // RocksDB compares the checksums, and reports those that differ.
  facts.readable = EndOfLogRecords(log, LogChecksums::kIgnore);
  return facts;
}

// Opening says what else keeps a file from being read.
Status UnlessOpeningSays(const Status& status) {
  return IsShortage(status) ? status : Status::Ok();
}

// Each record comes to the manifest first, and then to the copy. So a manifest that is read after
// its copy is as long. Only a sealed manifest gets a record at its sync, after the copy.
Status CompareWithCopy(const fs::path& store) {
  const Result<std::string> name = ReadCurrentName(store);
  if (!name.ok()) return UnlessOpeningSays(name.status());
  const fs::path manifest = store / "db" / *name, copy = SpareOfManifest(manifest);
  const auto read = [](const fs::path& file) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(file, error);
    return error ? Result<std::string>(std::string()) : ReadSmallFile(file, bytes);
  };
  const Result<std::string> copied = read(copy), log = read(manifest);
  if (!copied.ok()) return UnlessOpeningSays(copied.status());
  if (!log.ok()) return UnlessOpeningSays(log.status());
  const uint64_t end = EndOfLogRecords(*log, LogChecksums::kCompare),
                 copied_end = EndOfLogRecords(*copied, LogChecksums::kCompare);
  if (copied_end <= end || !copied->starts_with(log->substr(0, end))) return Status::Ok();
  const Result<std::string> current = ReadCurrentName(store);
  if (!current.ok()) return UnlessOpeningSays(current.status());
  if (*current != *name) return Status::Ok();  // a writer has removed the manifest meanwhile
  return Status::Corruption(manifest.string() + " can be read up to byte " + std::to_string(end) +
                            ", expected " + std::to_string(copied_end) + " as in its copy " +
                            copy.string() +
                            ": its end is lost, and with it the newest changes of the store. varve "
                            "repair takes the copy. To go on with the older state that is left, "
                            "remove the copy");
}

}  // namespace

ManifestNote::~ManifestNote() {
  if (fd_ >= 0) ::close(fd_);
}

void ManifestNote::Write(std::string_view manifest, uint64_t bytes) {
  const auto number = NumberOf(manifest);
  if (!number.has_value()) return;
  const std::string note = EncodeFixedFile(kMagic, {kVersion, {*number, bytes}});
  const std::lock_guard lock(mutex_);
  // Without FORMAT the store is still being made. A note would say that it was used.
  std::error_code ignored;
  if (fd_ < 0 && !fs::exists(path_.parent_path() / kFormatFileName, ignored)) return;
  if (fd_ < 0) {
    if (fs::is_symlink(fs::symlink_status(path_, ignored))) ::unlink(path_.c_str());
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  }
  if (fd_ >= 0 && ::pwrite(fd_, note.data(), note.size(), 0) == static_cast<ssize_t>(note.size())) {
    const bool is_synced = *number == synced_number_;
    if (!is_synced && ::fdatasync(fd_) == 0 && SyncFolder(path_.parent_path()).ok()) {
      synced_number_ = *number;
    }
    return;
  }
  ::unlink(path_.c_str());
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void NoteNewManifest(const fs::path& store) {
  const Result<std::string> name = ReadCurrentName(store);
  if (!name.ok()) return;
  std::error_code error;
  const uint64_t bytes = fs::file_size(store / "db" / *name, error);
  if (!error) ManifestNote(store).Write(*name, bytes);
}

Result<std::string> ReadCurrentName(const fs::path& store) {
  constexpr size_t kMaxBytes = 256;
  Result<std::string> current = ReadSmallFile(store / "db" / "CURRENT", kMaxBytes);
  if (current.ok()) current->resize(std::min(current->size(), current->find('\n')));
  return current;
}

bool IsManifestName(std::string_view name) { return NumberOf(name).has_value(); }

uint64_t ManifestNumber(std::string_view name) { return NumberOf(name).value_or(0); }

std::string ManifestName(uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%s%06llu", kPrefix.data(),
                static_cast<unsigned long long>(number));
  return name;
}

Result<std::optional<NotedManifest>> ReadManifestNote(const fs::path& store) {
  const Result<FixedFile> note =
      ReadFixedFile(store / kManifestNoteName, kMagic, kVersion, kNumFields);
  if (IsShortage(note.status())) return note.status();
  if (!note.ok() || note->fields.size() != kNumFields) return ReadBackupNote(store);
  return std::optional(NotedManifest{ManifestName(note->fields[0]), note->fields[1]});
}

Status CheckManifestLength(const fs::path& store) {
  VARVE_RETURN_IF_ERROR(CheckCurrentIsNewest(store));
  // The note is read first. The manifest only grows, so it holds what any earlier note says.
  VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
  if (!note.has_value()) return CompareWithCopy(store);
  const Result<std::string> name = ReadCurrentName(store);
  if (!name.ok()) return UnlessOpeningSays(name.status());
  // A new manifest is noted before CURRENT names it, so a note of a later one says nothing.
  if (ManifestNumber(*name) < ManifestNumber(note->manifest)) return Status::Ok();
  if (*name != note->manifest) return CompareWithCopy(store);
  const fs::path manifest = store / "db" / *name;
  const uint64_t noted = note->bytes;
  const Result<ManifestFacts> facts = LookAt(manifest, noted);
  if (!facts.ok()) return UnlessOpeningSays(facts.status());
  if (facts->readable >= noted) return Status::Ok();
  std::error_code error;
  const bool is_backup = !fs::exists(store / kManifestNoteName, error);
  const std::string found =
      facts->size < noted
          ? " has " + std::to_string(facts->size) + " bytes, expected"
          : " cannot be read behind byte " + std::to_string(facts->readable) + ", expected";
  return Status::Corruption(
      manifest.string() + found + " at least " + std::to_string(noted) +
      ": its end is lost, and with it the newest changes of the store. varve repair takes its copy "
      "in spare/, if there is one. Else put the file back, or take the store from a backup. To go "
      "on with the older state that is left, remove " +
      (store / (is_backup ? "BACKUP" : kManifestNoteName)).string() + " and " +
      SpareOfManifest(manifest).string());
}

}  // namespace varve::internal
