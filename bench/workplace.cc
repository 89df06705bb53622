// SPDX-License-Identifier: Apache-2.0
#include "bench/workplace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> FilesBelow(const fs::path& path) {
  std::vector<fs::path> files;
  if (fs::is_regular_file(path)) files.push_back(path);
  if (!fs::is_directory(path)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

// Pages of an open file that are in memory.
size_t CachedPages(int fd, size_t size) {
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) Fail(std::string("mmap: ") + std::strerror(errno));
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((size + page - 1) / page);
  ::mincore(map, size, pages.data());
  ::munmap(map, size);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

}  // namespace

void Fail(const std::string& message) {
  std::fprintf(stderr, "store_bench: %s\n", message.c_str());
  std::exit(1);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

Workplace::Workplace(const fs::path& root) {
  fs::create_directories(root);
  std::string path = root / "varve-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) Fail("cannot make " + path + ": " + std::strerror(errno));
  folder_ = path;
}

Workplace::~Workplace() {
  std::error_code ignored;  // the folder says by its name what it is
  fs::remove_all(folder_, ignored);
}

fs::path Workplace::NewPath(const std::string& what) {
  return folder_ / (what + "-" + std::to_string(next_++));
}

void Workplace::Remove(const fs::path& path) {
  fs::remove_all(path);
  Settle();
}

void Workplace::Settle() const {
  const int fd = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::syncfs(fd) != 0) Fail("cannot sync " + folder_.string());
  ::close(fd);
}

uint64_t DiskBytes(const fs::path& path) {
  uint64_t bytes = 0;
  for (const fs::path& file : FilesBelow(path)) {
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

void DropFromCache(const fs::path& path) {
  size_t cached = 0;
  size_t bytes = 0;
  for (const fs::path& file : FilesBelow(path)) {
    const size_t size = fs::file_size(file);
    if (size == 0) continue;
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) Fail("cannot open " + file.string());
    ::fdatasync(fd);  // dirty pages cannot be dropped
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    cached += CachedPages(fd, size);
    bytes += size;
    ::close(fd);
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (cached * page > bytes / 50) Fail(path.string() + " stays in the system's cache");
}

}  // namespace varve::internal::bench
