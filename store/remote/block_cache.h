// SPDX-License-Identifier: Apache-2.0
//
// Blocks of blobs in a folder of this machine, so that they are fetched once. Blobs never change,
// and their names are never used again, so a block is never out of date. Each block is a file with
// the digest of its bytes before them. A damaged file is as good as none. Several processes may use
// one folder. Thread rule: any thread.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "varve/result.h"

namespace varve::internal {

class BlockCache {
 public:
  // An empty folder's name = there is no cache. The folder is made if it is missing.
  static Result<std::unique_ptr<BlockCache>> Open(const std::filesystem::path& folder,
                                                  uint64_t max_bytes);
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Returns nullopt when it is not there.
  std::optional<std::string> Get(const std::string& blob, uint64_t block) const;
  // Best effort: what cannot be written is fetched again.
  void Put(const std::string& blob, uint64_t block, std::string_view bytes);

 private:
  BlockCache(std::filesystem::path folder, uint64_t max_bytes);
  std::filesystem::path PathOf(const std::string& blob, uint64_t block) const;
  void MakeRoom();
  void RemoveOld();

  const std::filesystem::path folder_;
  const uint64_t max_bytes_;
  std::mutex remove_mutex_;
  // About: other processes write, too, and a block that is put while old ones are removed may count
  // twice until the next removal.
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace varve::internal
