// SPDX-License-Identifier: Apache-2.0
//
// A pull brings a snapshot to a folder, in the order of a backup (store/ops/backup.cc): table files
// that are missing, each verified before it gets its name. Then the manifest under a new name. Then
// the new state is staged, opened and checked. At last CURRENT is replaced: this is the commit.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/digest.h"
#include "base/file_descriptor.h"
#include "base/guarded.h"
#include "base/run_parallel.h"
#include "base/stop.h"
#include "base/util.h"
#include "objects/url.h"
#include "store/db/database_lock.h"
#include "store/db/table_files.h"
#include "store/ops/database_copy.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"
#include "varve/seal.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

constexpr size_t kFetchBytes = size_t{8} << 20;  // that one request fetches at most
constexpr uint64_t kGapBytes = uint64_t{64}
                               << 10;  // that are fetched for nothing to save a request

class NewFile {
 public:
  explicit NewFile(const fs::path& path)
      : path_(path),
        fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)),
        error_(errno) {}

  Status Write(std::span<const std::byte> bytes) const {
    if (!fd_.is_open()) return ErrnoStatus("create", path_, error_);
    return WriteAll(fd_.get(), bytes, path_);
  }
  Status Sync() const {
    if (!fd_.is_open()) return ErrnoStatus("create", path_, error_);
    return ::fsync(fd_.get()) == 0 ? Status::Ok() : ErrnoStatus("sync", path_, errno);
  }

 private:
  const fs::path& path_;
  const FileDescriptor fd_;
  const int error_;
};

// Returns the digest of a file, or nullopt when it is not there or has not this size.
Result<std::optional<Digest>> DigestOf(const fs::path& path, uint64_t bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && errno == ENOENT) return std::optional<Digest>();
  if (!file.is_open()) return ErrnoStatus("open", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus("look at", path, errno);
  if (static_cast<uint64_t>(info.st_size) != bytes) return std::optional<Digest>();
  const StopFlag stop;
  DigestStream digest(0);
  std::vector<std::byte> block(std::min<uint64_t>(kFetchBytes, bytes));
  while (true) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    const ssize_t n = ::read(file.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("read", path, errno);
    if (n == 0) break;
    digest.Add({block.data(), static_cast<size_t>(n)});
  }
  return std::optional(digest.Get());
}

class PullRun {
 public:
  PullRun(std::unique_ptr<Objects> objects, fs::path destination, const PullOptions& options)
      : objects_(std::move(objects)),
        log_(objects_.get()),
        copy_(std::move(destination)),
        options_(options) {}

  Result<PullReport> Run();

 private:
  Status Choose();
  Status FindMissing();
  Status RefuseOthers(const std::string& name) const;
  std::vector<std::vector<const BodyTable*>> PlanFetches() const;
  Status Fetch(const std::vector<const BodyTable*>& together);
  Status FetchAlone(const BodyTable& table);
  Status FetchTo(const fs::path& path, const BodyTable& table);
  Status Publish(const BodyTable& table, Status status) const;
  Status CheckDigest(const BodyTable& table, const Digest& digest) const;
  Status GetWhole(const BodyTable& table, uint64_t offset, std::span<std::byte> out) const;
  Status WriteManifest();
  void NoteFetched(uint64_t bytes);

  const std::unique_ptr<Objects> objects_;
  const RemoteLog log_;
  DatabaseCopy copy_;
  const PullOptions& options_;
  RemoteSnapshot snapshot_;
  SnapshotBody body_;
  std::vector<const BodyTable*> missing_;
  std::set<std::string> names_;  // of all tables
  std::string manifest_;         // its name here
  PullReport report_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;  // guarded by mutex_
};

Result<PullReport> PullRun::Run() {
  const auto started = std::chrono::steady_clock::now();
  VARVE_RETURN_IF_ERROR(Choose());
  std::optional<std::unique_ptr<DatabaseLock>> lock;
  if (!options_.dry_run) {
    VARVE_RETURN_IF_ERROR(copy_.Prepare(body_.format));
    VARVE_ASSIGN_OR_RETURN(lock, DatabaseLock::Take(copy_.destination()));
    VARVE_RETURN_IF_ERROR(copy_.CheckUntouched());
  }
  VARVE_RETURN_IF_ERROR(FindMissing());
  if (!options_.dry_run) {
    const auto fetches = PlanFetches();
    const Status fetched = RunParallel(fetches.size(), options_.num_threads,
                                       [&](size_t i) { return Fetch(fetches[i]); });
    if (!fetched.ok()) return log_.WhyUnreadable(snapshot_, fetched);
    VARVE_RETURN_IF_ERROR(WriteManifest());
    VARVE_RETURN_IF_ERROR(SyncFolder(copy_.db()));
    VARVE_RETURN_IF_ERROR(copy_.Stage(manifest_));
    VARVE_RETURN_IF_ERROR(FindTableFiles(copy_.staging()).status());
    VARVE_ASSIGN_OR_RETURN(
        const CheckReport check,
        copy_.CheckStaged(options_.read_data,
                          objects_->url() + ": snapshot " + std::to_string(report_.snapshot)));
    report_.num_steps = check.num_steps;
    VARVE_RETURN_IF_ERROR(copy_.Publish(manifest_));
    copy_.RemoveLeftovers(names_, manifest_);
  }
  report_.elapsed = std::chrono::steady_clock::now() - started;
  return report_;
}

Status PullRun::Choose() {
  VARVE_ASSIGN_OR_RETURN(const RemoteState remote, log_.ReadNewest());
  VARVE_ASSIGN_OR_RETURN(snapshot_, log_.ChooseSnapshot(remote, options_.snapshot));
  VARVE_ASSIGN_OR_RETURN(body_, log_.ReadBody(snapshot_));
  report_.snapshot = snapshot_.number;
  report_.total_files = body_.tables.size();
  for (const BodyTable& table : body_.tables) {
    report_.total_bytes += table.where.bytes;
    names_.insert(table.name);
  }
  return Status::Ok();
}

// A table file of an earlier state may not change, and one that another host has written may have
// the name of a table of the snapshot.
Status PullRun::RefuseOthers(const std::string& name) const {
  return Status::FailedPrecondition(
      "table file " + (copy_.db() / name).string() +
      " differs from that of the snapshot: the folder "
      "has steps that the snapshot has not, or is damaged. Pull into another folder");
}

Status PullRun::FindMissing() {
  std::set<std::string> earlier;
  std::error_code ignored;
  if (fs::exists(copy_.db() / "CURRENT", ignored)) {
    VARVE_ASSIGN_OR_RETURN(earlier, FindTableNames(copy_.destination()));
  }
  std::vector<char> is_missing(body_.tables.size());
  VARVE_RETURN_IF_ERROR(
      RunParallel(body_.tables.size(), options_.num_threads, [&](size_t i) -> Status {
        const BodyTable& table = body_.tables[i];
        VARVE_ASSIGN_OR_RETURN(const auto digest,
                               DigestOf(copy_.db() / table.name, table.where.bytes));
        is_missing[i] = digest != table.where.digest;
        std::error_code error;
        const bool is_other = is_missing[i] != 0 && earlier.contains(table.name) &&
                              fs::exists(copy_.db() / table.name, error);
        return is_other ? RefuseOthers(table.name) : Status::Ok();
      }));
  for (size_t i = 0; i < body_.tables.size(); ++i) {
    if (is_missing[i] == 0) continue;
    missing_.push_back(&body_.tables[i]);
    ++report_.fetched_files;
    report_.fetched_bytes += body_.tables[i].where.bytes;
  }
  return Status::Ok();
}

void PullRun::NoteFetched(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_bytes_ += bytes;
  if (options_.progress) options_.progress(done_bytes_, report_.fetched_bytes);
}

// Small tables that lie together come in one request. Others come alone, in blocks.
std::vector<std::vector<const BodyTable*>> PullRun::PlanFetches() const {
  std::vector<const BodyTable*> sorted = missing_;
  std::sort(sorted.begin(), sorted.end(), [](const BodyTable* a, const BodyTable* b) {
    return std::tie(a->where.blob, a->where.offset) < std::tie(b->where.blob, b->where.offset);
  });
  std::vector<std::vector<const BodyTable*>> fetches;
  for (const BodyTable* const table : sorted) {
    const BlobRange& where = table->where;
    if (!fetches.empty()) {
      const BlobRange& first = fetches.back().front()->where;
      const BlobRange& last = fetches.back().back()->where;
      const uint64_t last_end = last.offset + last.bytes;
      if (where.blob == first.blob && where.offset >= last_end &&
          where.offset - last_end <= kGapBytes &&
          where.offset + where.bytes - first.offset <= kFetchBytes) {
        fetches.back().push_back(table);
        continue;
      }
    }
    fetches.push_back({table});
  }
  return fetches;
}

Status PullRun::Fetch(const std::vector<const BodyTable*>& together) {
  if (together.size() == 1) return FetchAlone(*together[0]);
  const uint64_t first = together.front()->where.offset;
  const BlobRange& last = together.back()->where;
  std::vector<std::byte> bytes(last.offset + last.bytes - first);
  VARVE_RETURN_IF_ERROR(GetWhole(*together.front(), first, bytes));
  for (const BodyTable* const table : together) {
    const std::span part =
        std::span(bytes).subspan(table->where.offset - first, table->where.bytes);
    VARVE_RETURN_IF_ERROR(CheckDigest(*table, ComputeDigest(0, part)));
    const fs::path path = copy_.db() / (table->name + ".tmp");
    const NewFile file(path);
    Status status = file.Write(part);
    if (status.ok()) status = file.Sync();
    VARVE_RETURN_IF_ERROR(Publish(*table, std::move(status)));
    NoteFetched(part.size());
  }
  return Status::Ok();
}

// Gives a file that was fetched its name, or removes it.
Status PullRun::Publish(const BodyTable& table, Status status) const {
  const fs::path temporary = copy_.db() / (table.name + ".tmp");
  if (status.ok() && ::rename(temporary.c_str(), (copy_.db() / table.name).c_str()) != 0) {
    status = ErrnoStatus("rename", temporary, errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status PullRun::FetchAlone(const BodyTable& table) {
  return Publish(table, FetchTo(copy_.db() / (table.name + ".tmp"), table));
}

Status PullRun::GetWhole(const BodyTable& table, uint64_t offset, std::span<std::byte> out) const {
  const std::string name = objects_->url() + ": blob " + table.where.blob;
  VARVE_ASSIGN_OR_RETURN(const auto size, objects_->GetBlob(table.where.blob, offset, out));
  if (!size.has_value()) {
    return Status::Corruption(name + ", which holds " + table.name + ", is missing");
  }
  return *size == out.size() ? Status::Ok() : Status::Corruption(name + " is too short");
}

Status PullRun::CheckDigest(const BodyTable& table, const Digest& digest) const {
  if (digest == table.where.digest) return Status::Ok();
  return Status::Corruption(objects_->url() + ": blob " + table.where.blob + ": the bytes of " +
                            table.name + " are not what was pushed");
}

Status PullRun::FetchTo(const fs::path& path, const BodyTable& table) {
  const NewFile file(path);
  const BlobRange& where = table.where;
  std::vector<std::byte> block(std::min<uint64_t>(kFetchBytes, where.bytes));
  DigestStream digest(0);
  for (uint64_t at = 0; at < where.bytes; at += block.size()) {
    block.resize(std::min<uint64_t>(kFetchBytes, where.bytes - at));
    VARVE_RETURN_IF_ERROR(GetWhole(table, where.offset + at, block));
    digest.Add(block);
    VARVE_RETURN_IF_ERROR(file.Write(block));
    NoteFetched(block.size());
  }
  VARVE_RETURN_IF_ERROR(file.Sync());
  return CheckDigest(table, digest.Get());
}

Status PullRun::WriteManifest() {
  manifest_ = copy_.NewManifestName(body_.manifest_name);
  const fs::path path = copy_.db() / manifest_;
  const NewFile file(path);
  VARVE_RETURN_IF_ERROR(file.Write(AsBytes(body_.manifest)));
  return file.Sync();
}

}  // namespace

Result<PullReport> Pull(std::string_view url, const fs::path& destination,
                        const PullOptions& options) {
  return Guarded("pulling", [&]() -> Result<PullReport> {
    VARVE_ASSIGN_OR_RETURN(auto objects, OpenObjects(url));
    auto report = PullRun(std::move(objects), destination, options).Run();
    if (!report.ok() || options.key.empty() || options.dry_run) return report;
    VARVE_RETURN_IF_ERROR(SealStore(destination, options.key).status());
    return report;
  });
}

Result<std::vector<SnapshotInfo>> ListSnapshots(std::string_view url) {
  return Guarded("listing snapshots", [&]() -> Result<std::vector<SnapshotInfo>> {
    VARVE_ASSIGN_OR_RETURN(const auto objects, OpenObjects(url));
    VARVE_ASSIGN_OR_RETURN(const RemoteState remote, RemoteLog(objects.get()).ReadNewest());
    std::vector<SnapshotInfo> infos;
    for (const RemoteSnapshot& each : remote.snapshots) {
      const std::chrono::microseconds since(each.created_us);
      infos.push_back(
          {each.number, std::chrono::system_clock::time_point(since), each.total_bytes});
    }
    return infos;
  });
}

}  // namespace varve
