// SPDX-License-Identifier: Apache-2.0
//
// A save, from its begin to its commit: a CheckpointWriter with what the hooks, the groups and
// copies need. All saves of a store go through it. The order that makes a save safe:
//   1. the save id is persisted before it is used (StoreImpl::NewSaveId);
//   2. new chunks are encoded, written to files of their own and synced (SavePipeline);
//   3. under the commit mutex every shared chunk and list is counted once more, so that nothing
//      that a drop took away meanwhile is referred to;
//   4. records, lists and counts are written to files and synced;
//   5. one ingest makes these files and the chunk files visible at once (CommitBatch). This is the
//      commit.
// A crash before the end of 5 leaves files in incoming/, which the next open removes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/keys.h"
#include "store/format/record.h"
#include "store/save/chunk_source.h"
#include "store/save/save_tensor.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/store.h"

namespace varve::internal {

class CommitBatch;
class Cursor;
class ReferenceCounts;
struct ReplayedStep;
class SavePipeline;
class StoreImpl;

// Says where the lists of a save's tensors are. They are the parents of a later save of the same
// tensors that is compared with this very step. It is a plain value.
struct SavedLists {
  StepKey step;
  uint64_t save_id = 0;
  std::vector<ListAddress> lists{};  // of all tensors, in the order in which they were put
};

class SaveSession : public CheckpointWriter {
 public:
  // As Store::Begin, of any store.
  static Result<std::unique_ptr<SaveSession>> Begin(Store* store, uint64_t step,
                                                    const SaveOptions& options = {}) {
    return store->BeginSession(step, options);
  }

  // Stores call these. Start is called once, before all else, and pins the parent.
  SaveSession(StoreImpl* store, CheckpointId id, const SaveOptions& options);
  ~SaveSession() override;
  Status Start();

  Status Put(const TensorView& view) override;
  // Does what Put does, with a tensor whose bytes `source` reads. The session shares `spec` and
  // copies nothing of it, so it must not change. Its layout must be canonical. Chunks are cut as
  // the store cuts them (ElementsPerChunk of the dtype).
  Status PutSource(const std::shared_ptr<const TensorSpec>& spec, uint32_t shard,
                   std::unique_ptr<ChunkSource> source);
  Status PutBytes(std::string_view name, std::span<const std::byte> value) override;
  Status SetTrainerProgress(const TrainerProgress& state) override;
  Status SetTopology(const Topology& topology) override;
  Status SetMetric(std::string_view name, double value) override;
  Status AddTag(std::string_view tag) override;

  // Looks up all tensors in the step that the save is compared with, which is pinned, and tells
  // each source what was there (ChunkSource::LearnParent). Call it once, when all tensors are put.
  // Without it Commit looks them up, and tells nobody.
  void ReadParents();
  // True if the save is compared with this very step, and nobody has replaced it.
  bool IsComparedWith(const SavedLists& saved) const {
    return parent_ == saved.step && parent_save_id_ == saved.save_id;
  }
  // Call it in place of ReadParents, when all tensors are put. The parents are the lists of
  // `saved`, whose tensors were the same in the same order. Nothing is looked up, and no source is
  // told. Precondition: IsComparedWith(*saved).
  void UseParents(std::shared_ptr<const SavedLists> saved);
  uint64_t digest_seed() const;
  // The checkpoint has more shards elsewhere, so those here need not make whole tensors.
  void SetPartial() { is_partial_ = true; }
  // Commit calls it once, on its own thread, when all is stored and before anything of it can be
  // seen. It may wait. An error fails the save.
  void SetCondition(std::function<Status()> may_commit) { may_commit_ = std::move(may_commit); }
  // Replaces the compression that the save was started with. Call it before Commit.
  void SetCompression(Compression compression) { options_.compression = compression; }
  // Replaces the time of the commit.
  virtual void SetCreated(std::chrono::system_clock::time_point created) { created_ = created; }

  Result<SaveReport> Commit() override;
  void Abandon() override { Close(); }

  // Return what Commit has stored: the root digest, and the tensors with their content digests, by
  // name, then shard.
  const Digest& root() const { return root_; }
  const std::vector<SaveTensor*>& saved() const { return sorted_; }
  // For UseParents of a later save. It throws std::bad_alloc.
  std::shared_ptr<const SavedLists> saved_lists() const;

 protected:
  const std::map<std::string, double>& metrics() const { return metrics_; }
  // Items by name, encoded.
  const std::map<std::string, std::string>& items() const { return items_; }

 private:
  void Close();
  Status RequireOpen() const;
  Status Taken(const SaveTensor* added, std::string_view name, uint32_t shard);
  Status PinParent(RunId run);
  void FindParents();
  Status FindParent(Cursor* records, TensorRecord* record, SaveTensor* tensor);
  Status CheckShards(Status (*check)(std::span<const SaveTensor* const>)) const;
  std::vector<std::unique_ptr<ReplayedStep>> LinkSteps();
  Status CommitPipeline(SavePipeline* pipeline);
  Status GiveWay(StepKey key, std::optional<StepKey>* parent, ReferenceCounts* counts,
                 CommitBatch* batch);
  Status ResolveRun(CommitBatch* batch, RunId* run);
  Status CountReferences(const SavePipeline& pipeline, ReferenceCounts* counts);
  void PutChunks(const SavePipeline& pipeline, CommitBatch* batch);
  void PutTensors(StepKey key, CommitBatch* batch);
  void PutState(StepKey key, CommitBatch* batch);
  void PutStep(StepKey key, std::optional<StepKey> parent, const SavePipeline& pipeline,
               CommitBatch* batch);
  Digest RootDigest() const;
  SaveReport MakeReport(const SavePipeline& pipeline) const;

  StoreImpl* const store_;
  const CheckpointId id_;
  SaveOptions options_;
  const std::chrono::steady_clock::time_point started_;
  bool open_ = true;
  uint64_t save_id_ = 0;
  std::optional<StepKey> parent_;  // pinned
  uint64_t parent_save_id_ = 0;
  std::shared_ptr<const SavedLists> parent_lists_;  // of UseParents, which tensors point into
  StepKey committed_;                               // by Commit

  SaveTensors tensors_;
  std::vector<SaveTensor*> sorted_;           // once parents are looked for
  std::map<std::string, std::string> items_;  // encoded
  std::string trainer_state_;
  std::string topology_;
  std::map<std::string, double> metrics_;
  std::set<std::string> tags_;
  std::optional<std::chrono::system_clock::time_point> created_;
  uint64_t logical_bytes_ = 0;
  bool is_partial_ = false;
  std::function<Status()> may_commit_;
  std::vector<std::string> warnings_;
  Digest root_;  // once the pipeline has run
};

}  // namespace varve::internal
