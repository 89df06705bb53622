// SPDX-License-Identifier: Apache-2.0
//
// Who names what. A list is counted by the tensor records that name it; a chunk by the lists that
// name it (stored or derived) and by the frames that are deltas of it. This class holds the counts
// that one commit touches, lets nothing fall below zero, follows every release down to the bases,
// and writes the result into the commit's batch. Thread rule: one thread, and under the commit
// mutex whoever changes counts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "store/db/commit_batch.h"
#include "store/db/database.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "varve/result.h"

namespace varve {

// A count of a chunk: 0 = its frame is gone; up to kMaxCount = the count; with kDeadBit set = dead
// but still on disk, the other bits are the bytes of its frame. A list is counted or 0 = deleted.
inline constexpr uint32_t kDeadBit = uint32_t{1} << 31;
inline constexpr uint32_t kMaxCount = kDeadBit - 1;

// Whether the records that count a chunk can be read. One whose count is not known may be dead, and
// its bases gone: it is shared with a step that names it, and with nobody else.
bool HasReadableCount(const Database& database, ChunkAddress address);

// What is wrong with records, each once, and only the first of many.
class DamageNotes {
 public:
  void Add(const std::string& what);
  // Of a record that counts something.
  void AddUncounted(const Status& damage) {
    Add(std::string(damage.message()) + "; what it counts is kept");
  }
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
};

// What is noted of a tensor record, by its key, that is released and cannot be read.
std::string DescribeDamagedTensor(std::string_view key, const Status& damage);
// "chunk 3/17", "list 3/0".
std::string Describe(uint64_t save_id, Counted kind, uint32_t number);

// The record of a save from its value. kNotFound: there is none; kCorruption: it is malformed, or
// says what cannot be.
Result<SaveRecord> DecodeSave(const Database& database, uint64_t save_id,
                              const std::optional<std::string>& value);

// A stored block of counts: little-endian, entries beyond the last stored one are 1.
Result<std::vector<uint32_t>> DecodeCounts(std::string_view value);
std::string EncodeCounts(std::vector<uint32_t> counts);

class ReferenceCounts {
 public:
  explicit ReferenceCounts(const Database* database) : database_(database) {}

  // Registers a save of this very commit: its record (with everything live), and the deltas and
  // planes of all its frames, by rising ordinal. Its chunks and lists start with count 0, to be
  // added below.
  Status AddSave(uint64_t save_id, const SaveRecord& record, const SaveBlock& frames);

  // One more reference. A dead chunk that is still on disk comes back to life, with its bases.
  // kNotFound when it is gone. Of a count that cannot be read, or whose save has no record,
  // nothing is changed here and below: what it counts is never released, and it is noted as damage.
  // The caller knows then that a step that nobody drops meanwhile names the chunk, or the list.
  Status AddChunk(const ChunkRef& ref);
  Status AddList(ListAddress list);

  // One reference less. The last one of a list deletes it and releases its chunks; the last one of
  // a chunk marks it dead and releases its base. The chunks of a list that is missing or malformed
  // stay, and so does the base of a frame of which none is known, or a count that has nothing to
  // take: damage.
  Status ReleaseList(ListAddress list, CommitBatch* batch);

  // Reclaim: the frame has left the disk; and the save with its counts, once nothing is left of
  // it.
  Status MarkGone(ChunkAddress address);

  // Reads without changing.
  Result<uint32_t> ChunkCount(ChunkAddress address);
  Result<uint32_t> ListCount(ListAddress list);
  Result<const SaveRecord*> Save(uint64_t save_id);
  // Live chunks of a save with ordinals from `begin` up to `end`.
  Result<uint64_t> CountLive(uint64_t save_id, uint32_t begin, uint64_t end);

  // Writes everything that changed. A save of which nothing is left is deleted; one with dead
  // frames on disk waits for reclaim.
  Status WriteTo(CommitBatch* batch);

  // Records that could not be read and were released, or counted, all the same. What they name or
  // count stays: nothing that others need is lost, and its space is not given back.
  void NoteDamage(const std::string& what) { damage_.Add(what); }
  const std::vector<std::string>& damage() const { return damage_.all(); }

  // Calls `visit` with each save whose record changes by this commit; nullptr: WriteTo deletes it.
  void VisitChanged(
      const std::function<void(uint64_t save_id, const SaveRecord* record)>& visit) const;

 private:
  struct Frame {  // what the totals need to know of a chunk
    ChunkAddress address;
    std::optional<Digest> digest;  // to take its hint out of the index; unknown for a derived chunk
    Predictor predictor;
    uint32_t raw_bytes;
    uint32_t stored_bytes;
  };
  using BlockKey = std::tuple<uint64_t, Counted, uint32_t>;
  struct Block {
    std::vector<uint32_t> counts;
    bool changed = false;
  };
  struct SaveEntry {
    SaveRecord record;
    bool changed = false;
    bool is_new = false;
  };

  Result<uint32_t*> Count(uint64_t save_id, Counted kind, uint32_t number);
  // True: the error says that a record is damaged, which has been noted.
  bool NoteIfDamaged(const Status& status);
  // The same of a count. A save of which anything is named has a record: an absent one is damage.
  bool NoteIfUncounted(const Result<uint32_t*>& count);
  Result<SaveEntry*> FindSave(uint64_t save_id);
  Result<const SaveBlock*> FindBlock(ChunkAddress address);
  Result<const BaseEdge*> FindEdge(ChunkAddress address);
  Result<CoderTotals> PlanesOf(const Frame& frame);
  // Moves a frame into the live totals of its save, and out of them.
  Status AddToTotals(const Frame& frame, SaveEntry* entry);
  Status TakeFromTotals(const Frame& frame, SaveEntry* entry);
  Status AddFrame(const Frame& frame);
  Result<bool> AddOne(const Frame& frame);  // true: it came back to life
  Status ReleaseFrame(const Frame& frame, CommitBatch* batch);
  Result<bool> ReleaseOne(const Frame& frame, CommitBatch* batch);  // true: it died
  // No chunk or list lives and no frame is on disk any more.
  Result<bool> NothingLeft(uint64_t save_id, const SaveRecord& record);
  void DeleteSave(uint64_t save_id, const SaveRecord& record, CommitBatch* batch);
  std::optional<Digest> DigestOf(const Frame& frame) const;
  static Frame FrameOf(const ChunkRef& ref);
  static Frame FrameOf(const BaseEdge& edge);

  const Database* const database_;
  std::map<BlockKey, Block> blocks_;
  std::map<uint64_t, SaveEntry> saves_;
  std::map<std::pair<uint64_t, uint32_t>, SaveBlock> save_id_blocks_;
  std::set<uint64_t> deleted_saves_;
  DamageNotes damage_;
};

}  // namespace varve
