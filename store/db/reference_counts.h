// SPDX-License-Identifier: Apache-2.0
//
// Counts of references. The count of a list is the number of tensor records that name it. The count
// of a chunk is the number of lists that name it (stored or derived) and of times that frames name
// it as a source. This class holds the counts that one commit touches. It lets no count fall below
// zero, follows every release down to the sources, and writes the result into the commit's batch.
// Thread rule: one thread. It must hold the commit mutex if it changes counts.
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

namespace varve::internal {

// A count of a chunk. 0 means that its frame is gone. Up to kMaxCount it is the count. With
// kDeadBit set the chunk is dead but still on disk, and the other bits are the bytes of its frame.
// A list has a count, or 0 if it is deleted.
inline constexpr uint32_t kDeadBit = uint32_t{1} << 31;
inline constexpr uint32_t kMaxCount = kDeadBit - 1;

// True when the records that count a chunk can be read. A chunk whose count is unknown may be dead,
// and its sources gone. It may be shared with a step that names it, but with no other.
bool HasReadableCount(const Database& database, ChunkAddress address);

// Texts of damage in records. Each text is kept once, and only the first of many are kept.
class DamageNotes {
 public:
  void Add(const std::string& what);
  // Notes damage of a record that counts something.
  void AddUncounted(const Status& damage) {
    Add(std::string(damage.message()) + "; what it counts is kept");
  }
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
};

// Returns the note for a tensor record, by its key, that is released but cannot be read.
std::string DescribeDamagedTensor(std::string_view key, const Status& damage);
// "chunk 3/17", "list 3/0".
std::string Describe(uint64_t save_id, Counted kind, uint32_t number);

// Decodes the record of a save. kNotFound: there is none. kCorruption: it is malformed, or its
// values are impossible.
Result<SaveRecord> DecodeSave(const Database& database, uint64_t save_id,
                              const std::optional<std::string>& value);

// A stored block of counts. They are little-endian. Entries beyond the last stored one are 1.
Result<std::vector<uint32_t>> DecodeCounts(std::string_view value);
std::string EncodeCounts(std::vector<uint32_t> counts);

class ReferenceCounts {
 public:
  explicit ReferenceCounts(const Database* database) : database_(database) {}
  ReferenceCounts(ReferenceCounts&&) = default;  // a copy would have last_ in the original

  // Registers a save that this very commit adds: its record, with everything live, and the deltas
  // and planes of all its frames, by rising ordinal. The counts of its chunks and lists start at 0
  // and are added below.
  Status AddSave(uint64_t save_id, const SaveRecord& record, const SaveBlock& frames);

  // Adds one reference. A dead chunk that is still on disk becomes live again, with its sources.
  // kNotFound: it is gone. If a count cannot be read, or its save has no record, this changes
  // nothing there or below. The chunk or list is then never released, and it is noted as damage.
  // The caller must know in that case that a step names the chunk or the list, and that nobody
  // drops this step meanwhile.
  Status AddChunk(const ChunkRef& ref);
  Status AddList(ListAddress list);

  // Removes one reference. Removing the last one of a list deletes it and releases its chunks.
  // Removing the last one of a chunk marks it dead and releases its sources. Three things are noted
  // as damage, and what they name stays: a list that is missing or malformed, a frame whose sources
  // are unknown, and a count that is 0 already.
  Status ReleaseList(ListAddress list, CommitBatch* batch);

  // For a reclaim: notes that the frame has left the disk. Once nothing is left of the save, it
  // deletes the save with its counts.
  Status MarkGone(ChunkAddress address);

  // Reads without changing anything.
  Result<uint32_t> ChunkCount(ChunkAddress address);
  Result<uint32_t> ListCount(ListAddress list);
  Result<const SaveRecord*> Save(uint64_t save_id);
  // Returns the number of live chunks of a save with ordinals from `begin` up to `end`.
  Result<uint64_t> CountLive(uint64_t save_id, uint32_t begin, uint64_t end);

  // Writes everything that changed. A save of which nothing is left is deleted. A save with dead
  // frames on disk waits for a reclaim.
  Status WriteTo(CommitBatch* batch);

  // Notes records that could not be read but were released or counted. What they name or count
  // stays. So nothing that others need is lost, but its space is not freed.
  void NoteDamage(const std::string& what) { damage_.Add(what); }
  const std::vector<std::string>& damage() const { return damage_.all(); }

  // Calls `visit` with each save whose record this commit changes. nullptr = WriteTo deletes the
  // record.
  void VisitChanged(
      const std::function<void(uint64_t save_id, const SaveRecord* record)>& visit) const;

 private:
  struct Frame {  // what the totals need to know of a chunk
    ChunkAddress address;
    std::optional<Digest> digest;  // to remove its hint from the index. Unknown for a derived chunk
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

  // Puts the block of the count into `block`, if that is not null.
  Result<uint32_t*> Count(uint64_t save_id, Counted kind, uint32_t number, Block** block = nullptr);
  // Returns the block of that key, which must hold the count of `number`.
  Result<std::map<BlockKey, Block>::value_type*> FindCounts(const BlockKey& key, uint32_t number);
  // Returns true when the error says that a record is damaged. The damage has then been noted.
  bool NoteIfDamaged(const Status& status);
  // The same for a count. If anything names a part of a save, the save has a record, so a missing
  // record is damage.
  bool NoteIfUncounted(const Result<uint32_t*>& count);
  Result<SaveEntry*> FindSave(uint64_t save_id);
  Result<const SaveBlock*> FindBlock(ChunkAddress address);
  Result<std::span<const BaseEdge>> FindEdges(ChunkAddress address);
  Result<CoderTotals> PlanesOf(const Frame& frame);
  // The first adds a frame to the live totals of its save, the next removes it.
  Status AddToTotals(const Frame& frame, SaveEntry* entry);
  Status TakeFromTotals(const Frame& frame, SaveEntry* entry);
  Status AddFrame(const Frame& frame);
  Result<bool> AddOne(const Frame& frame);  // true = it became live again
  Status ReleaseFrame(const Frame& frame, CommitBatch* batch);
  Result<bool> ReleaseOne(const Frame& frame, CommitBatch* batch);  // true = it died
  // True when no chunk or list of the save lives and none of its frames is on disk.
  Result<bool> NothingLeft(uint64_t save_id, const SaveRecord& record);
  void DeleteSave(uint64_t save_id, const SaveRecord& record, CommitBatch* batch);
  std::optional<Digest> DigestOf(const Frame& frame) const;
  static Frame FrameOf(const ChunkRef& ref);
  static Frame FrameOf(const BaseEdge& edge);

  const Database* const database_;
  std::map<BlockKey, Block> blocks_;
  // The block that was asked for last. Tensors that lie side by side mostly have lists there.
  std::map<BlockKey, Block>::value_type* last_ = nullptr;
  std::map<uint64_t, SaveEntry> saves_;
  std::map<std::pair<uint64_t, uint32_t>, SaveBlock> save_id_blocks_;
  std::set<uint64_t> deleted_saves_;
  DamageNotes damage_;
};

}  // namespace varve::internal
