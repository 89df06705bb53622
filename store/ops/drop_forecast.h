// SPDX-License-Identifier: Apache-2.0
//
// Finds what would die if steps were dropped. It needs bounded memory, because it holds neither the
// records nor the counts of the steps. Lists die when all references to them are released. Then
// chunks die, highest address first. A source has a smaller address than what it predicts, so all
// references to a chunk are known when its turn comes, and each block of counts is read once.
// Thread rule: one thread, while nobody commits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/db/database.h"
#include "store/db/dead_space.h"
#include "store/db/reference_counts.h"
#include "store/db/release_queue.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal {

// The frames of one chunk file.
struct ChunkFileUse {
  uint64_t live_chunks = 0;
  uint64_t dead_chunks = 0;
  uint64_t dead_bytes = 0;
  bool is_unknown = false;  // a save in it has no readable record
};

class DropForecaster {
 public:
  // `database` must outlive this. Forecast tells of deaths in `files`.
  explicit DropForecaster(const Database* database, std::vector<ChunkFile> files = {},
                          size_t max_in_memory = ReleaseQueue::kMaxInMemory);

  // Takes a step. Call it once for each step, before Follow. As in a drop, records that cannot be
  // read release nothing.
  Status DropStep(StepKey step);
  // Finds everything that dies. Call it once.
  Status Follow();
  // Returns texts about records that could not be read, as the drop would name them.
  const std::vector<std::string>& damage() const { return damage_.all(); }

  // Returns the bytes of the frames that die.
  uint64_t dead_bytes() const { return dead_bytes_; }
  // Returns what a reclaim would then do, including what was dead before. It leaves out files of
  // which it is unknown what lives.
  Result<DropForecast> Forecast();

  size_t num_runs_for_test() const {
    return lists_.num_runs_for_test() + chunks_.num_runs_for_test();
  }

 private:
  Status FollowLists();
  Status FollowChunks();
  Status ReleaseChunksOf(ListAddress list);
  void NoteDeath(const Release& chunk);
  Status MeasureFile(const ChunkFile& file, rocksdb::Iterator* saves, ChunkFileUse* use);
  Status MeasureSave(uint64_t save_id, const SaveRecord& record, uint32_t begin, uint32_t end,
                     ChunkFileUse* use);

  const Database* const database_;
  const std::vector<ChunkFile> files_;
  std::vector<ChunkFileUse> deaths_;  // the frames of each file that die
  size_t file_;  // files from here on lie above the addresses that are followed
  ReleaseQueue lists_;
  ReleaseQueue chunks_;
  uint64_t dead_bytes_ = 0;
  DamageNotes damage_;
};

}  // namespace varve::internal
