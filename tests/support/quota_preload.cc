// SPDX-License-Identifier: Apache-2.0
//
// A disk quota for one folder, in any program by LD_PRELOAD, for kernels that have none. A write or
// an fallocate that would bring the files below $VARVE_QUOTA_FOLDER above $VARVE_QUOTA_BYTES fails
// with EDQUOT, as a quota of the file system makes it fail.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string Text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

uint64_t AllocatedBelow(const std::string& folder) {
  DIR* const opened = ::opendir(folder.c_str());
  if (opened == nullptr) return 0;
  uint64_t bytes = 0;
  while (const dirent* entry = ::readdir(opened)) {
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    struct stat info {};
    const std::string path = folder + "/" + entry->d_name;
    if (::lstat(path.c_str(), &info) != 0) continue;
    // A file with two names counts once, one that another thread removes right now not at all.
    if (S_ISREG(info.st_mode) && info.st_nlink > 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512 / info.st_nlink;
    }
    if (S_ISDIR(info.st_mode)) bytes += AllocatedBelow(path);
  }
  ::closedir(opened);
  return bytes;
}

bool IsExceeded(int fd, size_t more) {
  static const std::string folder = Text("VARVE_QUOTA_FOLDER");
  static const uint64_t limit = std::strtoull(Text("VARVE_QUOTA_BYTES").c_str(), nullptr, 10);
  if (folder.empty()) return false;
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof(path) - 1);
  if (n <= 0) return false;
  path[n] = '\0';
  if (std::strncmp(path, folder.c_str(), folder.size()) != 0) return false;
  return AllocatedBelow(folder) + more > limit;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  if (!IsExceeded(fd, size)) return next(fd, data, size);
  errno = EDQUOT;
  return -1;
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!IsExceeded(fd, size)) return next(fd, data, size, offset);
  errno = EDQUOT;
  return -1;
}
int fallocate(int fd, int mode, off_t from, off_t size) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  if (!IsExceeded(fd, static_cast<size_t>(size))) return next(fd, mode, from, size);
  errno = EDQUOT;
  return -1;
}
int posix_fallocate(int fd, off_t from, off_t size) {
  static auto* const next = Next<int(int, off_t, off_t)>("posix_fallocate");
  return IsExceeded(fd, static_cast<size_t>(size)) ? EDQUOT : next(fd, from, size);
}

}  // extern "C"
