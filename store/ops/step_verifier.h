// SPDX-License-Identifier: Apache-2.0
//
// Reads whole steps of a store and says what of them cannot be read. What it has read of one step
// it does not read again for the next. Thread rule: one thread at a time. It reads on several.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/db/store_impl.h"
#include "store/ops/chunk_presence.h"
#include "store/ops/step_part.h"
#include "store/read/sharded_reader.h"

namespace varve::internal {

// What of a step cannot be read.
struct StepFaults {
  bool empty() const { return reason.empty(); }
  void Add(std::string_view tensor, const std::string& why);

  std::string reason;                // the first that was found
  std::vector<std::string> tensors;  // that cannot be read
};

// Adds the steps that a family has records of. Where a block cannot be read, it goes on with the
// next step that is known from elsewhere. It looks from both ends. The only error is a lack of
// memory, threads or descriptors.
Status AddSteps(const Database& db, Family family, std::set<StepKey>* found);
// The same of all families that have records of steps.
Status AddAllSteps(const Database& db, std::set<StepKey>* found);

class StepVerifier {
 public:
  // With `presence` it reads no chunk: a chunk that lies in a file counts as read.
  explicit StepVerifier(const StoreImpl* store, std::optional<ChunkPresence> presence = {})
      : store_(store), presence_(std::move(presence)) {}

  // Finds out whether the records of a step are complete: its tensors have the root digest of its
  // record, and it has all items. Chunks are not read.
  Status CheckRecords(StepKey step, std::string_view run) const;
  // Reads all of a step. Errors: kAborted, and a lack of memory, threads or descriptors. All else
  // is a fault of the step. `add` is told how many raw bytes were looked at.
  Status Verify(StepKey step, std::string_view run, const std::function<void(uint64_t)>& add,
                StepFaults* faults);
  // Finds what of a step can be read. Nothing, if the step has no record. Errors: kAborted, and a
  // lack of memory, threads or descriptors.
  Result<StepPart> FindPart(StepKey step, std::string_view run);

 private:
  struct ListVerdict {
    std::string digests;  // of its chunks, as the content digest hashes them
    std::string fault;    // empty: all its chunks have been read
  };
  using ListKey = std::tuple<ListAddress, DType, ListGeometry>;

  Result<std::vector<StoredShard>> FindShards(const ShardedReader& reader, StepKey step) const;
  Status VerifyTensor(const StoredShard& shard);
  Status FindTensors(const ShardedReader& reader, StepKey step, StepPart* part);
  Status FindTensorsByName(const ShardedReader& reader, StepKey step, StepPart* part);
  Result<std::set<std::string>> FindNames(StepKey step) const;
  Status AddNamesNear(StepKey step, std::set<std::string>* names) const;
  Status AddTensor(std::span<const StoredShard> shards, StepPart* part);
  Result<const ListVerdict*> VerifyList(const TensorRecord& record, size_t index);
  Status VerifyChunks(const std::vector<ChunkRef>& refs, DType dtype, uint64_t first);
  Status FindChunks(const std::vector<ChunkRef>& refs, uint64_t first);

  const StoreImpl* const store_;
  std::optional<ChunkPresence> presence_;
  std::map<ListKey, ListVerdict> lists_;
  std::map<std::pair<ChunkAddress, DType>, Digest> sound_;  // chunks in frames
};

}  // namespace varve::internal
