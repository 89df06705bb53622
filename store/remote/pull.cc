// SPDX-License-Identifier: Apache-2.0
//
// A pull brings a snapshot to a folder, in the order of a backup (store/ops/backup.cc): table files
// that are missing, each verified before it gets its name. Then the manifest under a new name. Then
// the new state is staged, opened and checked. At last CURRENT is replaced: this is the commit.
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
#include "store/db/sealed_manifest.h"
#include "store/db/store_impl.h"
#include "store/db/table_files.h"
#include "store/ops/check_seal.h"
#include "store/ops/database_copy.h"
#include "store/remote/remote_log.h"
#include "store/remote/table_fetcher.h"
#include "varve/remote.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 20;

// Returns the digest of a file, or nullopt when it is not there or has not this size.
Result<std::optional<Digest>> DigestOf(const fs::path& path, uint64_t bytes) {
  const Result<FileDescriptor> file = OpenFileToRead(path);
  if (file.status().code() == StatusCode::kNotFound) return std::optional<Digest>();
  VARVE_RETURN_IF_ERROR(file.status());
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return ErrnoStatus("look at", path, errno);
  if (static_cast<uint64_t>(info.st_size) != bytes) return std::optional<Digest>();
  const StopFlag stop;
  DigestStream digest(0);
  std::vector<std::byte> block(std::min<uint64_t>(kReadBytes, bytes));
  while (true) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    const ssize_t n = ::read(file->get(), block.data(), block.size());
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
  Status FetchMissing();
  Status WriteManifest();
  Status Seal() const;
  void NoteFetched(uint64_t bytes);

  const std::unique_ptr<Objects> objects_;
  const RemoteLog log_;
  DatabaseCopy copy_;
  const PullOptions& options_;
  RemoteSnapshot snapshot_;
  SnapshotBody body_;
  std::vector<const BodyTable*> missing_;
  std::set<std::string> names_;           // of all tables
  std::string manifest_;                  // its name here
  std::shared_ptr<const Sealer> sealer_;  // null: no key was given
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
    VARVE_RETURN_IF_ERROR(copy_.CheckUntouched().status());
  }
  VARVE_RETURN_IF_ERROR(FindMissing());
  if (!options_.dry_run) {
    VARVE_RETURN_IF_ERROR(FetchMissing());
    VARVE_RETURN_IF_ERROR(WriteManifest());
    VARVE_RETURN_IF_ERROR(SyncFolder(copy_.db()));
    VARVE_RETURN_IF_ERROR(copy_.Stage(manifest_));
    VARVE_RETURN_IF_ERROR(FindTableFiles(copy_.staging()).status());
    VARVE_ASSIGN_OR_RETURN(
        const CheckReport check,
        copy_.CheckStaged(options_.read_data,
                          objects_->url() + ": snapshot " + std::to_string(report_.snapshot)));
    report_.num_steps = check.num_steps;
    VARVE_RETURN_IF_ERROR(Seal());
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
  VARVE_ASSIGN_OR_RETURN(sealer_,
                         StoreImpl::MakeSealer(objects_->url(), {.key = options_.key}, body_.format,
                                               /*for_writing=*/false));
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
  if (auto names = FindTableNames(copy_.destination()); names.ok()) {
    earlier = *std::move(names);
  } else if (names.status().code() != StatusCode::kCorruption) {  // else none can be opened
    return names.status();
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

Status PullRun::FetchMissing() {
  TableFetcher fetcher(objects_.get(), copy_.db(), [this](uint64_t bytes) { NoteFetched(bytes); });
  const Status fetched = fetcher.Fetch(missing_, options_.num_threads);
  return fetched.ok() ? fetched : log_.WhyUnreadable(snapshot_, fetched);
}

// Compares the new state with its tags, and seals it. The earlier state stays until it is
// published.
Status PullRun::Seal() const {
  if (sealer_ == nullptr) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(SealFacts facts, VerifyTags(copy_.staging(), *sealer_));
  if (!facts.errors.empty()) {
    return Status::Corruption(objects_->url() + ": snapshot " + std::to_string(report_.snapshot) +
                              ": " + facts.errors.front());
  }
  facts.state.manifest = copy_.db() / manifest_;
  return SealManifest(facts.state, *sealer_);
}

Status PullRun::WriteManifest() {
  manifest_ = copy_.NewManifestName(body_.manifest_name);
  return WriteFileAtomically(copy_.db() / manifest_, body_.manifest);
}

}  // namespace

Result<PullReport> Pull(std::string_view url, const fs::path& destination,
                        const PullOptions& options) {
  return Guarded("pulling", [&]() -> Result<PullReport> {
    VARVE_ASSIGN_OR_RETURN(auto objects, OpenObjects(url));
    return PullRun(std::move(objects), destination, options).Run();
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
