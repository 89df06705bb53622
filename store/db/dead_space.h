// SPDX-License-Identifier: Apache-2.0
//
// Tells how much of each chunk file is dead, without reading a count. A table file says how many
// frames it holds and their bytes. The records of saves say how many of these frames live. The
// totals of saves are kept in memory from the first refresh on, and commits bring them up to date.
// So finding what a reclaim has to do costs only what has changed since the last reclaim. Only a
// save that lies in several files and lives in part is counted ordinal by ordinal. Thread rule: one
// thread, under the commit mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/db/database.h"
#include "store/db/reference_counts.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "varve/result.h"

namespace varve::internal {

struct ChunkFile {
  std::string name;    // in `db`: 000012.sst
  uint64_t bytes = 0;  // on the disk
  ChunkAddress first;
  ChunkAddress last;
  // DeadSpace fills these.
  uint64_t frames = 0;  // in the file, dead or alive
  uint64_t frame_bytes = 0;
  uint64_t live_frames = 0;
  uint64_t live_bytes = 0;  // approximate where a save lies in several files

  bool HasDead() const { return live_frames < frames; }
  // A save in the file has no readable record. All of its frames then count as live.
  bool IsUnknown() const { return live_frames > frames; }
  uint64_t DeadBytes() const { return frame_bytes - std::min(frame_bytes, live_bytes); }
  bool operator<(const ChunkFile& other) const { return first < other.first; }
};

// Returns the files by address. Their frames are not counted.
Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database);

class DeadSpace {
 public:
  // The record of a save is `record` from now on. nullptr = the record is deleted.
  void Note(uint64_t save_id, const SaveRecord* record);
  // Forgets everything. The next refresh reads all records of saves, unless they are learned
  // before.
  void Forget() { is_known_ = is_learning_ = false; }

  // Learning works without the commit mutex, which is held only for BeginLearning and Adopt. In
  // between, another DeadSpace, `learned`, loads the records. What commits note meanwhile takes
  // precedence.
  bool is_known() const { return is_known_; }
  void BeginLearning();
  Status Load(const Database& database);
  void Adopt(DeadSpace learned);

  // Brings everything up to date with the database, as `counts` has it.
  Status Refresh(const Database& database, ReferenceCounts* counts);

  // Returns the files as of the last refresh, by address.
  std::vector<ChunkFile> Files() const;
  // Does not count files whose dead bytes are unknown.
  uint64_t DeadBytes() const;
  // Returns saves that have no live frame and no frame in a file. An interrupted reclaim leaves
  // such saves.
  std::vector<uint64_t> Leftovers() const;

  // For tests: the number of saves whose totals were read since the start, and the number that were
  // counted ordinal by ordinal.
  uint64_t num_saves_visited() const { return num_saves_visited_; }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;  // more than a file can have
  struct Live {
    uint32_t stored = 0;  // frames that it has ever stored
    uint32_t frames = 0;
    uint64_t bytes = 0;
  };
  struct KnownFile {
    ChunkFile file;
    bool is_current = false;  // live_frames and live_bytes are right
  };
  using FileMap = std::map<ChunkAddress, KnownFile>;

  void SetRecord(uint64_t save_id, const SaveRecord* record);
  // The record of the save is damaged or lost. Everything in its files then counts as live.
  void SetUnknown(uint64_t save_id) { SetLive(save_id, {UINT32_MAX, kUnknown, 0}); }
  bool IsNoted(uint64_t save_id) const {
    return saves_.contains(save_id) || ended_.contains(save_id) || listed_.contains(save_id);
  }
  Status FindFiles(const Database& database);
  // Makes `files_` what is listed. Returns the name of a file that is not there any more, or "".
  Result<std::string> TakeFiles(const Database& database, std::vector<ChunkFile> listed);
  Status Measure(FileMap::iterator it, ReferenceCounts* counts);
  void SetLive(uint64_t save_id, const Live& live);
  bool LiesInAFile(uint64_t save_id) const;

  bool is_known_ = false;
  bool is_learning_ = false;
  std::map<uint64_t, std::optional<SaveRecord>> noted_;  // while it learns. nullopt = deleted
  std::map<uint64_t, Live> saves_;                       // saves with live frames
  std::set<uint64_t> ended_;                             // saves without anything live
  std::set<uint64_t> listed_;                            // saves with live lists and no live frame
  uint64_t live_bytes_ = 0;                              // of all saves
  FileMap files_;                                        // by their first address
  uint64_t num_saves_visited_ = 0;
};

}  // namespace varve::internal
