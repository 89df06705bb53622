// SPDX-License-Identifier: Apache-2.0
#include "store/remote/block_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <vector>

#include "base/create_once.h"
#include "base/digest.h"
#include "base/util.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".block";
constexpr size_t kDigestBytes = 32;                                  // as text
constexpr size_t kMaxFileBytes = (size_t{64} << 10) + kDigestBytes;  // of a whole block

// Calls visit(path, bytes, seconds of the last use) for each block.
template <typename Visit>
void VisitBlocks(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const fs::path path = it->path();
    struct stat info {};
    if (path.extension() != kSuffix || ::stat(path.c_str(), &info) != 0) continue;
    visit(path, static_cast<uint64_t>(info.st_size), info.st_mtim);
  }
}

}  // namespace

BlockCache::BlockCache(fs::path folder, uint64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(max_bytes) {
  VisitBlocks(folder_,
              [this](const fs::path&, uint64_t bytes, const struct timespec&) { bytes_ += bytes; });
}

Result<std::unique_ptr<BlockCache>> BlockCache::Open(const fs::path& folder, uint64_t max_bytes) {
  if (folder.empty()) return std::unique_ptr<BlockCache>();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return ErrnoStatus("create", folder, error.value());
  if (::access(folder.c_str(), W_OK) != 0) return ErrnoStatus("write to", folder, errno);
  return std::unique_ptr<BlockCache>(new BlockCache(folder, max_bytes));
}

fs::path BlockCache::PathOf(const std::string& blob, uint64_t block) const {
  return folder_ / (blob + "." + std::to_string(block) + std::string(kSuffix));
}

std::optional<std::string> BlockCache::Get(const std::string& blob, uint64_t block) const {
  const fs::path path = PathOf(blob, block);
  auto text = ReadSmallFile(path, kMaxFileBytes);
  if (!text.ok() || text->size() < kDigestBytes) return std::nullopt;
  const std::string_view bytes = std::string_view(*text).substr(kDigestBytes);
  if (ToHex(ComputeDigest(0, AsBytes(bytes))) != text->substr(0, kDigestBytes)) return std::nullopt;
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // what was used last is removed last
  text->erase(0, kDigestBytes);
  return *std::move(text);
}

void BlockCache::Put(const std::string& blob, uint64_t block, std::string_view bytes) {
  TemporaryFile file(folder_);
  Status status = file.Write(ToHex(ComputeDigest(0, AsBytes(bytes))));
  if (status.ok()) status = file.Write(bytes);
  if (status.ok()) status = file.RenameTo(PathOf(blob, block));
  if (!status.ok()) return;
  bytes_ += kDigestBytes + bytes.size();
  MakeRoom();
}

// Removes until there is room again. Others do not wait for the one who removes. So that one looks
// again after it has given the mutex back.
void BlockCache::MakeRoom() {
  constexpr int kMaxRounds = 4;  // a block that cannot be removed is counted again in each round
  for (int round = 0; round < kMaxRounds && bytes_ > max_bytes_; ++round) {
    const std::unique_lock lock(remove_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    RemoveOld();
  }
}

// Removes a fifth, so that the folder is not listed at each Put.
void BlockCache::RemoveOld() {
  const uint64_t counted = bytes_;  // what is put after this stays counted
  std::vector<std::tuple<int64_t, int64_t, fs::path, uint64_t>> blocks;
  uint64_t total = 0;
  VisitBlocks(folder_, [&](const fs::path& path, uint64_t bytes, const struct timespec& used) {
    blocks.emplace_back(used.tv_sec, used.tv_nsec, path, bytes);
    total += bytes;
  });
  std::sort(blocks.begin(), blocks.end());
  for (const auto& [seconds, nanoseconds, path, bytes] : blocks) {
    if (total <= max_bytes_ - max_bytes_ / 5) break;
    ::unlink(path.c_str());
    total -= bytes;
  }
  bytes_ += total - counted;
}

}  // namespace varve::internal
