// SPDX-License-Identifier: Apache-2.0
//
// A file system that becomes read-only under an open store, and writable again, in any program by
// LD_PRELOAD. A kernel does so to a file system that has failed (errors=remount-ro). While the file
// $VARVE_READ_ONLY_WHILE exists, each change below $VARVE_READ_ONLY_FOLDER fails with EROFS.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string Text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool IsBelow(const char* path) {
  static const std::string folder = Text("VARVE_READ_ONLY_FOLDER");
  return !folder.empty() && std::strncmp(path, folder.c_str(), folder.size()) == 0;
}

bool IsNow() {
  static const std::string flag = Text("VARVE_READ_ONLY_WHILE");
  return !flag.empty() && ::access(flag.c_str(), F_OK) == 0;
}

bool IsRefused(const char* path) {
  if (!IsBelow(path) || !IsNow()) return false;
  errno = EROFS;
  return true;
}

bool IsRefused(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof(path) - 1);
  if (n <= 0) return false;
  path[n] = '\0';
  return IsRefused(path);
}

int OpenWith(const char* name, const char* path, int flags, mode_t mode) {
  auto* const next = Next<int(const char*, int, ...)>(name);
  const bool is_change = (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0;
  if (is_change && IsRefused(path)) return -1;
  return next(path, flags, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenWith("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenWith("open64", path, flags, mode);
}
ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  return IsRefused(fd) ? -1 : next(fd, data, size);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return IsRefused(fd) ? -1 : next(fd, data, size, offset);
}
int ftruncate(int fd, off_t size) noexcept {
  static auto* const next = Next<int(int, off_t)>("ftruncate");
  return IsRefused(fd) ? -1 : next(fd, size);
}
int fallocate(int fd, int mode, off_t from, off_t size) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  return IsRefused(fd) ? -1 : next(fd, mode, from, size);
}
int posix_fallocate(int fd, off_t from, off_t size) {
  static auto* const next = Next<int(int, off_t, off_t)>("posix_fallocate");
  return IsRefused(fd) ? EROFS : next(fd, from, size);
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return IsRefused(to) ? -1 : next(from, to);
}
int link(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("link");
  return IsRefused(to) ? -1 : next(from, to);
}
int unlink(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("unlink");
  return IsRefused(path) ? -1 : next(path);
}
int remove(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("remove");
  return IsRefused(path) ? -1 : next(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = Next<int(const char*, mode_t)>("mkdir");
  return IsRefused(path) ? -1 : next(path, mode);
}
int rmdir(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("rmdir");
  return IsRefused(path) ? -1 : next(path);
}

}  // extern "C"
