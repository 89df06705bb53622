// SPDX-License-Identifier: Apache-2.0
#include "store/db/spare_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/util.h"
#include "store/db/manifest_note.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// False for a link, which may lead to somebody else's files.
bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

}  // namespace

fs::path SpareFolder(const fs::path& store) { return store / "spare"; }

fs::path SpareOfManifest(const fs::path& manifest) {
  return SpareFolder(manifest.parent_path().parent_path()) / manifest.filename();
}

void RemoveSpare(const fs::path& file) {
  const fs::path copy = SpareOfManifest(file);
  if (IsFolder(copy.parent_path())) ::unlink(copy.c_str());
}

Status CompareFormatWithCopy(const fs::path& store, const FormatFile& format) {
  const Result<FormatFile> copy = ReadFormatFile(SpareFolder(store), /*for_writing=*/false);
  if (!copy.ok()) return IsShortage(copy.status()) ? copy.status() : Status::Ok();
  if (copy->store_id == format.store_id && copy->digest_seed == format.digest_seed) {
    return Status::Ok();
  }
  return Status::Corruption((store / kFormatFileName).string() + " is of another store than " +
                            (SpareFolder(store) / kFormatFileName).string() +
                            ", which should be a copy of it. Put the right one back in the place "
                            "of the other (varve repair finds out which one it is)");
}

void TidySpareFiles(const fs::path& store) {
  constexpr size_t kMaxBytes = 4096;
  const fs::path folder = SpareFolder(store);
  std::error_code ignored;
  fs::create_directory(folder, ignored);
  if (!IsFolder(folder)) return;
  const auto format = ReadSmallFile(store / kFormatFileName, kMaxBytes);
  const auto spare = ReadSmallFile(folder / kFormatFileName, kMaxBytes);
  if (format.ok() && (!spare.ok() || *spare != *format)) {
    WriteFileAtomically(folder / kFormatFileName, *format).IgnoreError();
  }
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const fs::path name = it->path().filename();
    if (!IsManifestName(name.string())) continue;
    std::error_code failed;
    if (!fs::exists(store / "db" / name, failed) && !failed) ::unlink(it->path().c_str());
  }
}

SpareFile::SpareFile(fs::path path) : path_(std::move(path)) {
  std::error_code ignored;
  fs::create_directory(path_.parent_path(), ignored);
  if (!IsFolder(path_.parent_path())) return;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
               0644);
  if (fd_ < 0) GiveUp();
}

SpareFile::~SpareFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SpareFile::Append(std::string_view bytes) {
  if (fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    GiveUp();
  }
}

void SpareFile::GiveUp() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  ::unlink(path_.c_str());
}

}  // namespace varve::internal
