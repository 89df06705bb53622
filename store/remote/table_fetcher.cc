// SPDX-License-Identifier: Apache-2.0
#include "store/remote/table_fetcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "base/digest.h"
#include "base/file_descriptor.h"
#include "base/guarded.h"
#include "base/run_parallel.h"
#include "base/util.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kRequestBytes = uint64_t{8} << 20;  // that one request fetches at most
constexpr uint64_t kUnusedBytes = uint64_t{64} << 10;  // fetched for nothing to save a request

}  // namespace

// A file under a temporary name. It is removed again unless it gets its name.
class TableFetcher::NewFile {
 public:
  explicit NewFile(const fs::path& path)
      : path_(path), temporary_(path.string() + ".tmp"), fd_(ReplaceFile(temporary_)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!is_named_) ::unlink(temporary_.c_str());
  }

  // The system starts to write the bytes to the disk, so that Publish waits for less.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) const {
    VARVE_RETURN_IF_ERROR(fd_.status());
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::pwrite(fd_->get(), bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("write", temporary_, errno);
      done += static_cast<size_t>(n);
    }
    // Best effort: the sync reports errors.
    (void)::sync_file_range(fd_->get(), static_cast<off_t>(offset),
                            static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
    return Status::Ok();
  }

  // Syncs it and gives it its name.
  Status Publish() {
    VARVE_RETURN_IF_ERROR(fd_.status());
    if (::fsync(fd_->get()) != 0) return ErrnoStatus("sync", temporary_, errno);
    is_named_ = ::rename(temporary_.c_str(), path_.c_str()) == 0;
    return is_named_ ? Status::Ok() : ErrnoStatus("rename", temporary_, errno);
  }

 private:
  const fs::path path_, temporary_;
  const Result<FileDescriptor> fd_;
  bool is_named_ = false;
};

// A file that comes in several requests, which are made in the order of its bytes. Thread rule: any
// thread.
class TableFetcher::FileInParts {
 public:
  FileInParts(const BodyTable& table, fs::path path) : table_(table), path_(std::move(path)) {}

  const BodyTable& table() const { return table_; }

  // Waits until all before `offset` has been added, because a digest takes bytes in their order.
  Status Add(uint64_t offset, std::span<const std::byte> bytes) {
    VARVE_ASSIGN_OR_RETURN(const NewFile* const file, Open());
    VARVE_RETURN_IF_ERROR(file->WriteAt(offset, bytes));
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return added_ == offset || !failure_.ok(); });
    VARVE_RETURN_IF_ERROR(failure_);
    digest_.Add(bytes);
    added_ += bytes.size();
    turn_.notify_all();
    return Status::Ok();
  }

  // Nobody waits for a part that failed.
  void Fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    turn_.notify_all();
  }

  // For who has added the last part.
  Digest digest() const { return digest_.Get(); }
  Status Publish() {
    Status status = file_->Publish();
    file_.reset();
    return status;
  }

 private:
  // The first part opens it, so that few files are open at a time.
  Result<const NewFile*> Open() {
    const std::lock_guard lock(mutex_);
    VARVE_RETURN_IF_ERROR(failure_);
    if (!file_.has_value()) file_.emplace(path_);
    return &*file_;
  }

  const BodyTable& table_;
  const fs::path path_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::optional<NewFile> file_;  // guarded, as all below
  DigestStream digest_{0};
  uint64_t added_ = 0;
  Status failure_;
};

TableFetcher::TableFetcher(const Objects* objects, fs::path folder, NoteFetched note_fetched)
    : objects_(objects), folder_(std::move(folder)), note_fetched_(std::move(note_fetched)) {}

TableFetcher::~TableFetcher() = default;

Status TableFetcher::Fetch(std::vector<const BodyTable*> tables, int num_requests) {
  std::sort(tables.begin(), tables.end(), [](const BodyTable* a, const BodyTable* b) {
    return std::tie(a->where.blob, a->where.offset) < std::tie(b->where.blob, b->where.offset);
  });
  plans_.clear();
  size_t num_parts = 0;
  for (const BodyTable* const table : tables) num_parts += Plan(*table, num_parts);
  return RunParallel(num_parts, num_requests, [this](size_t part) {
    const auto next = std::upper_bound(
        plans_.begin(), plans_.end(), part,
        [](size_t number, const FetchPlan& plan) { return number < plan.first_part; });
    return Run(*std::prev(next), part);
  });
}

// Returns how many parts were added.
size_t TableFetcher::Plan(const BodyTable& table, size_t num_parts) {
  const BlobRange& where = table.where;
  if (where.bytes > kRequestBytes) {
    plans_.push_back({num_parts, {}, std::make_unique<FileInParts>(table, folder_ / table.name)});
    return (where.bytes - 1) / kRequestBytes + 1;
  }
  if (!plans_.empty() && !plans_.back().together.empty()) {
    std::vector<const BodyTable*>& together = plans_.back().together;
    const BlobRange& first = together.front()->where;
    const uint64_t end = together.back()->where.offset + together.back()->where.bytes;
    if (where.blob == first.blob && where.offset >= end && where.offset - end <= kUnusedBytes &&
        where.offset + where.bytes - first.offset <= kRequestBytes) {
      together.push_back(&table);
      return 0;
    }
  }
  plans_.push_back({num_parts, {&table}, nullptr});
  return 1;
}

Status TableFetcher::Run(const FetchPlan& plan, size_t part) {
  if (plan.file == nullptr) return FetchTogether(plan.together);
  Status status = Guarded("fetching", [&] {
    return FetchPart(plan.file.get(), (part - plan.first_part) * kRequestBytes);
  });
  if (!status.ok()) plan.file->Fail(status);
  return status;
}

Status TableFetcher::FetchPart(FileInParts* file, uint64_t offset) {
  const BlobRange& where = file->table().where;
  BufferPool::Buffer buffer(&buffers_);
  const auto bytes = buffer.Resize(std::min(kRequestBytes, where.bytes - offset));
  VARVE_RETURN_IF_ERROR(GetWhole(file->table(), where.offset + offset, bytes));
  VARVE_RETURN_IF_ERROR(file->Add(offset, bytes));
  note_fetched_(bytes.size());
  if (offset + bytes.size() < where.bytes) return Status::Ok();
  VARVE_RETURN_IF_ERROR(CheckDigest(file->table(), file->digest()));
  return file->Publish();
}

Status TableFetcher::FetchTogether(const std::vector<const BodyTable*>& tables) {
  const uint64_t first = tables.front()->where.offset;
  const BlobRange& last = tables.back()->where;
  BufferPool::Buffer buffer(&buffers_);
  const auto bytes = buffer.Resize(last.offset + last.bytes - first);
  VARVE_RETURN_IF_ERROR(GetWhole(*tables.front(), first, bytes));
  for (const BodyTable* const table : tables) {
    const auto part = bytes.subspan(table->where.offset - first, table->where.bytes);
    VARVE_RETURN_IF_ERROR(CheckDigest(*table, ComputeDigest(0, part)));
    NewFile file(folder_ / table->name);
    VARVE_RETURN_IF_ERROR(file.WriteAt(0, part));
    VARVE_RETURN_IF_ERROR(file.Publish());
    note_fetched_(part.size());
  }
  return Status::Ok();
}

Status TableFetcher::GetWhole(const BodyTable& table, uint64_t offset,
                              std::span<std::byte> out) const {
  const std::string name = objects_->url() + ": blob " + table.where.blob;
  VARVE_ASSIGN_OR_RETURN(const auto size, objects_->GetBlob(table.where.blob, offset, out));
  if (!size.has_value()) {
    return Status::Corruption(name + ", which holds " + table.name + ", is missing");
  }
  return *size == out.size() ? Status::Ok() : Status::Corruption(name + " is too short");
}

Status TableFetcher::CheckDigest(const BodyTable& table, const Digest& digest) const {
  if (digest == table.where.digest) return Status::Ok();
  return Status::Corruption(objects_->url() + ": blob " + table.where.blob + ": the bytes of " +
                            table.name + " are not what was pushed");
}

}  // namespace varve::internal
