// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/staging_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace varve::internal {

namespace {

uint64_t AvailableOnMachine() {
  std::ifstream in("/proc/meminfo");
  std::string key, rest;
  for (uint64_t kib = 0; in >> key >> kib && std::getline(in, rest);) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return 0;
}

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Returns the number in a file of a control group. "max", or no such file, is no limit.
uint64_t ReadLimit(const std::string& path) {
  std::ifstream in(path);
  uint64_t bytes = 0;
  return in >> bytes ? bytes : kNoLimit;
}

// Bytes of the group's page cache that nobody has used lately: the system takes these first.
uint64_t InactiveFileBytes(const std::string& folder) {
  std::ifstream in(folder + "/memory.stat");
  std::string key;
  for (uint64_t bytes = 0; in >> key >> bytes;) {
    if (key == "inactive_file" || key == "total_inactive_file") return bytes;
  }
  return 0;
}

uint64_t AvailableIn(const std::string& folder, const char* limit_file, const char* used_file) {
  const uint64_t limit = ReadLimit(folder + limit_file);
  const uint64_t used = ReadLimit(folder + used_file);
  if (limit == kNoLimit || used == kNoLimit) return kNoLimit;
  const uint64_t needed = used - std::min(used, InactiveFileBytes(folder));
  return limit - std::min(limit, needed);
}

// Returns what the control groups of this process leave it (cgroups(7)). The file has lines of
// version 2, "0::/path", and of version 1, "5:memory:/path". In a container of its own namespace
// the path is "/".
uint64_t AvailableInGroups() {
  std::ifstream in("/proc/self/cgroup");
  uint64_t available = kNoLimit;
  for (std::string line; std::getline(in, line);) {
    const size_t kinds = line.find(':');
    const size_t path = kinds == std::string::npos ? kinds : line.find(':', kinds + 1);
    if (path == std::string::npos) continue;
    const std::string kind = line.substr(kinds + 1, path - kinds - 1);
    if (kind.empty()) {
      available = std::min(available, AvailableIn("/sys/fs/cgroup" + line.substr(path + 1),
                                                  "/memory.max", "/memory.current"));
    } else if (kind == "memory") {
      available =
          std::min(available, AvailableIn("/sys/fs/cgroup/memory" + line.substr(path + 1),
                                          "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
    }
  }
  return available;
}

}  // namespace

uint64_t HalfOfFreeMemory() { return std::min(AvailableOnMachine(), AvailableInGroups()) / 2; }

StagingMemory::~StagingMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

Status StagingMemory::Resize(uint64_t bytes) {
  Clear();
  if (bytes == size_) return Status::Ok();
  is_warm_ = false;
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
  if (bytes == 0) return Status::Ok();
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::Unavailable("no memory to stage " + std::to_string(bytes) +
                               " bytes: " + std::strerror(errno));
  }
  (void)madvise(memory, bytes, MADV_HUGEPAGE);  // fewer faults; without it, more
  data_ = static_cast<std::byte*>(memory);
  size_ = bytes;
  return Status::Ok();
}

void StagingMemory::Prewarm() {
  if (is_warm_) return;
  is_warm_ = true;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < size_; at += page) {
    *reinterpret_cast<volatile std::byte*>(data_ + at) = std::byte{0};
  }
}

void StagingMemory::Release() {
  Clear();
  is_warm_ = false;
  if (data_ != nullptr) (void)madvise(data_, size_, MADV_DONTNEED);
}

std::span<std::byte> StagingMemory::Take(uint64_t bytes) {
  const uint64_t rounded = Rounded(bytes);
  uint64_t at = used_.load();
  do {
    if (rounded > size_ - at) return {};
  } while (!used_.compare_exchange_weak(at, at + rounded));
  return {data_ + at, bytes};
}

}  // namespace varve::internal
