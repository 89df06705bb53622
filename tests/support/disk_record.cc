// SPDX-License-Identifier: Apache-2.0
#include "tests/support/disk_record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

std::atomic<bool> active = false;
std::mutex mutex;  // held from before a call until it is recorded

// What is recorded. Guarded by mutex.
dev_t device = 0;
std::map<ino_t, int> numbers;
std::vector<std::string> paths;                    // by number
std::map<std::pair<int, std::string>, int> names;  // as they are now
std::vector<DiskOp> ops;

std::optional<int> NumberOf(const struct stat& info) {
  if (info.st_dev != device) return std::nullopt;
  const auto it = numbers.find(info.st_ino);
  if (it == numbers.end()) return std::nullopt;
  return it->second;
}

std::optional<int> NumberOf(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::nullopt;
  return NumberOf(info);
}

// A name in a folder that is recorded.
struct Place {
  int folder = 0;
  std::string name;
  std::optional<int> number;  // of what has the name
  std::string path() const {
    const std::string& parent = paths[static_cast<size_t>(folder)];
    return parent.empty() ? name : parent + "/" + name;
  }
};

std::optional<Place> PlaceOf(int at, const char* path) {
  std::string text = path;
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  const size_t slash = text.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : text.substr(0, slash + 1);
  struct stat info {};
  if (::fstatat(at, parent.c_str(), &info, 0) != 0) return std::nullopt;
  const auto folder = NumberOf(info);
  if (!folder.has_value()) return std::nullopt;
  Place place{*folder, slash == std::string::npos ? text : text.substr(slash + 1), {}};
  const auto it = names.find({place.folder, place.name});
  if (it != names.end()) place.number = it->second;
  return place;
}

DiskOp Named(Kind kind, const Place& place, int number) {
  DiskOp op;
  op.kind = kind;
  op.number = number;
  op.folder = place.folder;
  op.name = place.name;
  op.path = paths[static_cast<size_t>(number)];
  return op;
}

DiskOp Of(Kind kind, int number, uint64_t at = 0) {
  DiskOp op;
  op.kind = kind;
  op.number = number;
  op.at = at;
  op.path = paths[static_cast<size_t>(number)];
  return op;
}

void AddNew(Kind kind, const Place& place, const struct stat& info) {
  const int number = static_cast<int>(paths.size());
  paths.push_back(place.path());
  numbers[info.st_ino] = number;
  names[{place.folder, place.name}] = number;
  ops.push_back(Named(kind, place, number));
}

void AddWrite(int fd, const void* data, size_t size, uint64_t at) {
  const auto number = NumberOf(fd);
  if (!number.has_value() || size == 0) return;
  DiskOp op = Of(Kind::kWrite, *number, at);
  op.bytes.assign(static_cast<const char*>(data), size);
  ops.push_back(std::move(op));
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool CanMake(int flags) { return (flags & O_CREAT) != 0; }
bool HasMode(int flags) { return CanMake(flags) || (flags & O_TMPFILE) == O_TMPFILE; }

// Carries out an open, and records what it makes or cuts.
template <typename Carry>
int Open(int at, const char* path, int flags, const Carry& carry) {
  const bool is_recorded =
      active && (flags & O_TMPFILE) != O_TMPFILE && (CanMake(flags) || (flags & O_TRUNC) != 0);
  if (!is_recorded) return carry();
  const std::lock_guard lock(mutex);
  const auto place = PlaceOf(at, path);
  const int fd = carry();
  struct stat info {};
  if (fd < 0 || !place.has_value() || ::fstat(fd, &info) != 0) return fd;
  if (!place->number.has_value()) {
    AddNew(Kind::kFile, *place, info);
  } else if ((flags & O_TRUNC) != 0) {
    ops.push_back(Of(Kind::kTruncate, *place->number));
  }
  return fd;
}

template <typename Carry>
int Unlink(int at, const char* path, const Carry& carry) {
  if (!active) return carry();
  const std::lock_guard lock(mutex);
  const auto place = PlaceOf(at, path);
  const int result = carry();
  if (result == 0 && place.has_value() && place->number.has_value()) {
    ops.push_back(Named(Kind::kUnlink, *place, *place->number));
    names.erase({place->folder, place->name});
  }
  return result;
}

template <typename Carry>
int Sync(int fd, const Carry& carry) {
  if (!active) return carry();
  const std::lock_guard lock(mutex);
  const int result = carry();
  const auto number = NumberOf(fd);
  if (result == 0 && number.has_value()) ops.push_back(Of(Kind::kSync, *number));
  return result;
}

template <typename Carry>
int Resize(int fd, uint64_t size, const Carry& carry) {
  if (!active) return carry();
  const std::lock_guard lock(mutex);
  const int result = carry();
  const auto number = NumberOf(fd);
  if (result == 0 && number.has_value()) ops.push_back(Of(Kind::kTruncate, *number, size));
  return result;
}

// Both names must lie in the record, or neither.
template <typename Carry>
int Rename(const char* from, const char* to, bool exchange, const Carry& carry) {
  if (!active) return carry();
  const std::lock_guard lock(mutex);
  const auto source = PlaceOf(AT_FDCWD, from), target = PlaceOf(AT_FDCWD, to);
  if (source.has_value() != target.has_value()) std::abort();
  const int result = carry();
  if (result != 0 || !source.has_value() || !source->number.has_value()) return result;
  DiskOp op = Named(exchange ? Kind::kExchange : Kind::kRename, *source, *source->number);
  op.to_folder = target->folder;
  op.to_name = target->name;
  ops.push_back(std::move(op));
  names.erase({source->folder, source->name});
  if (exchange) names[{source->folder, source->name}] = *target->number;
  names[{target->folder, target->name}] = *source->number;
  return result;
}

void AddTree(const fs::path& folder, int number) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    struct stat info {};
    if (::lstat(entry.path().c_str(), &info) != 0) std::abort();
    const Place place{number, entry.path().filename(), {}};
    const auto known = NumberOf(info);
    if (known.has_value()) {
      names[{number, place.name}] = *known;
      ops.push_back(Named(Kind::kLink, place, *known));
      continue;
    }
    const bool is_folder = S_ISDIR(info.st_mode);
    AddNew(is_folder ? Kind::kFolder : Kind::kFile, place, info);
    const int made = numbers[info.st_ino];
    if (is_folder) {
      AddTree(entry.path(), made);
    } else {
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      DiskOp op = Of(Kind::kWrite, made);
      op.bytes = text.str();
      ops.push_back(std::move(op));
    }
    ops.push_back(Of(Kind::kSync, made));
  }
}

}  // namespace

std::string ToString(const DiskOp& op) {
  switch (op.kind) {
    case Kind::kFile:
      return "create " + op.path;
    case Kind::kFolder:
      return "mkdir " + op.path;
    case Kind::kLink:
      return "link " + op.path + " as " + op.name;
    case Kind::kUnlink:
      return "unlink " + op.name + " (" + op.path + ")";
    case Kind::kRename:
      return "rename " + op.name + " to " + op.to_name;
    case Kind::kExchange:
      return "exchange " + op.name + " with " + op.to_name;
    case Kind::kWrite:
      return "write " + std::to_string(op.bytes.size()) + " bytes at " + std::to_string(op.at) +
             " of " + op.path;
    case Kind::kTruncate:
      return "truncate " + op.path + " to " + std::to_string(op.at);
    case Kind::kSync:
      return "sync " + (op.path.empty() ? "the folder" : op.path);
    case Kind::kMark:
      return "mark " + std::to_string(op.at);
  }
  return "";
}

DiskRecord::DiskRecord(const fs::path& root) {
  const std::lock_guard lock(mutex);
  struct stat info {};
  if (active || ::stat(root.c_str(), &info) != 0) std::abort();
  device = info.st_dev;
  numbers = {{info.st_ino, 0}};
  paths = {""};
  names.clear();
  ops.clear();
  AddTree(root, 0);
  ops.push_back(Of(Kind::kSync, 0));
  first_ = ops.size();
  active = true;
}

DiskRecord::~DiskRecord() { active = false; }

void DiskRecord::Mark(uint64_t number) {
  const std::lock_guard lock(mutex);
  DiskOp op;
  op.at = number;
  ops.push_back(std::move(op));
}

std::vector<DiskOp> DiskRecord::Finish() {
  const std::lock_guard lock(mutex);
  active = false;
  return std::exchange(ops, {});
}

}  // namespace varve::internal::testing

using namespace varve::internal::testing;

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  if (!active) return next(fd, data, size);
  const std::lock_guard lock(mutex);
  const ssize_t done = next(fd, data, size);
  if (done > 0) {
    const off_t end = ::lseek(fd, 0, SEEK_CUR);
    if (end >= done)
      AddWrite(fd, data, static_cast<size_t>(done), static_cast<uint64_t>(end - done));
  }
  return done;
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!active) return next(fd, data, size, offset);
  const std::lock_guard lock(mutex);
  const ssize_t done = next(fd, data, size, offset);
  if (done > 0) AddWrite(fd, data, static_cast<size_t>(done), static_cast<uint64_t>(offset));
  return done;
}
int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = HasMode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(AT_FDCWD, path, flags, [&] { return next(path, flags, mode); });
}
int openat(int at, const char* path, int flags, ...) {
  static auto* const next = Next<int(int, const char*, int, ...)>("openat");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = HasMode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(at, path, flags, [&] { return next(at, path, flags, mode); });
}
int fsync(int fd) {
  static auto* const next = Next<int(int)>("fsync");
  return Sync(fd, [&] { return next(fd); });
}
int fdatasync(int fd) {
  static auto* const next = Next<int(int)>("fdatasync");
  return Sync(fd, [&] { return next(fd); });
}
int ftruncate(int fd, off_t size) noexcept {
  static auto* const next = Next<int(int, off_t)>("ftruncate");
  return Resize(fd, static_cast<uint64_t>(size), [&] { return next(fd, size); });
}
int fallocate(int fd, int mode, off_t from, off_t size) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  if (mode != 0) return next(fd, mode, from, size);
  return Resize(fd, static_cast<uint64_t>(from + size), [&] { return next(fd, mode, from, size); });
}
int posix_fallocate(int fd, off_t from, off_t size) {
  static auto* const next = Next<int(int, off_t, off_t)>("posix_fallocate");
  return Resize(fd, static_cast<uint64_t>(from + size), [&] { return next(fd, from, size); });
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return Rename(from, to, /*exchange=*/false, [&] { return next(from, to); });
}
// The paths are absolute.
int renameat2(int at, const char* from, int to_at, const char* to, unsigned int flags) noexcept {
  static auto* const next =
      Next<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  return Rename(from, to, (flags & RENAME_EXCHANGE) != 0,
                [&] { return next(at, from, to_at, to, flags); });
}
int link(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("link");
  if (!active) return next(from, to);
  const std::lock_guard lock(mutex);
  const auto source = PlaceOf(AT_FDCWD, from), target = PlaceOf(AT_FDCWD, to);
  const int result = next(from, to);
  if (result != 0 || !source.has_value() || !target.has_value()) return result;
  if (!source->number.has_value()) std::abort();
  ops.push_back(Named(Kind::kLink, *target, *source->number));
  names[{target->folder, target->name}] = *source->number;
  return result;
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = Next<int(const char*, mode_t)>("mkdir");
  if (!active) return next(path, mode);
  const std::lock_guard lock(mutex);
  const auto place = PlaceOf(AT_FDCWD, path);
  const int result = next(path, mode);
  struct stat info {};
  if (result == 0 && place.has_value() && ::stat(path, &info) == 0) {
    AddNew(Kind::kFolder, *place, info);
  }
  return result;
}
int unlink(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("unlink");
  return Unlink(AT_FDCWD, path, [&] { return next(path); });
}
int unlinkat(int at, const char* path, int flags) noexcept {
  static auto* const next = Next<int(int, const char*, int)>("unlinkat");
  return Unlink(at, path, [&] { return next(at, path, flags); });
}
int rmdir(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("rmdir");
  return Unlink(AT_FDCWD, path, [&] { return next(path); });
}
int remove(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("remove");
  return Unlink(AT_FDCWD, path, [&] { return next(path); });
}

}  // extern "C"
