// SPDX-License-Identifier: Apache-2.0
#include "objects/file_objects.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/create_once.h"
#include "base/digest.h"
#include "base/file_descriptor.h"
#include "base/random_number.h"
#include "base/stop.h"
#include "base/util.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = size_t{1} << 20;
// A blob that is being put lies in PART/NAME~RANDOM. A name has no "~".
constexpr std::string_view kPartial = "partial";
constexpr char kPartialMark = '~';

class OpenFile {
 public:
  OpenFile(const fs::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC, 0644)),
        error_(fd_.is_open() ? 0 : errno) {}
  int fd() const { return fd_.get(); }
  int error() const { return error_; }
  // Over a network this also happens to a file that was removed after it was looked up.
  bool is_gone() const { return error_ == ENOENT || error_ == ESTALE || error_ == ENOTDIR; }

 private:
  const FileDescriptor fd_;
  const int error_;
};

// Reads up to out.size() bytes, and less only at the end of the file.
Result<std::optional<size_t>> ReadAt(int fd, uint64_t offset, std::span<std::byte> out,
                                     const fs::path& path) {
  size_t size = 0;
  while (size < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + size, std::min(out.size() - size, kBlockBytes),
                              static_cast<off_t>(offset + size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ESTALE) return std::optional<size_t>();
    if (n < 0) return ErrnoStatus("read", path, errno);
    if (n == 0) break;
    size += static_cast<size_t>(n);
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
  }
  return std::optional(size);
}

Status Unlink(const fs::path& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return Status::Ok();
  return ErrnoStatus("remove", path, errno);
}

// Calls `visit` with the name of each file in a folder. A folder that does not exist has none.
template <typename Visit>
Status VisitFolder(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    VARVE_RETURN_IF_ERROR(visit(it->path().filename().string()));
  }
  if (!error || error == std::errc::no_such_file_or_directory) return Status::Ok();
  return Status::IOError("cannot list " + folder.string() + ": " + error.message());
}

class FileObjects : public Objects {
 public:
  FileObjects(std::string url, fs::path folder)
      : Objects(std::move(url)),
        folder_(std::move(folder)),
        blobs_(folder_ / "blobs"),
        partial_(folder_ / kPartial),
        records_(folder_ / "records") {}

  Status RemoveDebris() override {
    return VisitFolder(records_, [&](const std::string& name) {
      return name.starts_with(kTemporaryPrefix) ? Unlink(records_ / name) : Status::Ok();
    });
  }

 protected:
  Status DoPutBlob(const std::string& name, const BlobSource& source) override {
    VARVE_RETURN_IF_ERROR(MakeFolders());
    const fs::path path = partial_ / (name + kPartialMark + Hex16(RandomNumber()));
    Status status = WriteAndName(path, name, source);
    if (!status.ok()) Unlink(path).IgnoreError();
    return status;
  }

  Result<std::optional<size_t>> DoGetBlob(const std::string& name, uint64_t offset,
                                          std::span<std::byte> out) const override {
    const fs::path path = blobs_ / name;
    const OpenFile file(path, O_RDONLY);
    if (file.is_gone()) return std::optional<size_t>();
    if (file.error() != 0) return ErrnoStatus("open", path, file.error());
    return ReadAt(file.fd(), offset, out, path);
  }

  Status DoRemoveBlob(const std::string& name) override {
    VARVE_RETURN_IF_ERROR(Unlink(blobs_ / name));
    return VisitFolder(partial_, [&](const std::string& file) {
      const size_t mark = file.find(kPartialMark);
      return file.substr(0, mark) == name ? Unlink(partial_ / file) : Status::Ok();
    });
  }

  Status DoListBlobs(const VisitBlob& visit) const override {
    VARVE_RETURN_IF_ERROR(Visit(blobs_, /*is_whole=*/true, visit));
    return Visit(partial_, /*is_whole=*/false, visit);
  }

  Result<CreateOutcome> DoCreateRecord(const std::string& name, std::string_view bytes) override {
    VARVE_RETURN_IF_ERROR(MakeFolders());
    return CreateOnce(records_ / name, bytes);
  }

  Result<std::optional<std::string>> DoReadRecord(const std::string& name) const override {
    const fs::path path = records_ / name;
    const OpenFile file(path, O_RDONLY);
    if (file.is_gone()) return std::optional<std::string>();
    if (file.error() != 0) return ErrnoStatus("open", path, file.error());
    std::string bytes(kMaxRecordBytes + 1, '\0');
    VARVE_ASSIGN_OR_RETURN(
        const auto size,
        ReadAt(file.fd(), 0, std::as_writable_bytes(std::span(bytes.data(), bytes.size())), path));
    if (!size.has_value()) return std::optional<std::string>();
    if (*size > kMaxRecordBytes) {
      return Status::Corruption(path.string() + " has more than " +
                                std::to_string(kMaxRecordBytes) + " bytes, and is no record");
    }
    bytes.resize(*size);
    // Its creator may not have made the name durable yet.
    VARVE_RETURN_IF_ERROR(SyncForReading());
    return std::optional(std::move(bytes));
  }

  Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                 const std::string& after,
                                                 size_t limit) const override {
    std::vector<std::string> names;
    VARVE_RETURN_IF_ERROR(VisitFolder(records_, [&](const std::string& name) {
      const bool is_ours = name.starts_with(prefix) && !name.starts_with(kTemporaryPrefix);
      if (is_ours && name > after) names.push_back(name);
      return Status::Ok();
    }));
    std::sort(names.begin(), names.end());
    if (names.size() > limit) names.resize(limit);
    return names;
  }

  Status DoRemoveRecord(const std::string& name) override { return Unlink(records_ / name); }

 private:
  Status WriteAndName(const fs::path& path, const std::string& name, const BlobSource& source) {
    const OpenFile file(path, O_WRONLY | O_CREAT | O_EXCL);
    if (file.error() != 0) return ErrnoStatus("create", path, file.error());
    std::vector<std::byte> block(std::min<uint64_t>(kBlockBytes, source.size()));
    for (uint64_t at = 0; at < source.size(); at += block.size()) {
      VARVE_RETURN_IF_ERROR(StopFlag().Check());
      block.resize(std::min<uint64_t>(kBlockBytes, source.size() - at));
      VARVE_RETURN_IF_ERROR(source.Read(at, block));
      VARVE_RETURN_IF_ERROR(WriteAll(file.fd(), block, path));
    }
    if (::fdatasync(file.fd()) != 0) return ErrnoStatus("sync", path, errno);
    VARVE_RETURN_IF_ERROR(source.Check());
    const fs::path whole = blobs_ / name;
    if (::rename(path.c_str(), whole.c_str()) != 0) return ErrnoStatus("rename", whole, errno);
    const Status synced = SyncFolder(blobs_);
    return synced.ok() ? synced
                       : Status::Unavailable("put of " + whole.string() +
                                             ", outcome unknown: " + synced.message());
  }

  Status Visit(const fs::path& folder, bool is_whole, const VisitBlob& visit) const {
    return VisitFolder(folder, [&](const std::string& file) {
      struct stat info {};
      if (::stat((folder / file).c_str(), &info) != 0) return Status::Ok();  // it has vanished
      return visit({.name = file.substr(0, file.find(kPartialMark)),
                    .bytes = static_cast<uint64_t>(info.st_size),
                    .is_whole = is_whole});
    });
  }

  Status MakeFolders() const {
    std::error_code error;
    // Tools that copy a place may leave out a folder that is empty, as `partial` mostly is.
    const auto exists = [&error](const fs::path& folder) { return fs::exists(folder, error); };
    const std::array folders = {blobs_, partial_, records_};
    if (std::all_of(folders.begin(), folders.end(), exists)) return Status::Ok();
    for (const fs::path& folder : folders) {
      fs::create_directories(folder, error);
      if (error) return ErrnoStatus("create", folder, error.value());
    }
    VARVE_RETURN_IF_ERROR(SyncFolder(folder_));
    return SyncFolder(folder_.parent_path());
  }

  // A folder that may not be synced, as on a read-only mount, has been synced by another.
  Status SyncForReading() const {
    const Status status = SyncFolder(records_);
    return ::access(records_.c_str(), W_OK) == 0 ? status : Status::Ok();
  }

  const fs::path folder_;
  const fs::path blobs_;
  const fs::path partial_;
  const fs::path records_;
};

}  // namespace

Result<std::unique_ptr<Objects>> OpenFileObjects(const ObjectsUrl& url, const ObjectsOptions&) {
  if (!url.query.empty()) {
    return Status::InvalidArgument(url.text + ": file:// knows no parameter \"" +
                                   url.query.begin()->first + "\"");
  }
  fs::path folder = fs::path(url.path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return std::unique_ptr<Objects>(std::make_unique<FileObjects>(url.text, std::move(folder)));
}

}  // namespace varve::internal
