// SPDX-License-Identifier: Apache-2.0
//
// The table files that hold the new chunks of one save until its commit. It takes frames by rising
// address and writes files of at most kChunkFileBytes. A full file is synced in the background
// while the next one fills. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "codec/frame.h"
#include "store/db/database.h"
#include "varve/result.h"

namespace rocksdb {
class SstFileWriter;
}

namespace varve::internal {

class ChunkFiles {
 public:
  // `database` must outlive this. The files lie in `incoming`, and their names tell the save.
  ChunkFiles(const Database* database, std::filesystem::path incoming, uint64_t save_id);
  ~ChunkFiles();  // removes the files unless they were ingested (moved away)

  // Addresses must rise.
  Status Add(ChunkAddress address, std::span<const std::byte> frame);
  // Closes and syncs everything.
  Status Finish();
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

 private:
  Status OpenNext();
  Status CloseCurrent();
  Status WaitForOldest();

  const Database* const database_;
  const std::filesystem::path incoming_;
  const uint64_t save_id_;
  std::unique_ptr<rocksdb::SstFileWriter> current_;
  uint64_t current_bytes_ = 0;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::future<Status>> closing_;
};

}  // namespace varve::internal
