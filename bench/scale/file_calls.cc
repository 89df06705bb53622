// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/file_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdarg>

namespace varve::internal::bench {
namespace {

std::atomic<uint64_t> num_calls{0};

// The function that this one hides.
template <typename Function>
Function* Count(const char* name) {
  num_calls.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

uint64_t NumFileCalls() { return num_calls.load(std::memory_order_relaxed); }

}  // namespace varve::internal::bench

using varve::internal::bench::Count;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Count<int(const char*, int, ...)>("open")(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Count<int(const char*, int, ...)>("open64")(path, flags, mode);
}
int stat(const char* path, struct stat* out) noexcept {
  return Count<int(const char*, struct stat*)>("stat")(path, out);
}
int link(const char* from, const char* to) noexcept {
  return Count<int(const char*, const char*)>("link")(from, to);
}
int unlink(const char* path) noexcept { return Count<int(const char*)>("unlink")(path); }
int remove(const char* path) noexcept { return Count<int(const char*)>("remove")(path); }
int rename(const char* from, const char* to) noexcept {
  return Count<int(const char*, const char*)>("rename")(from, to);
}
int fsync(int fd) { return Count<int(int)>("fsync")(fd); }
int fdatasync(int fd) { return Count<int(int)>("fdatasync")(fd); }

}  // extern "C"
