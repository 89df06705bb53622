// SPDX-License-Identifier: Apache-2.0
//
// Fetches table files of a snapshot into a folder. Several requests are under way at a time, also
// for one large file. A file gets its name when all of it is verified and synced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "objects/objects.h"
#include "store/remote/buffer_pool.h"
#include "store/remote/remote_state.h"

namespace varve::internal {

// Thread rule: one thread at a time.
class TableFetcher {
 public:
  // Called from any thread with the bytes that have come.
  using NoteFetched = std::function<void(uint64_t)>;

  TableFetcher(const Objects* objects, std::filesystem::path folder, NoteFetched note_fetched);
  ~TableFetcher();

  // So many requests are under way at most. After an error, files that are there are whole.
  // kCorruption: a blob is missing, too short, or not what was pushed.
  Status Fetch(std::vector<const BodyTable*> tables, int num_requests);

 private:
  class NewFile;
  class FileInParts;
  // Small tables that lie beside each other and come together, or a file. Each request fetches one
  // part.
  struct FetchPlan {
    size_t first_part = 0;  // the number of its first part
    std::vector<const BodyTable*> together;
    std::unique_ptr<FileInParts> file;
  };

  size_t Plan(const BodyTable& table, size_t num_parts);
  Status Run(const FetchPlan& plan, size_t part);
  Status FetchTogether(const std::vector<const BodyTable*>& tables);
  Status FetchPart(FileInParts* file, uint64_t offset);
  Status GetWhole(const BodyTable& table, uint64_t offset, std::span<std::byte> out) const;
  Status CheckDigest(const BodyTable& table, const Digest& digest) const;

  const Objects* const objects_;
  const std::filesystem::path folder_;
  const NoteFetched note_fetched_;
  std::vector<FetchPlan> plans_;
  BufferPool buffers_;
};

}  // namespace varve::internal
