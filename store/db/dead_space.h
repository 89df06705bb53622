// SPDX-License-Identifier: Apache-2.0
//
// How much of each chunk file is dead, known without reading a count: a table file says how many
// frames of how many bytes are in it, and the records of saves how many of them live. The totals
// of saves are kept in memory from the first refresh on, and commits bring them up to date; so
// what a reclaim has to do is known at the cost of what has changed since the last one. Only a
// save that lies in several files and lives in part is counted ordinal by ordinal. Thread rule:
// one thread, under the commit mutex.
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

namespace varve {

struct ChunkFile {
  std::string name;
  uint64_t bytes = 0;  // on the disk
  ChunkAddress first;
  ChunkAddress last;
  // Filled by DeadSpace.
  uint64_t frames = 0;  // in it, dead or alive
  uint64_t frame_bytes = 0;
  uint64_t live_frames = 0;
  uint64_t live_bytes = 0;  // about, where a save lies in several files

  bool HasDead() const { return live_frames < frames; }
  // A save in it has no record that can be read: all of it is taken to live.
  bool IsUnknown() const { return live_frames > frames; }
  uint64_t DeadBytes() const { return frame_bytes - std::min(frame_bytes, live_bytes); }
  bool operator<(const ChunkFile& other) const { return first < other.first; }
};

// By address. Their frames are not counted.
Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database);

class DeadSpace {
 public:
  // The record of a save is this from now on; nullptr: it is gone.
  void Note(uint64_t save_id, const SaveRecord* record);
  // Nothing is known, as at the beginning: the next refresh reads all records of saves, unless
  // they are learned before.
  void Forget() { is_known_ = is_learning_ = false; }

  // Learning without the commit mutex, which is held only for BeginLearning and Adopt. In between
  // `learned`, another one, loads; what commits note meanwhile counts.
  bool is_known() const { return is_known_; }
  void BeginLearning();
  Status Load(const Database& database);
  void Adopt(DeadSpace learned);

  // Brings everything up to date with the database, as `counts` has it.
  Status Refresh(const Database& database, ReferenceCounts* counts);

  // As of the last refresh, by address.
  std::vector<ChunkFile> Files() const;
  // Without files of which it is not known.
  uint64_t DeadBytes() const;
  // Saves of which nothing lives and no frame is in a file: a reclaim did not come to its end.
  std::vector<uint64_t> Leftovers() const;

  // Saves whose totals were read since the beginning, and those counted ordinal by ordinal. For
  // tests.
  uint64_t num_saves_visited() const { return num_saves_visited_; }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;  // more than a file can have
  struct Live {
    uint32_t stored = 0;  // frames that it ever stored
    uint32_t frames = 0;
    uint64_t bytes = 0;
  };
  struct KnownFile {
    ChunkFile file;
    bool is_current = false;  // live_frames and live_bytes are right
  };
  using FileMap = std::map<ChunkAddress, KnownFile>;

  void SetRecord(uint64_t save_id, const SaveRecord* record);
  // Its record is damaged or lost: of the files in which it lies all is taken to live.
  void SetUnknown(uint64_t save_id) { SetLive(save_id, {UINT32_MAX, kUnknown, 0}); }
  bool IsNoted(uint64_t save_id) const {
    return saves_.contains(save_id) || ended_.contains(save_id) || listed_.contains(save_id);
  }
  Status FindFiles(const Database& database);
  Status Measure(FileMap::iterator it, ReferenceCounts* counts);
  void SetLive(uint64_t save_id, const Live& live);
  bool LiesInAFile(uint64_t save_id) const;

  bool is_known_ = false;
  bool is_learning_ = false;
  std::map<uint64_t, std::optional<SaveRecord>> noted_;  // while it learns; nullopt: gone
  std::map<uint64_t, Live> saves_;                       // those of which frames live
  std::set<uint64_t> ended_;                             // those of which nothing lives
  std::set<uint64_t> listed_;                            // those of which lists live, and no frame
  uint64_t live_bytes_ = 0;                              // of all saves
  FileMap files_;                                        // by their first address
  uint64_t num_saves_visited_ = 0;
};

}  // namespace varve
