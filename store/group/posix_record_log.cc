// SPDX-License-Identifier: Apache-2.0
#include "store/group/posix_record_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/create_once.h"
#include "base/file_descriptor.h"
#include "base/util.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr size_t kDigits = 20;
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

std::string NameOf(uint64_t number) {
  char name[kDigits + 1];
  std::snprintf(name, sizeof(name), "%020llu", static_cast<unsigned long long>(number));
  return name;
}

// Returns nullopt when it is not the name of a record.
std::optional<uint64_t> ParseName(const std::string& name) {
  uint64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  if (name.size() != kDigits || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Returns the stamp of a file that never changes. If an inode is used again, it has another time.
// Coarse times of the file system do no harm. Before a number is free again, at least 256 later
// records have been synced, one after the other. Before a slot's inode is free again, another file
// has taken its name.
std::string StampOf(const struct stat& info) {
  return std::to_string(info.st_ino) + " " + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

// A file that may be replaced while others read it. Opening it decides which version is read.
class OpenFile {
 public:
  explicit OpenFile(const fs::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (!fd_.is_open() || ::fstat(fd_.get(), &info_) != 0) error_ = errno;
  }

  // Returns the stamp of this very file. Two consecutive ones have different inodes.
  std::string Stamp() const { return StampOf(info_); }
  bool is_open() const { return error_ == 0; }
  // Over a network this also happens to a file that was replaced after it was looked up.
  bool is_gone() const { return error_ == ENOENT || error_ == ESTALE; }
  // Returns nullopt when the file is gone.
  Result<std::optional<std::string>> Read() const {
    if (is_gone()) return std::optional<std::string>();
    if (error_ != 0) return ErrnoStatus("open", path_, error_);
    VARVE_RETURN_IF_ERROR(CheckIsFile(info_, path_));
    const auto size = static_cast<uint64_t>(info_.st_size);
    if (size > kMaxRecordBytes) {
      return Status::Corruption(path_.string() + ": " + std::to_string(size) +
                                " bytes, expected at most " + std::to_string(kMaxRecordBytes));
    }
    std::string bytes(size, '\0');
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t n = ::read(fd_.get(), bytes.data() + at, bytes.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == ESTALE) return std::optional<std::string>();
      if (n < 0) return ErrnoStatus("read", path_, errno);
      if (n == 0) break;
      at += static_cast<size_t>(n);
    }
    bytes.resize(at);
    return std::optional(std::move(bytes));
  }

 private:
  const fs::path& path_;
  const FileDescriptor fd_;
  struct stat info_ {};
  int error_ = 0;
};

class PosixRecordLog : public RecordLog {
 public:
  explicit PosixRecordLog(fs::path folder) : folder_(std::move(folder)) {}

  Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) override {
    const fs::path path = folder_ / NameOf(number);
    if (bytes.size() <= kMaxRecordBytes) return CreateOnce(path, bytes);
    return Status::InvalidArgument(path.string() + ": a record of " + std::to_string(bytes.size()) +
                                   " bytes, expected at most " + std::to_string(kMaxRecordBytes));
  }

  Result<std::optional<std::string>> Read(uint64_t number, std::string* stamp) const override {
    const fs::path path = folder_ / NameOf(number);
    const OpenFile file(path);
    auto bytes = file.Read();
    if (stamp != nullptr && bytes.ok() && bytes->has_value()) *stamp = file.Stamp();
    return bytes;
  }

  Result<std::vector<uint64_t>> List(uint64_t from) const override {
    std::vector<uint64_t> numbers;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      const auto number = ParseName(it->path().filename());
      if (number.has_value() && *number >= from) numbers.push_back(*number);
    }
    if (error) return Status::IOError("cannot list " + folder_.string() + ": " + error.message());
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  Result<std::string> Stamp(uint64_t number) const override {
    const fs::path path = folder_ / NameOf(number);
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) return StampOf(info);
    if (errno == ENOENT) return std::string();
    return ErrnoStatus("look at", path, errno);
  }

  // The processes that made them may not have synced their names yet.
  Status Sync() const override { return SyncFolder(folder_); }

  Status Remove(uint64_t number) override { return RemoveFile(folder_ / NameOf(number)); }

  Status Put(std::string_view name, std::string_view bytes, bool durable) override {
    const fs::path path = folder_ / name;
    if (bytes.size() > kMaxRecordBytes) {  // nobody would read it
      return Status::FailedPrecondition(
          path.string() + ": " + std::to_string(bytes.size()) + " bytes, expected at most " +
          std::to_string(kMaxRecordBytes) + "; drop steps that are no longer needed");
    }
    return ReplaceFile(path, bytes, durable);
  }

  Result<std::optional<std::string>> Get(std::string_view name, std::string* stamp) const override {
    const fs::path path = folder_ / name;
    const OpenFile file(path);
    const bool is_unchanged =
        stamp != nullptr && file.is_open() && std::exchange(*stamp, file.Stamp()) == file.Stamp();
    return is_unchanged ? std::optional<std::string>() : file.Read();
  }

  Result<std::vector<std::string>> Names(std::string_view folder) const override {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator it(folder_ / folder, error);
    for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
      std::string name = it->path().filename();
      if (!name.starts_with(kTemporaryPrefix)) names.push_back(std::move(name));
    }
    if (!error || error == std::errc::no_such_file_or_directory) return names;
    return Status::IOError("cannot list " + (folder_ / folder).string() + ": " + error.message());
  }

  Status Erase(std::string_view name) override { return RemoveFile(folder_ / name); }

  Status RemoveDebris() override {
    std::error_code error;
    fs::recursive_directory_iterator it(folder_, error);
    for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
      if (!it->path().filename().string().starts_with(kTemporaryPrefix)) continue;
      VARVE_RETURN_IF_ERROR(RemoveFile(it->path()));
    }
    if (!error) return Status::Ok();
    return Status::IOError("cannot list " + folder_.string() + ": " + error.message());
  }

 private:
  static Status RemoveFile(const fs::path& path) {
    std::error_code error;
    fs::remove(path, error);
    if (!error) return Status::Ok();
    return Status::IOError("cannot remove " + path.string() + ": " + error.message());
  }

  const fs::path folder_;
};

}  // namespace

std::unique_ptr<RecordLog> MakePosixRecordLog(fs::path folder) {
  return std::make_unique<PosixRecordLog>(std::move(folder));
}

}  // namespace varve::internal
