// SPDX-License-Identifier: Apache-2.0
#include "tests/support/failing_io.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <utility>

namespace {

std::atomic<bool> active = false;
std::mutex mutex;
varve::internal::testing::FailingIo::Plan plan;
uint64_t calls = 0;
std::string last_failed;
constexpr std::string_view kOpen = "open", kOpenFolder = "opendir";

// 0: the call goes on.
int ErrorOf(std::string_view call, const std::string& path) {
  const std::lock_guard lock(mutex);
  if (!active || path.find(plan.path) == std::string::npos) return 0;
  const bool is_meant =
      plan.call.empty() ? call != kOpen && call != kOpenFolder : plan.call == call;
  if (!is_meant) return 0;
  const uint64_t number = calls++;
  if (plan.error == 0 || number < plan.first || number - plan.first >= plan.count) return 0;
  last_failed = std::string(call) + " " + path;
  return plan.error;
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

template <typename Return, typename Carry>
Return Call(const char* name, const std::string& path, const Carry& carry) {
  const int error = ErrorOf(name, path);
  if (error == 0) return carry();
  if (plan.after) carry();
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  if (!active) return next(fd, data, size);
  return Call<ssize_t>("write", PathOf(fd), [&] { return next(fd, data, size); });
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!active) return next(fd, data, size, offset);
  return Call<ssize_t>("pwrite", PathOf(fd), [&] { return next(fd, data, size, offset); });
}
int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = has_mode ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (!active || (flags & (O_WRONLY | O_RDWR)) != 0) return next(path, flags, mode);
  return Call<int>("open", path, [&] { return next(path, flags, mode); });
}
DIR* opendir(const char* path) {
  static auto* const next = Next<DIR*(const char*)>("opendir");
  const int error = active ? ErrorOf(kOpenFolder, path) : 0;
  if (error == 0) return next(path);
  errno = error;
  return nullptr;
}
int fsync(int fd) {
  static auto* const next = Next<int(int)>("fsync");
  if (!active) return next(fd);
  return Call<int>("fsync", PathOf(fd), [&] { return next(fd); });
}
int fdatasync(int fd) {
  static auto* const next = Next<int(int)>("fdatasync");
  if (!active) return next(fd);
  return Call<int>("fdatasync", PathOf(fd), [&] { return next(fd); });
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  if (!active) return next(from, to);
  return Call<int>("rename", to, [&] { return next(from, to); });
}
int link(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("link");
  if (!active) return next(from, to);
  return Call<int>("link", to, [&] { return next(from, to); });
}
int unlink(const char* path) noexcept {
  static auto* const next = Next<int(const char*)>("unlink");
  if (!active) return next(path);
  return Call<int>("unlink", path, [&] { return next(path); });
}

}  // extern "C"

namespace varve::internal::testing {

FailingIo::FailingIo(Plan new_plan) {
  const std::lock_guard lock(mutex);
  plan = std::move(new_plan);
  calls = 0;
  last_failed.clear();
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
