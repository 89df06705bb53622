// SPDX-License-Identifier: Apache-2.0
#include "store/db/release_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kRunBuffer = 4096;  // releases: 64 KiB

// Makes a file without a name. It disappears with its descriptor, even if this process crashes. It
// lies in the folder for temporary files, because a reader may not write to the store.
Result<int> OpenTemporary() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = "/tmp";
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  std::string name = (folder / "varve-XXXXXX").string();  // not every file system has O_TMPFILE
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) return ErrnoStatus("create a temporary file in", folder, errno);
  ::unlink(name.c_str());
  return named;
}

Status WriteAll(int fd, const void* data, size_t size, uint64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, from, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus("write", "a temporary file", n < 0 ? errno : EIO);
    from += n;
    size -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

Status ReadAll(int fd, void* data, size_t size, uint64_t offset) {
  char* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::pread(fd, to, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus("read", "a temporary file", n < 0 ? errno : EIO);
    to += n;
    size -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

}  // namespace

// Releases that lie in the file, highest first.
class ReleaseQueue::Run {
 public:
  Run(int file, uint64_t offset, uint64_t count) : file_(file), offset_(offset), left_(count) {}

  // Returns nullopt at the end.
  Result<std::optional<Release>> Next() {
    if (at_ == buffer_.size()) {
      if (left_ == 0) {
        buffer_ = {};
        at_ = 0;
        return std::optional<Release>();
      }
      VARVE_RETURN_IF_ERROR(Fill());
    }
    return std::optional(buffer_[at_++]);
  }

 private:
  Status Fill() {
    buffer_.resize(std::min<uint64_t>(left_, kRunBuffer));
    const size_t bytes = buffer_.size() * sizeof(Release);
    VARVE_RETURN_IF_ERROR(ReadAll(file_, buffer_.data(), bytes, offset_));
    offset_ += bytes;
    left_ -= buffer_.size();
    at_ = 0;
    return Status::Ok();
  }

  const int file_;
  uint64_t offset_;
  uint64_t left_;  // in the file
  std::vector<Release> buffer_;
  size_t at_ = 0;
};

ReleaseQueue::ReleaseQueue(size_t max_in_memory) : max_in_memory_(max_in_memory) {}

ReleaseQueue::~ReleaseQueue() {
  if (file_ >= 0) ::close(file_);
}

Status ReleaseQueue::Push(const Release& release) {
  if (heap_.size() == max_in_memory_) VARVE_RETURN_IF_ERROR(Spill());
  heap_.push_back(release);
  std::push_heap(heap_.begin(), heap_.end());
  return Status::Ok();
}

Status ReleaseQueue::Spill() {
  if (file_ < 0) {
    VARVE_ASSIGN_OR_RETURN(file_, OpenTemporary());
  }
  std::sort(heap_.rbegin(), heap_.rend());
  const size_t bytes = heap_.size() * sizeof(Release);
  VARVE_RETURN_IF_ERROR(WriteAll(file_, heap_.data(), bytes, file_bytes_));
  auto run = std::make_unique<Run>(file_, file_bytes_, heap_.size());
  file_bytes_ += bytes;
  heap_.clear();
  VARVE_ASSIGN_OR_RETURN(const auto first, run->Next());
  heads_.push({*first, runs_.size()});
  runs_.push_back(std::move(run));
  return Status::Ok();
}

const Release* ReleaseQueue::Highest() const {
  if (heads_.empty()) return heap_.empty() ? nullptr : &heap_.front();
  if (heap_.empty() || heap_.front() < heads_.top().release) return &heads_.top().release;
  return &heap_.front();
}

Result<std::optional<Release>> ReleaseQueue::PopOne() {
  const Release* const highest = Highest();
  if (highest == nullptr) return std::optional<Release>();
  const Release taken = *highest;
  if (!heap_.empty() && highest == &heap_.front()) {
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    return std::optional(taken);
  }
  const size_t run = heads_.top().run;
  heads_.pop();
  VARVE_ASSIGN_OR_RETURN(const auto next, runs_[run]->Next());
  if (next.has_value()) heads_.push({*next, run});
  return std::optional(taken);
}

Result<std::optional<ReleaseQueue::Released>> ReleaseQueue::Pop() {
  VARVE_ASSIGN_OR_RETURN(const auto first, PopOne());
  if (!first.has_value()) return std::optional<Released>();
  Released released{*first, 1};
  while (Highest() != nullptr && !(*Highest() < released.what)) {
    VARVE_RETURN_IF_ERROR(PopOne().status());
    ++released.times;
  }
  return std::optional(released);
}

}  // namespace varve::internal
