// SPDX-License-Identifier: Apache-2.0
//
// A backup is a copy of the database's files. Table files never change, so a copy is brought up to
// date with the table files that it lacks. The manifest only grows, and every prefix of it is an
// earlier whole state of the store. Nothing that the earlier copy needs changes before everything
// new has passed its checks. This order makes it so:
//   1. table files that the copy lacks are copied, synced, and read back. Each gets its name, which
//      no manifest of the copy knows.
//      a table file that the earlier copy has too, but with other bytes, is damage of one side. It
//      is copied aside, as NAME.sst.tmp, and so is a file that the earlier copy has lost.
//   2. the manifest is copied under a new name.
//   3. the new state is opened in a staging folder of links, and checked.
//      every block is verified of the table files that are new in the copy or lie aside: what was
//      damaged before it was copied is no part of a verified copy.
//      of a file that lies aside, both sides are verified. If the store's is damaged, or if both
//      are sound, the backup ends with an error. It goes on if the copy's is damaged or lost.
//      nothing of the earlier copy has changed so far.
//   4. sound files that lie aside replace the damaged ones of the earlier copy, by renames. The
//      report names them.
//   5. CURRENT is replaced by one rename, and names the new manifest: this is the commit.
//   6. files that only the earlier state needed are removed.
// Beside a live writer a table file may vanish after the manifest was copied and before the file
// is. Opening notices that, and the backup starts again with the files that are there by then.
#include "varve/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/guarded.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/database_lock.h"
#include "store/db/manifest_note.h"
#include "store/db/sealed_manifest.h"
#include "store/db/table_files.h"
#include "store/format/group_file.h"
#include "store/ops/database_copy.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr int kMaxAttempts = 20;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(50);
constexpr std::string_view kAside = ".tmp";  // a table under this name is not yet one of the copy

// Reads up to a block. It reads less only at the end of the file. kAborted: the caller of the
// backup wants it to end.
Result<size_t> ReadBlock(int fd, std::byte* out, const fs::path& path) {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  size_t size = 0;
  while (size < kBlockBytes) {
    const ssize_t n = ::read(fd, out + size, kBlockBytes - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("read", path, errno);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  return size;
}

// What a file and its copy must have in common.
struct FileFacts {
  uint64_t bytes = 0;
  struct timespec modified {};
  bool operator==(const FileFacts& other) const {
    return bytes == other.bytes && modified.tv_sec == other.modified.tv_sec &&
           modified.tv_nsec == other.modified.tv_nsec;
  }
};

FileFacts FactsOf(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_size), info.st_mtim};
}

Status Missing(const fs::path& file) {
  return Status::Corruption(file.string() +
                            " is missing, without which no file of the database "
                            "can be found, and no copy was made");
}

class Backup {
 public:
  Backup(fs::path store, fs::path destination, const BackupOptions& options)
      : from_(store / "db"),
        store_(std::move(store)),
        copy_(std::move(destination)),
        options_(options) {}

  Result<BackupReport> Run();

 private:
  Result<std::pair<std::string, FileDescriptor>> OpenManifest() const;
  Status CopyAll();
  Result<std::vector<std::string>> ListMissing();
  Result<std::optional<FileDescriptor>> OpenTable(const std::string& name) const;
  bool IsEarlier(const std::string& name) const;
  fs::path CopyOf(const std::string& name) const;
  Status CopyTable(const std::string& name, const FileDescriptor& source);
  Result<bool> HoldsTheSame(const std::string& name, const FileDescriptor& source) const;
  Status CopyFile(const std::string& name, const FileDescriptor& source);
  Status VerifyFile(const fs::path& path, std::span<const Digest> blocks) const;
  Status CopyManifest(const FileDescriptor& source, uint64_t bytes);
  Status CopyNewestManifest();
  Status CopySealedManifest();
  Status CheckSource(int attempt) const;
  Status CheckStaged();
  Status VerifyStaged() const;
  Status VerifyTables() const;
  Status VerifyTable(const std::string& name) const;
  Status Mend();

  const fs::path from_;  // the database that is copied
  const fs::path store_;
  DatabaseCopy copy_;
  const fs::path to_ = copy_.db();
  const BackupOptions& options_;
  FormatFile format_;
  // The tables of the earlier copy. Without a value nobody knows, and each table may be one.
  std::optional<std::set<std::string>> earlier_;
  std::set<std::string> copied_;    // by this backup
  std::set<std::string> aside_;     // of these, what lies beside a table of the earlier copy
  std::set<std::string> compared_;  // these were the same in the copy, but for their times
  std::string manifest_;            // of the new state, in the copy
  TableFiles tables_;               // of the new state
  // What was read of a file, and of another one. One thread.
  mutable std::vector<std::byte> block_ = std::vector<std::byte>(kBlockBytes);
  mutable std::vector<std::byte> other_ = std::vector<std::byte>(kBlockBytes);
  uint64_t wanted_bytes_ = 0;  // of all files that this backup copies, as far as it knows
  BackupReport report_;
};

Result<BackupReport> Backup::Run() {
  const auto started = std::chrono::steady_clock::now();
  VARVE_ASSIGN_OR_RETURN(format_, ReadFormatFile(store_, /*for_writing=*/false));
  std::error_code ignored;
  if (fs::equivalent(store_, copy_.destination(), ignored)) {
    return Status::InvalidArgument("a store cannot be backed up into itself: " + store_.string());
  }
  VARVE_RETURN_IF_ERROR(copy_.Prepare(format_));
  VARVE_ASSIGN_OR_RETURN(const auto lock, DatabaseLock::Take(copy_.destination()));
  VARVE_ASSIGN_OR_RETURN(const fs::path damaged, copy_.CheckUntouched());
  if (damaged.empty()) {  // else nobody knows the tables of the earlier copy
    if (auto names = FindTableNames(copy_.destination()); names.ok()) earlier_ = *std::move(names);
  }
  for (int attempt = 1;; ++attempt) {
    VARVE_RETURN_IF_ERROR(CopyAll());
    Result<TableFiles> tables = FindTableFiles(copy_.staging());
    if (tables.ok()) {
      tables_ = *std::move(tables);
      break;
    }
    if (IsShortage(tables.status())) {
      VARVE_RETURN_IF_ERROR(CheckDescriptorsLeft(copy_.staging()));
      return tables.status();
    }
    VARVE_RETURN_IF_ERROR(CheckSource(attempt));
    if (attempt == kMaxAttempts) {
      VARVE_RETURN_IF_ERROR(VerifyStaged());
      return tables.status().WithContext("in " + std::to_string(attempt) + " attempts no copy of " +
                                         store_.string() + " was whole, because it is damaged or " +
                                         "changes too fast");
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  VARVE_RETURN_IF_ERROR(VerifyTables());
  VARVE_RETURN_IF_ERROR(CheckStaged());
  VARVE_RETURN_IF_ERROR(Mend());
  VARVE_RETURN_IF_ERROR(copy_.Publish(manifest_));
  if (!damaged.empty()) report_.mended_files.push_back(damaged.string());
  copy_.RemoveLeftovers(tables_.names, manifest_);
  report_.elapsed = std::chrono::steady_clock::now() - started;
  return report_;
}

// Returns the manifest in use, with its name. The writer may replace it after this looks and before
// it opens it.
Result<std::pair<std::string, FileDescriptor>> Backup::OpenManifest() const {
  VARVE_RETURN_IF_ERROR(CheckManifestLength(from_.parent_path()));
  for (int attempt = 1;; ++attempt) {
    Result<std::string> current = ReadCurrent(from_);
    if (current.status().code() == StatusCode::kNotFound) return Missing(from_ / "CURRENT");
    VARVE_ASSIGN_OR_RETURN(std::string name, std::move(current));
    Result<FileDescriptor> file = OpenFileToRead(from_ / name);
    if (file.ok()) return std::pair(std::move(name), *std::move(file));
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    if (attempt == kMaxAttempts) return Missing(from_ / name);
  }
}

// Copies the files that have existed for long first, one by one, because there may be more than
// this process may have open. After that only a few new ones are left. All of these can be opened
// right after the manifest is read, so none can vanish before it is copied.
Status Backup::CopyAll() {
  VARVE_ASSIGN_OR_RETURN(const auto first, ListMissing());
  for (const std::string& name : first) {
    VARVE_ASSIGN_OR_RETURN(const auto file, OpenTable(name));
    if (file.has_value()) VARVE_RETURN_IF_ERROR(CopyTable(name, *file));
  }
  VARVE_RETURN_IF_ERROR(format_.is_sealed() ? CopySealedManifest() : CopyNewestManifest());
  VARVE_ASSIGN_OR_RETURN(const auto rest, ListMissing());
  std::vector<std::pair<std::string, FileDescriptor>> open;
  for (const std::string& table : rest) {
    VARVE_ASSIGN_OR_RETURN(auto file, OpenTable(table));
    if (file.has_value()) open.emplace_back(table, *std::move(file));
  }
  for (const auto& [table, file] : open) VARVE_RETURN_IF_ERROR(CopyTable(table, file));
  VARVE_RETURN_IF_ERROR(SyncFolder(to_));
  return copy_.Stage(manifest_, aside_);
}

// The table files that the copy lacks. Sets `wanted_bytes_`.
Result<std::vector<std::string>> Backup::ListMissing() {
  std::vector<std::string> missing;
  wanted_bytes_ = report_.copied_bytes;
  std::error_code error;
  for (const fs::directory_entry& entry : EntriesOf(from_, &error)) {
    if (entry.path().extension() != ".sst") continue;
    struct stat here {
    }, there{};
    if (::stat(entry.path().c_str(), &here) != 0) continue;
    const std::string name = entry.path().filename();
    if (::stat(CopyOf(name).c_str(), &there) == 0 && FactsOf(here) == FactsOf(there)) continue;
    missing.push_back(name);
    wanted_bytes_ += static_cast<uint64_t>(here.st_size);
  }
  if (error) return Status::IOError("cannot list " + from_.string() + ": " + error.message());
  return missing;
}

// Returns nullopt when it has vanished.
Result<std::optional<FileDescriptor>> Backup::OpenTable(const std::string& name) const {
  Result<FileDescriptor> file = OpenFileToRead(from_ / name);
  if (file.ok()) return std::optional<FileDescriptor>(*std::move(file));
  if (file.status().code() == StatusCode::kNotFound) return std::optional<FileDescriptor>();
  return file.status();
}

// Returns true if the earlier copy needs a table of this name, so that it must stay as it is.
bool Backup::IsEarlier(const std::string& name) const {
  std::error_code ignored;
  return earlier_.has_value() ? earlier_->contains(name) : fs::exists(to_ / name, ignored);
}

// Where the table of the new state lies.
fs::path Backup::CopyOf(const std::string& name) const {
  return to_ / (aside_.contains(name) ? name + std::string(kAside) : name);
}

Status Backup::CopyTable(const std::string& name, const FileDescriptor& source) {
  if (IsEarlier(name) && !copied_.contains(name)) {
    VARVE_ASSIGN_OR_RETURN(const bool same, HoldsTheSame(name, source));
    if (same) {
      compared_.insert(name);
      return Status::Ok();
    }
    aside_.insert(name);
  }
  VARVE_RETURN_IF_ERROR(CopyFile(name, source));
  copied_.insert(name);
  if (aside_.contains(name)) return Status::Ok();
  const fs::path temporary = to_ / (name + std::string(kAside));
  if (::rename(temporary.c_str(), (to_ / name).c_str()) == 0) return Status::Ok();
  return ErrnoStatus("rename", temporary, errno);
}

// Returns true if the copy has this table already, perhaps with another time.
Result<bool> Backup::HoldsTheSame(const std::string& name, const FileDescriptor& source) const {
  const fs::path path = to_ / name;
  const Result<FileDescriptor> copy = OpenFileToRead(path);
  if (copy.status().code() == StatusCode::kNotFound) return false;
  VARVE_RETURN_IF_ERROR(copy.status());
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const size_t n, ReadBlock(source.get(), block_.data(), from_ / name));
    const Result<size_t> m = ReadBlock(copy->get(), other_.data(), path);
    const bool same =
        m.ok() && *m == n && std::equal(block_.data(), block_.data() + n, other_.data());
    if (!same && ::lseek(source.get(), 0, SEEK_SET) != 0) {
      return ErrnoStatus("seek in", from_ / name, errno);
    }
    if (!same) return false;  // what cannot be read is damaged, too
    if (n == 0) break;
  }
  return true;
}

// Makes NAME.sst.tmp.
Status Backup::CopyFile(const std::string& name, const FileDescriptor& source) {
  const fs::path temporary = to_ / (name + std::string(kAside));
  struct stat info {};
  if (::fstat(source.get(), &info) != 0) return ErrnoStatus("look at", from_ / name, errno);
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor target, ReplaceFile(temporary));
  std::vector<Digest> digests;
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const size_t n, ReadBlock(source.get(), block_.data(), from_ / name));
    if (n == 0) break;
    const std::span<const std::byte> bytes(block_.data(), n);
    digests.push_back(ComputeDigest(format_.digest_seed, bytes));
    VARVE_RETURN_IF_ERROR(WriteAll(target.get(), bytes, temporary));
    report_.copied_bytes += n;
    if (options_.progress) options_.progress(report_.copied_bytes, wanted_bytes_);
  }
  const struct timespec times[2] = {info.st_mtim, info.st_mtim};
  if (::futimens(target.get(), times) != 0) return ErrnoStatus("set the time of", temporary, errno);
  if (::fsync(target.get()) != 0) return ErrnoStatus("sync", temporary, errno);
  ::posix_fadvise(target.get(), 0, 0, POSIX_FADV_DONTNEED);  // so that it is read from the disk
  VARVE_RETURN_IF_ERROR(VerifyFile(temporary, digests));
  ++report_.copied_files;
  return Status::Ok();
}

Status Backup::VerifyFile(const fs::path& path, std::span<const Digest> blocks) const {
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFileToRead(path));
  for (const Digest& expected : blocks) {
    VARVE_ASSIGN_OR_RETURN(const size_t n, ReadBlock(file.get(), block_.data(), path));
    if (ComputeDigest(format_.digest_seed, {block_.data(), n}) != expected) {
      return Status::Corruption(path.string() + " does not hold what was written to it");
    }
  }
  return Status::Ok();
}

Status Backup::CopyNewestManifest() {
  VARVE_ASSIGN_OR_RETURN(const auto current, OpenManifest());
  manifest_ = copy_.NewManifestName(current.first);
  return CopyManifest(current.second, UINT64_MAX);
}

// Copies at most so many bytes.
Status Backup::CopyManifest(const FileDescriptor& source, uint64_t bytes) {
  const fs::path path = to_ / manifest_;
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor target, ReplaceFile(path));
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const size_t read, ReadBlock(source.get(), block_.data(), path));
    const size_t n = std::min<uint64_t>(read, bytes);
    if (n == 0) break;
    VARVE_RETURN_IF_ERROR(WriteAll(target.get(), {block_.data(), n}, path));
    bytes -= n;
  }
  if (::fsync(target.get()) != 0) return ErrnoStatus("sync", path, errno);
  return Status::Ok();
}

// The seals are read first. The older of the two is about a part that is in the manifest as a
// whole. The writer may replace the manifest meanwhile, and remove its seal.
Status Backup::CopySealedManifest() {
  for (int attempt = 1; attempt <= kMaxAttempts; ++attempt) {
    VARVE_ASSIGN_OR_RETURN(const auto current, OpenManifest());
    const auto& [name, manifest] = current;
    const auto seals = ReadSeals(SealOfManifest(from_ / name));
    struct stat info {};
    if (::fstat(manifest.get(), &info) != 0) return ErrnoStatus("look at", from_ / name, errno);
    Seal longest;
    for (const Seal& seal : seals.ok() ? *seals : std::vector<Seal>()) {
      const bool is_there = seal.bytes <= static_cast<uint64_t>(info.st_size);
      if (is_there && seal.bytes > longest.bytes) longest = seal;
    }
    if (longest.bytes > 0) {
      manifest_ = copy_.NewManifestName(name);
      VARVE_RETURN_IF_ERROR(CopyManifest(manifest, longest.bytes));
      return SealFile(SealOfManifest(to_ / manifest_)).Write(longest);
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return Status::Corruption(SealFolder(store_).string() +
                            " has no seal of the manifest, and no copy was made. varve check "
                            "--key-file says more");
}

Status Backup::CheckStaged() {
  VARVE_ASSIGN_OR_RETURN(const CheckReport check,
                         copy_.CheckStaged(options_.read_data, "the copy of " + store_.string()));
  report_.num_steps = check.num_steps;
  report_.total_bytes = tables_.bytes;
  return Status::Ok();
}

// The copy is not whole. Finds out whether the store itself is damaged, or cannot be read.
Status Backup::CheckSource(int attempt) const {
  constexpr int kAttemptsToReadManifest = 3;  // the writer may replace it meanwhile
  const auto lost = FindLostTables(store_);
  if (lost.ok() && lost->empty()) return Status::Ok();
  const Status status = lost.ok() ? Status::Corruption(lost->front().what) : lost.status();
  if (status.code() == StatusCode::kNotFound) return Status::Ok();
  if (status.code() != StatusCode::kCorruption) return status;
  const bool is_sure = lost.ok() || attempt >= kAttemptsToReadManifest;
  if (!is_sure) return Status::Ok();
  return Status::Corruption(store_.string() +
                            " is damaged, and no copy was made: " + status.message());
}

// The new state does not open. Names a table that is damaged, if one is.
Status Backup::VerifyStaged() const {
  VARVE_ASSIGN_OR_RETURN(const auto names, FindTableNames(copy_.staging()));
  for (const std::string& name : names) {
    std::error_code ignored;
    if (fs::exists(CopyOf(name), ignored)) VARVE_RETURN_IF_ERROR(VerifyTable(name));
  }
  return Status::Ok();
}

// A table that the earlier copy had, too, was verified when it was copied. One that got another
// time in the store since is verified again.
Status Backup::VerifyTables() const {
  for (const std::string& name : tables_.names) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const bool is_kept = earlier_.has_value() && earlier_->contains(name) &&
                         !copied_.contains(name) && !compared_.contains(name);
    if (!is_kept || options_.read_data) VARVE_RETURN_IF_ERROR(VerifyTable(name));
  }
  return Status::Ok();
}

Status Backup::VerifyTable(const std::string& name) const {
  const Status status = VerifyTableFile(CopyOf(name));
  const fs::path ours = from_ / name, theirs = to_ / name;
  if (IsShortage(status)) return status;
  if (!status.ok()) {
    if (!copied_.contains(name) && VerifyTableFile(ours).ok()) {
      return Status::Corruption("table file " + theirs.string() + " of the copy is damaged: " +
                                status.message() + "; remove that file, and the next backup " +
                                "copies it again from " + store_.string() + ", where it is sound");
    }
    return Status::Corruption("table file " + ours.string() +
                              " is damaged, and no copy was made: " + status.message() +
                              "; check --read-data names the steps that it hits, copy takes the "
                              "others elsewhere");
  }
  if (!aside_.contains(name)) return Status::Ok();
  const Status verified = VerifyTableFile(theirs);
  if (!verified.ok()) return IsShortage(verified) ? verified : Status::Ok();
  return Status::FailedPrecondition(
      "table files " + ours.string() + " and " + theirs.string() +
      " are both sound, and differ: the copy has steps that this store never had, which would be "
      "lost. Back up into another folder");
}

// From here on the earlier copy changes, but only where it is damaged.
Status Backup::Mend() {
  for (const std::string& name : aside_) {
    if (!tables_.names.contains(name)) continue;
    const fs::path aside = CopyOf(name);
    if (::rename(aside.c_str(), (to_ / name).c_str()) != 0) {
      return ErrnoStatus("rename", aside, errno);
    }
    report_.mended_files.push_back((to_ / name).string());
  }
  // What was compared, and has been verified, need not be read by the next backup.
  for (const std::string& name : compared_) {
    struct stat info {};
    if (::stat((from_ / name).c_str(), &info) != 0) continue;  // it has vanished
    const struct timespec times[2] = {info.st_mtim, info.st_mtim};
    if (::utimensat(AT_FDCWD, (to_ / name).c_str(), times, 0) != 0) {
      return ErrnoStatus("set the time of", to_ / name, errno);
    }
  }
  return report_.mended_files.empty() ? Status::Ok() : SyncFolder(to_);
}

}  // namespace

Result<BackupReport> BackUp(const fs::path& store, const fs::path& destination,
                            const BackupOptions& options) {
  return Guarded("backing up", [&]() -> Result<BackupReport> {
    if (IsGroupRoot(store)) {
      return Status::FailedPrecondition(store.string() + " is the root of a group: backup copies " +
                                        "the store of one writer; use copy");
    }
    return Backup(store, destination, options).Run();
  });
}

}  // namespace varve
