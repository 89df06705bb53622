// SPDX-License-Identifier: Apache-2.0
#include "tests/support/failing_io.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

// A macro of some C libraries would take the place of the function below.
#undef fread_unlocked

namespace {

using Plan = varve::internal::testing::FailingIo::Plan;

enum class Kind { kChange, kWrite, kSync, kRead };

std::atomic<bool> active = false;
std::mutex mutex;

// Guarded by mutex.
Plan plan;
uint64_t calls = 0;
std::string last_failed;
struct Range {
  off_t at;
  size_t size;
};
std::map<std::pair<dev_t, ino_t>, std::vector<Range>> unsynced;  // kept for plans that lose

bool IsMeant(std::string_view name, Kind kind) {
  if (plan.call.empty()) return kind != Kind::kRead;
  if (plan.call == "reads") return kind == Kind::kRead;
  if (plan.call == "writes") return kind == Kind::kWrite;
  if (plan.call == "syncs") return kind == Kind::kSync;
  return plan.call == name;
}

// What becomes of a call. Neither short nor an error: it goes on.
struct Fate {
  int error = 0;
  bool is_short = false;
  bool after = false;
  bool swallow = false;
  bool lose = false;
};

Fate FateOf(std::string_view name, Kind kind, const std::string& path) {
  const std::lock_guard lock(mutex);
  if (!active || path.find(plan.path) == std::string::npos || !IsMeant(name, kind)) return {};
  const uint64_t number = calls++;
  if (number < plan.first || (number - plan.first) % plan.every != 0) return {};
  const uint64_t turn = (number - plan.first) / plan.every;
  if (turn >= plan.count || (plan.error == 0 && !plan.short_write)) return {};
  last_failed = std::string(name) + " " + path;
  const bool is_short = plan.short_write && (plan.error == 0 || turn == 0);
  return {is_short ? 0 : plan.error, is_short, plan.after, plan.swallow, plan.lose};
}

std::string PathOf(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof(path));
  return n < 0 ? std::string() : std::string(path, static_cast<size_t>(n));
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Returns what the call returns, or fails with -1. A planted mistake takes 0 for it.
template <typename Return, typename Carry>
Return Call(const char* name, Kind kind, const std::string& path, const Carry& carry) {
  const Fate fate = FateOf(name, kind, path);
  if (fate.error == 0) return carry();
  if (fate.after) carry();
  if (fate.swallow) return 0;
  errno = fate.error;
  return -1;
}

std::vector<Range>* UnsyncedOf(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? &unsynced[{info.st_dev, info.st_ino}] : nullptr;
}

void NoteWrite(int fd, off_t at, ssize_t size) {
  const std::lock_guard lock(mutex);
  if (!plan.lose || size <= 0) return;
  if (auto* ranges = UnsyncedOf(fd)) ranges->push_back({at, static_cast<size_t>(size)});
}

// Makes zeros of what was written since the last sync, if it is lost. Forgets it in each case.
void EndUnsynced(int fd, bool is_lost) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const std::lock_guard lock(mutex);
  if (!plan.lose) return;
  std::vector<Range>* const ranges = UnsyncedOf(fd);
  if (ranges == nullptr) return;
  struct stat info {};
  char name[64];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  static auto* const open_next = Next<int(const char*, int, ...)>("open");
  const int out = is_lost ? open_next(name, O_WRONLY | O_CLOEXEC) : -1;
  for (const Range& range : *ranges) {
    if (out < 0 || ::fstat(out, &info) != 0 || range.at >= info.st_size) continue;
    const std::string zeros(std::min(range.size, static_cast<size_t>(info.st_size - range.at)),
                            '\0');
    if (next(out, zeros.data(), zeros.size(), range.at) < 0) std::perror("losing a write");
  }
  if (out >= 0) ::close(out);
  ranges->clear();
}

template <typename Carry>
ssize_t Write(const char* name, int fd, size_t size, const Carry& carry) {
  const Fate fate = FateOf(name, Kind::kWrite, PathOf(fd));
  if (fate.is_short && size > 1) {
    const ssize_t done = carry(size / 2);
    return fate.swallow && done >= 0 ? static_cast<ssize_t>(size) : done;
  }
  if (fate.error == 0) return carry(size);
  if (fate.after) carry(size);
  if (fate.swallow) return static_cast<ssize_t>(size);
  errno = fate.error;
  return -1;
}

template <typename Carry>
int Sync(const char* name, int fd, const Carry& carry) {
  const Fate fate = FateOf(name, Kind::kSync, PathOf(fd));
  const int result = fate.error == 0 || fate.after ? carry() : -1;
  EndUnsynced(fd, result != 0 && fate.lose);
  if (fate.error == 0 || fate.swallow) return fate.error == 0 ? result : 0;
  errno = fate.error;
  return -1;
}

bool CanWrite(int flags) { return (flags & (O_WRONLY | O_RDWR)) != 0; }
bool HasMode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

template <typename Carry>
int Open(const char* path, int flags, const Carry& carry) {
  if (!active) return carry();
  return CanWrite(flags) ? Call<int>("create", Kind::kChange, path, carry)
                         : Call<int>("open", Kind::kRead, path, carry);
}

template <typename Carry>
int Change(const char* name, const std::string& path, const Carry& carry) {
  return active ? Call<int>(name, Kind::kChange, path, carry) : carry();
}

// The path of a name in a folder that is open.
std::string PathIn(int folder, const char* path) {
  return folder == AT_FDCWD || path[0] == '/' ? path : PathOf(folder) + "/" + path;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  if (!active) return next(fd, data, size);
  return Write("write", fd, size, [&](size_t n) {
    const ssize_t done = next(fd, data, n);
    if (done > 0) NoteWrite(fd, ::lseek(fd, 0, SEEK_CUR) - done, done);
    return done;
  });
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!active) return next(fd, data, size, offset);
  return Write("pwrite", fd, size, [&](size_t n) {
    const ssize_t done = next(fd, data, n, offset);
    NoteWrite(fd, offset, done);
    return done;
  });
}
int fsync(int fd) {
  static auto* const next = Next<int(int)>("fsync");
  return active ? Sync("fsync", fd, [&] { return next(fd); }) : next(fd);
}
int fdatasync(int fd) {
  static auto* const next = Next<int(int)>("fdatasync");
  return active ? Sync("fdatasync", fd, [&] { return next(fd); }) : next(fd);
}
// Without flags it does nothing, so it never fails. RocksDB asks so whether there is this call.
int sync_file_range(int fd, off_t from, off_t size, unsigned int flags) {
  static auto* const next = Next<int(int, off_t, off_t, unsigned int)>("sync_file_range");
  const auto carry = [&] { return next(fd, from, size, flags); };
  return active && flags != 0 ? Call<int>("sync_file_range", Kind::kSync, PathOf(fd), carry)
                              : carry();
}
int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = HasMode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(path, flags, [&] { return next(path, flags, mode); });
}
int openat(int folder, const char* path, int flags, ...) {
  static auto* const next = Next<int(int, const char*, int, ...)>("openat");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = HasMode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(PathIn(folder, path).c_str(), flags, [&] { return next(folder, path, flags, mode); });
}
DIR* opendir(const char* path) {
  static auto* const next = Next<DIR*(const char*)>("opendir");
  const Fate fate = active ? FateOf("opendir", Kind::kRead, path) : Fate{};
  if (fate.error == 0) return next(path);
  errno = fate.error;
  return nullptr;
}
struct dirent* readdir(DIR* folder) {
  static auto* const next = Next<struct dirent*(DIR*)>("readdir");
  const Fate fate = active ? FateOf("readdir", Kind::kRead, PathOf(::dirfd(folder))) : Fate{};
  if (fate.error == 0) return next(folder);
  errno = fate.error;
  return nullptr;
}
ssize_t read(int fd, void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, void*, size_t)>("read");
  const auto carry = [&] { return next(fd, data, size); };
  return active ? Call<ssize_t>("read", Kind::kRead, PathOf(fd), carry) : carry();
}
ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, void*, size_t, off_t)>("pread");
  const auto carry = [&] { return next(fd, data, size, offset); };
  return active ? Call<ssize_t>("pread", Kind::kRead, PathOf(fd), carry) : carry();
}
// RocksDB reads its manifest by this. An error is one that is not the end of the file.
size_t fread_unlocked(void* data, size_t size, size_t count, FILE* file) {
  static auto* const next = Next<size_t(void*, size_t, size_t, FILE*)>("fread_unlocked");
  const Fate fate = active ? FateOf("read", Kind::kRead, PathOf(::fileno(file))) : Fate{};
  if (fate.error == 0) return next(data, size, count, file);
  errno = fate.error;
  return 0;
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = Next<int(const char*, mode_t)>("mkdir");
  return Change("mkdir", path, [&] { return next(path, mode); });
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return Change("rename", to, [&] { return next(from, to); });
}
int renameat2(int at, const char* from, int to_at, const char* to, unsigned int flags) noexcept {
  static auto* const next =
      Next<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  return Change("rename", PathIn(to_at, to), [&] { return next(at, from, to_at, to, flags); });
}
int link(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("link");
  return Change("link", to, [&] { return next(from, to); });
}
int linkat(int at, const char* from, int to_at, const char* to, int flags) noexcept {
  static auto* const next = Next<int(int, const char*, int, const char*, int)>("linkat");
  return Change("link", PathIn(to_at, to), [&] { return next(at, from, to_at, to, flags); });
}
int symlink(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("symlink");
  return Change("symlink", to, [&] { return next(from, to); });
}
int unlink(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("unlink");
  return Change("unlink", path, [&] { return next(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const next = Next<int(int, const char*, int)>("unlinkat");
  return Change("unlink", PathIn(folder, path), [&] { return next(folder, path, flags); });
}
int rmdir(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("rmdir");
  return Change("unlink", path, [&] { return next(path); });
}
int remove(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("remove");
  return Change("unlink", path, [&] { return next(path); });
}
int ftruncate(int fd, off_t size) noexcept {
  static auto* const next = Next<int(int, off_t)>("ftruncate");
  return active ? Change("ftruncate", PathOf(fd), [&] { return next(fd, size); }) : next(fd, size);
}
int fallocate(int fd, int mode, off_t from, off_t size) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  const auto carry = [&] { return next(fd, mode, from, size); };
  return active ? Change("fallocate", PathOf(fd), carry) : carry();
}
int futimens(int fd, const struct timespec times[2]) noexcept {
  static auto* const next = Next<int(int, const struct timespec*)>("futimens");
  const auto carry = [&] { return next(fd, times); };
  return active ? Change("times", PathOf(fd), carry) : carry();
}
int utimensat(int at, const char* path, const struct timespec times[2], int flags) noexcept {
  static auto* const next = Next<int(int, const char*, const struct timespec*, int)>("utimensat");
  return Change("times", path == nullptr ? PathOf(at) : PathIn(at, path),
                [&] { return next(at, path, times, flags); });
}
int chmod(const char* path, mode_t mode) noexcept {
  static auto* const next = Next<int(const char*, mode_t)>("chmod");
  return Change("mode", path, [&] { return next(path, mode); });
}
int lchown(const char* path, uid_t user, gid_t group) noexcept {
  static auto* const next = Next<int(const char*, uid_t, gid_t)>("lchown");
  return Change("owner", path, [&] { return next(path, user, group); });
}
// It returns its error.
int posix_fallocate(int fd, off_t from, off_t size) {
  static auto* const next = Next<int(int, off_t, off_t)>("posix_fallocate");
  const auto carry = [&] { return next(fd, from, size); };
  if (!active) return carry();
  const int result = Change("fallocate", PathOf(fd), carry);
  return result < 0 ? errno : result;
}

}  // extern "C"

namespace varve::internal::testing {

FailingIo::FailingIo(Plan new_plan) {
  const std::lock_guard lock(mutex);
  plan = std::move(new_plan);
  calls = 0;
  last_failed.clear();
  unsynced.clear();
  active = true;
}

FailingIo::~FailingIo() {
  const std::lock_guard lock(mutex);
  active = false;
}

uint64_t FailingIo::num_calls() const {
  const std::lock_guard lock(mutex);
  return calls;
}

std::string FailingIo::failed() const {
  const std::lock_guard lock(mutex);
  return last_failed;
}

}  // namespace varve::internal::testing
