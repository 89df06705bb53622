// SPDX-License-Identifier: Apache-2.0
//
// A save, from Begin to Commit. The order that makes it safe:
//   1. the save id is persisted before it is used (StoreImpl::NewSaveId);
//   2. new chunks are encoded, written to files of their own and synced (SavePipeline);
//   3. under the commit mutex every shared chunk and list is counted once more, so that nothing
//      that a drop took away meanwhile is referred to;
//   4. records, lists and counts are written to files and synced;
//   5. one ingest makes these files and the chunk files visible at once (CommitBatch). This is the
//      commit.
// A crash before the end of 5 leaves files in incoming/, which the next open removes.
#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/digest.h"
#include "base/guarded.h"
#include "base/util.h"
#include "store/db/cursor.h"
#include "store/db/guarded_store.h"
#include "store/db/store_impl.h"
#include "store/format/frame_totals.h"
#include "store/format/root_digest.h"
#include "store/format/trainer_progress.h"
#include "store/save/save_pipeline.h"
#include "store/save/save_tensor.h"
#include "store/shards/gather.h"
#include "store/shards/overlap.h"
#include "store/shards/regions.h"
#include "store/shards/shard_faults.h"

namespace varve {
namespace {

// What of the root digest's text is held at a time.
constexpr size_t kRootBytes = size_t{64} << 10;

constexpr size_t kMaxItemBytes = size_t{64} << 20;
constexpr uint32_t kElementsPerChunk = 262144;
constexpr uint32_t kByteElementsPerChunk = uint32_t{1} << 20;

// What a save stored, all of it alive.
SaveRecord MakeSave(const SaveTotals& totals, uint32_t num_lists) {
  return {.chunks = totals.chunks,
          .lists = num_lists,
          .stored_bytes = totals.stored_bytes,
          .raw_bytes = totals.raw_bytes,
          .live_chunks = totals.chunks,
          .live_lists = num_lists,
          .live = totals.by_codec,
          .live_coders = totals.by_coder};
}

std::string ShardName(const SaveTensor& shard) { return "shard " + std::to_string(shard.shard); }

// Together they are one tensor, and all of it.
Status CheckGeometry(std::span<const SaveTensor* const> shards) {
  std::vector<ShardLayout> layouts;
  std::vector<ShardHolder> holders;
  for (const SaveTensor* shard : shards) {
    const ShardLayout* const layout = shard->layout;
    if (layout != nullptr && shard->dtype == shards[0]->dtype) layouts.push_back(*layout);
    holders.push_back({shard->shard, shard->dtype, layout});
  }
  if (layouts.size() == shards.size() && ProveCoverage(layouts).ok()) return Status::Ok();
  std::string text;
  for (const std::string& fault : FindShardFaults(holders, "shard").texts) {
    text += (text.empty() ? "" : "; ") + fault;
  }
  return Status::InvalidArgument(text.empty() ? "its shards make no whole tensor" : text);
}

// Shards of equal layouts have equal bytes: which of them is read makes no difference.
Status CheckReplicas(std::span<const SaveTensor* const> shards) {
  std::unordered_map<const ShardLayout*, const SaveTensor*> originals;  // equal layouts are one
  for (const SaveTensor* shard : shards) {
    const SaveTensor& original = *originals.try_emplace(shard->layout, shard).first->second;
    if (shard->content == original.content) continue;
    return Status::InvalidArgument(ShardName(original) + " and " + ShardName(*shard) +
                                   " are replicas, " + ToString(*shard->layout) + ", but differ");
  }
  return Status::Ok();
}

class CheckpointWriterImpl : public SourceWriter {
 public:
  CheckpointWriterImpl(StoreImpl* store, uint64_t step, const SaveOptions& options)
      : store_(store),
        id_{options.run, step},
        options_(options),
        started_(std::chrono::steady_clock::now()) {}
  ~CheckpointWriterImpl() override {
    Guarded("abandoning a save", [this] {
      CheckpointWriterImpl::Abandon();
      return Status::Ok();
    }).IgnoreError();
  }

  Status Begin();

  Status Put(const TensorView& view) override;
  Status PutSource(const TensorView& view, std::shared_ptr<ChunkSource> source) override;
  void FindParents() override;
  Result<std::vector<Digest>> ParentDigests(std::string_view name, uint32_t shard) override;
  uint64_t digest_seed() const override { return store_->digest_seed(); }
  void SetPartial() override { is_partial_ = true; }
  void SetCondition(std::function<Status()> may_commit) override {
    may_commit_ = std::move(may_commit);
  }
  void SetCompression(Compression compression) override { options_.compression = compression; }
  void SetCreated(std::chrono::system_clock::time_point created) override { created_ = created; }
  Digest root() const override { return root_; }
  std::vector<Digest> contents() const override;
  Status PutBytes(std::string_view name, std::span<const std::byte> value) override;
  Status SetTrainerProgress(const TrainerProgress& state) override;
  Status SetTopology(const Topology& topology) override;
  Status SetMetric(std::string_view name, double value) override;
  Status AddTag(std::string_view tag) override;
  Result<SaveReport> Commit() override;
  void Abandon() override;

 private:
  Status RequireOpen() const;
  Status Add(const TensorView& view, std::shared_ptr<ChunkSource> source);
  Status PinParent(RunId run);
  Status FindParent(Cursor* records, TensorRecord* record, SaveTensor* tensor);
  Status CheckShards(Status (*check)(std::span<const SaveTensor* const>)) const;
  std::vector<SaveTensor*> LinkMasters();
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

Status CheckpointWriterImpl::Begin() {
  const Result<RunRecord> run = store_->FindRun(id_.run);
  if (!run.ok() && run.status().code() != StatusCode::kNotFound) return run.status();
  if (run.ok()) {
    VARVE_ASSIGN_OR_RETURN(const auto existing, store_->FindStep({run->id, id_.step}));
    if (existing.has_value() && options_.on_existing == OnExisting::kError) {
      return Status::AlreadyExists(StepName(id_.run, id_.step) + " exists already");
    }
  }
  if (run.ok()) VARVE_RETURN_IF_ERROR(PinParent(run->id));
  if (!run.ok() && options_.parent.has_value()) return run.status();
  VARVE_ASSIGN_OR_RETURN(save_id_, store_->NewSaveId());
  return Status::Ok();
}

// Pins first and looks afterwards. A default parent that is being dropped at this very moment is no
// error: the next newest takes its place. Nor is one that cannot be read: the save goes on without.
Status CheckpointWriterImpl::PinParent(RunId run) {
  while (true) {
    std::optional<uint64_t> step = options_.parent;
    if (!step.has_value()) {
      VARVE_ASSIGN_OR_RETURN(step, store_->LatestStep(id_.run));
    }
    if (!step.has_value()) return Status::Ok();
    const StepKey key{run, *step};
    if (store_->pins()->PinStep(key)) {
      const auto record = store_->FindStep(key);
      if (record.ok() && record->has_value()) {
        parent_ = key;
        return Status::Ok();
      }
      store_->pins()->UnpinStep(key);
      if (!record.ok()) {
        warnings_.push_back("the save is not compared with " + StepName(id_.run, *step) +
                            ", which cannot be read: " + record.status().message());
        return Status::Ok();
      }
      if (options_.parent.has_value()) {
        return Status::NotFound("the parent, " + StepName(id_.run, *step) + ", does not exist");
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a drop is under way
  }
}

Status CheckpointWriterImpl::RequireOpen() const {
  if (open_) return Status::Ok();
  return Status::FailedPrecondition("the save of " + StepName(id_.run, id_.step) +
                                    " has been committed or abandoned");
}

Status CheckpointWriterImpl::Put(const TensorView& view) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateView(view, /*has_data=*/true));
  return Add(view, nullptr);
}

Status CheckpointWriterImpl::PutSource(const TensorView& view,
                                       std::shared_ptr<ChunkSource> source) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateView(view, /*has_data=*/false));
  TensorView dense = view;
  dense.data = nullptr;
  dense.strides = {};
  return Add(dense, std::move(source));
}

Status CheckpointWriterImpl::Add(const TensorView& view, std::shared_ptr<ChunkSource> source) {
  SaveTensor* const tensor = tensors_.Add(view);
  if (tensor == nullptr) {
    return Status::InvalidArgument("tensor " + std::string(view.name) + " shard " +
                                   std::to_string(view.shard) +
                                   " was put twice into one checkpoint");
  }
  tensor->chunks = std::move(source);
  logical_bytes_ += tensor->Geometry().LogicalBytes();
  return Status::Ok();
}

Status CheckpointWriterImpl::PutBytes(std::string_view name, std::span<const std::byte> value) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateItem(name, value));
  const Digest digest = ComputeDigest(store_->digest_seed(), value);
  if (!items_.try_emplace(std::string(name), EncodeItemRecord(digest, value)).second) {
    return Status::InvalidArgument("item " + std::string(name) +
                                   " was put twice into one checkpoint");
  }
  return Status::Ok();
}

Status CheckpointWriterImpl::SetTrainerProgress(const TrainerProgress& state) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  trainer_state_ = EncodeTrainerProgress(state);
  return Status::Ok();
}

Status CheckpointWriterImpl::SetTopology(const Topology& topology) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  topology_ = EncodeTopology(topology);
  return Status::Ok();
}

Status CheckpointWriterImpl::SetMetric(std::string_view name, double value) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateName("metric name", name));
  metrics_[std::string(name)] = value;
  return Status::Ok();
}

Status CheckpointWriterImpl::AddTag(std::string_view tag) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  tags_.emplace(tag);
  return Status::Ok();
}

void CheckpointWriterImpl::Abandon() {
  if (!open_) return;
  open_ = false;
  if (parent_.has_value()) store_->pins()->UnpinStep(*parent_);
  store_->pins()->EndSave(save_id_);
}

Result<SaveReport> CheckpointWriterImpl::Commit() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  SavePipeline pipeline(store_, save_id_, options_);
  const Status status = Guarded("committing", [&]() -> Status {
    if (sorted_.size() != tensors_.size()) FindParents();
    VARVE_RETURN_IF_ERROR(CheckShards(CheckGeometry));
    VARVE_RETURN_IF_ERROR(pipeline.Run(LinkMasters(), &tensors_));
    VARVE_RETURN_IF_ERROR(CheckShards(CheckReplicas));
    root_ = RootDigest();
    if (may_commit_ != nullptr) VARVE_RETURN_IF_ERROR(may_commit_());
    return CommitPipeline(&pipeline);
  });
  Abandon();  // whatever happened, the writer is done and its pins go
  if (!status.ok()) return status.WithContext("saving " + StepName(id_.run, id_.step));
  return MakeReport(pipeline);
}

// Learns the tensor's lists of one step ago, if it was there and had this dtype and cut. `record`
// is memory to decode into.
Status CheckpointWriterImpl::FindParent(Cursor* records, TensorRecord* record, SaveTensor* tensor) {
  VARVE_ASSIGN_OR_RETURN(const auto value,
                         records->Find(keys::Tensor(*parent_, tensor->name, tensor->shard)));
  if (!value.has_value()) return Status::Ok();
  VARVE_RETURN_IF_ERROR(DecodeTensorRecord(*value, record));
  if (record->dtype != tensor->dtype ||
      record->elements_per_chunk != ElementsPerChunk(tensor->dtype)) {
    return Status::Ok();
  }
  tensor->parent_lists = tensors_.Keep(record->lists);
  tensor->parent_chunks = record->NumChunks();
  return Status::Ok();
}

// Calls `check` with the shards of each tensor that has layouts.
Status CheckpointWriterImpl::CheckShards(
    Status (*check)(std::span<const SaveTensor* const>)) const {
  if (is_partial_) return Status::Ok();
  constexpr size_t kShown = 20;
  size_t num_faults = 0;
  std::string text;
  std::vector<const SaveTensor*> shards;
  for (auto it = sorted_.begin(); it != sorted_.end();) {
    const std::string_view name = (*it)->name;
    shards.clear();
    bool has_layouts = false;
    for (; it != sorted_.end() && (*it)->name == name; ++it) {
      shards.push_back(*it);
      has_layouts = has_layouts || (*it)->layout != nullptr;
    }
    if (!has_layouts) continue;
    const Status status = check(shards);
    if (status.ok() || ++num_faults > kShown) continue;
    text += (text.empty() ? "tensor " : "\ntensor ") + std::string(name) + ": " +
            std::string(status.message());
  }
  if (num_faults == 0) return Status::Ok();
  if (num_faults > kShown) text += "\nand " + std::to_string(num_faults - kShown) + " tensors more";
  return Status::InvalidArgument(text);
}

// One pass over the records of the parent, however many there are: both are in the order of names.
void CheckpointWriterImpl::FindParents() {
  sorted_ = tensors_.Sorted();
  if (!parent_.has_value()) return;
  Cursor records(store_->database(), Family::kTensors);
  TensorRecord record;
  for (SaveTensor* const tensor : sorted_) {
    const Status found = FindParent(&records, &record, tensor);
    if (found.ok()) continue;
    const Status named = found.WithContext("tensor " + std::string(tensor->name));
    warnings_.push_back(ParentWarning(tensor->name, named));
  }
}

Result<std::vector<Digest>> CheckpointWriterImpl::ParentDigests(std::string_view name,
                                                                uint32_t shard) {
  std::vector<Digest> digests;
  SaveTensor* const tensor = tensors_.Find(name, shard);
  if (tensor == nullptr) return Status::NotFound("tensor " + std::string(name) + " was not put");
  // One that cannot be read is as good as none; the commit warns of it.
  for (size_t i = 0; i < tensor->parent_lists.size(); ++i) {
    const auto refs =
        store_->ReadList(tensor->parent_lists[i], tensor->parent_chunks - i * kChunksPerList);
    if (!refs.ok()) return std::vector<Digest>();
    for (const ChunkRef& ref : *refs) digests.push_back(ref.digest);
  }
  tensor->are_parents_known = tensor->parent_chunks == tensor->Geometry().NumChunks();
  return digests;
}

// Connects derived tensors with their masters, and gives them in an order that has each behind its
// master. A master is placed first, and its bytes are needed no longer than that.
std::vector<SaveTensor*> CheckpointWriterImpl::LinkMasters() {
  const bool may_derive = store_->options().compression != Compression::kNone;
  std::vector<std::pair<const SaveTensor*, SaveTensor*>> derived;
  for (SaveTensor& tensor : tensors_.all()) {
    if (!may_derive || tensor.derived_from.empty()) continue;
    SaveTensor* const master = tensors_.Find(tensor.derived_from, tensor.shard);
    const bool narrow = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
    // Chunks are compared one by one, so shapes make no difference, nor padding behind the master.
    if (master != nullptr && narrow && master->dtype == DType::kF32 && master->strides.empty() &&
        tensor.strides.empty() && master->Geometry().NumChunks() == tensor.Geometry().NumChunks()) {
      tensor.master = master;
      derived.emplace_back(master, &tensor);
    }
  }
  std::ranges::stable_sort(derived, std::less<>(), [](const auto& pair) { return pair.first; });
  std::vector<SaveTensor*> order;
  order.reserve(tensors_.size());
  for (SaveTensor& tensor : tensors_.all()) {
    if (tensor.master != nullptr) continue;
    order.push_back(&tensor);
    const SaveTensor* const master = &tensor;
    for (const auto& [of, copy] : std::ranges::equal_range(
             derived, master, std::less<>(), [](const auto& pair) { return pair.first; })) {
      order.push_back(copy);
    }
  }
  return order;
}

Status CheckpointWriterImpl::CommitPipeline(SavePipeline* pipeline) {
  const auto lock = store_->LockCommits();
  CommitBatch batch;
  ReferenceCounts counts(store_->database());
  StepKey key{0, id_.step};
  VARVE_RETURN_IF_ERROR(ResolveRun(&batch, &key.run));
  VARVE_ASSIGN_OR_RETURN(const auto existing, store_->FindStep(key));
  if (existing.has_value() && options_.on_existing == OnExisting::kError) {
    return Status::AlreadyExists("another writer has committed it meanwhile");
  }
  // References are added before any is released: what both steps share must not die in between.
  VARVE_RETURN_IF_ERROR(CountReferences(*pipeline, &counts));
  std::optional<StepKey> parent = parent_;
  if (existing.has_value()) {
    VARVE_RETURN_IF_ERROR(GiveWay(key, &parent, &counts, &batch));
  }
  VARVE_RETURN_IF_ERROR(counts.WriteTo(&batch));
  PutChunks(*pipeline, &batch);
  PutTensors(key, &batch);
  PutState(key, &batch);
  PutStep(key, parent, *pipeline, &batch);
  for (const std::string& tag : tags_) {
    batch.Put(Family::kMeta, keys::Tag(key.run, tag), EncodeNumber(id_.step));
  }
  VARVE_RETURN_IF_ERROR(store_->CommitCounted(batch, counts, pipeline->files()->paths()));
  store_->NoteCommit();
  warnings_.insert(warnings_.end(), counts.damage().begin(), counts.damage().end());
  return Status::Ok();
}

// The step is there already: it is replaced, or moves to a fork with all later ones.
Status CheckpointWriterImpl::GiveWay(StepKey key, std::optional<StepKey>* parent,
                                     ReferenceCounts* counts, CommitBatch* batch) {
  const auto is_pinned_by_others = [&](uint64_t step) {
    const StepKey pinned{key.run, step};
    return store_->pins()->NumStepPins(pinned) > (parent_ == pinned ? 1 : 0);
  };
  std::vector<uint64_t> steps{id_.step};
  if (options_.on_existing == OnExisting::kFork) {
    VARVE_ASSIGN_OR_RETURN(steps, store_->StepsFrom(key.run, id_.step));
  }
  for (const uint64_t step : steps) {
    if (options_.on_existing == OnExisting::kFork && store_->pins()->IsDropping({key.run, step})) {
      return Status::FailedPrecondition(StepName(id_.run, step) + " is being dropped");
    }
    if (!is_pinned_by_others(step)) continue;
    return Status::FailedPrecondition(StepName(id_.run, step) +
                                      " is the base of another save in progress");
  }
  if (options_.on_existing == OnExisting::kReplace) return store_->ReleaseStep(key, counts, batch);
  VARVE_ASSIGN_OR_RETURN(const auto moved, store_->MoveSteps(id_.run, key, batch));
  if (parent->has_value() && (*parent)->run == key.run && (*parent)->step >= id_.step) {
    (*parent)->run = moved;
  }
  return Status::Ok();
}

// The run's id; a run that does not exist yet is made by this very commit.
Status CheckpointWriterImpl::ResolveRun(CommitBatch* batch, RunId* run) {
  const Result<RunRecord> found = store_->FindRun(id_.run);
  if (found.ok()) {
    *run = found->id;
    return Status::Ok();
  }
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  VARVE_ASSIGN_OR_RETURN(*run, store_->NewRun(id_.run, std::nullopt, batch));
  return Status::Ok();
}

Status CheckpointWriterImpl::CountReferences(const SavePipeline& pipeline,
                                             ReferenceCounts* counts) {
  const auto num_lists = static_cast<uint32_t>(pipeline.new_lists().size());
  if (num_lists > 0 || pipeline.totals().chunks > 0) {
    const SaveRecord save_id = MakeSave(pipeline.totals(), num_lists);
    VARVE_RETURN_IF_ERROR(counts->AddSave(save_id_, save_id, pipeline.frames()));
  }
  for (const SaveTensor& tensor : tensors_.all()) {
    for (const ListAddress& list : tensor.lists) VARVE_RETURN_IF_ERROR(counts->AddList(list));
  }
  const auto& chunks = pipeline.new_chunks();
  for (uint32_t ordinal = 0; ordinal < chunks.size(); ++ordinal) {
    const SavePipeline::NewChunk& chunk = chunks[ordinal];
    const ChunkRef ref{.digest = chunk.digest,
                       .predictor = chunk.predictor,
                       .raw_bytes = chunk.raw_bytes,
                       .stored_bytes = chunk.stored_bytes,
                       .address = {save_id_, ordinal}};
    for (uint32_t i = 0; i < chunk.num_refs; ++i) VARVE_RETURN_IF_ERROR(counts->AddChunk(ref));
  }
  for (const ChunkRef& ref : pipeline.old_refs()) VARVE_RETURN_IF_ERROR(counts->AddChunk(ref));
  return Status::Ok();
}

// New lists, and the index of new chunks. `pipeline` must outlive the batch.
void CheckpointWriterImpl::PutChunks(const SavePipeline& pipeline, CommitBatch* batch) {
  if (pipeline.new_lists().size() > 0) {
    batch->PutSorted(Family::kLists,
                     [&pipeline, save_id = save_id_](const CommitBatch::Emit& emit) {
                       uint32_t number = 0;
                       return pipeline.new_lists().ForEach([&](std::string_view value) {
                         return emit(keys::List({save_id, number++}), value);
                       });
                     });
  }
  const auto& chunks = pipeline.new_chunks();
  if (chunks.empty()) return;
  batch->PutSorted(Family::kIndex, [&chunks, save_id = save_id_](const CommitBatch::Emit& emit) {
    std::vector<uint32_t> order(chunks.size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](uint32_t ordinal) {
      const Digest& digest = chunks[ordinal].digest;
      return std::pair(digest.hi, digest.lo);
    };
    std::ranges::sort(order, {}, [&](uint32_t i) { return std::pair(key(i), i); });
    for (size_t i = 0; i < order.size(); ++i) {
      // Of several with one digest, which differ then, the last.
      if (i + 1 < order.size() && key(order[i]) == key(order[i + 1])) continue;
      VARVE_RETURN_IF_ERROR(
          emit(keys::Index(chunks[order[i]].digest), EncodeAddress({save_id, order[i]})));
    }
    return Status::Ok();
  });
}

void CheckpointWriterImpl::PutTensors(StepKey key, CommitBatch* batch) {
  if (sorted_.empty()) return;
  batch->PutSorted(Family::kTensors, [this, key](const CommitBatch::Emit& emit) {
    for (const SaveTensor* tensor : sorted_) {
      VARVE_RETURN_IF_ERROR(emit(keys::Tensor(key, tensor->name, tensor->shard),
                                 EncodeTensorRecord(tensor->Record(save_id_))));
    }
    return Status::Ok();
  });
}

void CheckpointWriterImpl::PutState(StepKey key, CommitBatch* batch) {
  if (!trainer_state_.empty()) {
    batch->Put(Family::kState, keys::TrainerProgress(key), trainer_state_);
  }
  if (!topology_.empty()) batch->Put(Family::kState, keys::Topology(key), topology_);
  for (const auto& [name, value] : items_) {
    batch->Put(Family::kState, keys::Item(key, name), value);
  }
}

void CheckpointWriterImpl::PutStep(StepKey key, std::optional<StepKey> parent,
                                   const SavePipeline& pipeline, CommitBatch* batch) {
  const auto created = created_.value_or(std::chrono::system_clock::now()).time_since_epoch();
  StepRecord record;
  record.save_id = save_id_;
  record.created_us = std::chrono::duration_cast<std::chrono::microseconds>(created).count();
  record.parent = parent;
  record.num_tensors = tensors_.size();
  record.num_items = items_.size();
  record.logical_bytes = logical_bytes_;
  record.new_bytes = pipeline.totals().raw_bytes;
  record.stored_bytes = pipeline.totals().stored_bytes;
  record.root = root_;
  record.metrics = metrics_;
  batch->Put(Family::kSteps, keys::Step(key), EncodeStepRecord(record));
}

// docs/format.md, "Root digest".
Digest CheckpointWriterImpl::RootDigest() const {
  DigestStream root(store_->digest_seed());
  std::string text;
  for (const SaveTensor* tensor : sorted_) {
    AppendToRoot(tensor->name, tensor->shard, tensor->Record(save_id_), &text);
    if (text.size() < kRootBytes) continue;
    root.Add(AsBytes(text));
    text.clear();
  }
  root.Add(AsBytes(text));
  return root.Get();
}

std::vector<Digest> CheckpointWriterImpl::contents() const {
  std::vector<Digest> contents;
  contents.reserve(sorted_.size());
  for (const SaveTensor* tensor : sorted_) contents.push_back(tensor->content);
  return contents;
}

SaveReport CheckpointWriterImpl::MakeReport(const SavePipeline& pipeline) const {
  SaveReport report;
  report.id = id_;
  report.warnings = warnings_;
  report.warnings.insert(report.warnings.end(), pipeline.warnings().begin(),
                         pipeline.warnings().end());
  report.num_tensors = tensors_.size();
  report.logical_bytes = logical_bytes_;
  report.new_bytes = pipeline.totals().raw_bytes;
  report.stored_bytes = pipeline.totals().stored_bytes;
  report.elapsed = std::chrono::steady_clock::now() - started_;
  FrameTotals frames;
  frames.Add(MakeSave(pipeline.totals(), 0));
  report.by_codec = frames.CodecRows();
  report.by_coder = frames.CoderRows();
  return report;
}

}  // namespace

namespace {

Status ValidateViewLayout(const TensorView& view) {
  VARVE_RETURN_IF_ERROR(ValidateLayout(*view.layout));
  VARVE_RETURN_IF_ERROR(NumBytes(view.dtype, view.layout->global_shape).status());
  const std::vector<int64_t> local = view.layout->LocalShape();
  if (std::equal(local.begin(), local.end(), view.shape.begin(), view.shape.end())) {
    return Status::Ok();
  }
  return Status::InvalidArgument("the shape is " + ShapeName(view.shape) + ", that of its layout " +
                                 ToString(*view.layout) + " is " + ShapeName(local));
}

// Elements of less than a byte can be moved by whole bytes only: what begins or ends within one
// could not be read back as a part of the tensor.
Status ValidateWholeBytes(const TensorView& view) {
  const auto bits = static_cast<uint64_t>(DTypeBits(view.dtype));
  if (bits % 8 == 0) return Status::Ok();
  const Overlap overlap(*view.layout, ShardLayout::Whole(view.layout->global_shape));
  if (overlap.IsOnWholeBytes(bits)) return Status::Ok();
  return Status::InvalidArgument("its layout " + ToString(*view.layout) +
                                 " cuts it within a byte, in which several " +
                                 std::string(DTypeName(view.dtype)) +
                                 " elements lie: cut it so that each run of elements fills whole "
                                 "bytes, or save the bytes as U8");
}

}  // namespace

Status ValidateView(const TensorView& view, bool has_data) {
  VARVE_RETURN_IF_ERROR(ValidateName("tensor name", view.name));
  const auto tensor = [&] { return "tensor " + std::string(view.name); };
  if (DTypeBits(view.dtype) == 0) {
    return Status::InvalidArgument(tensor() + ": dtype " +
                                   std::to_string(static_cast<int>(view.dtype)) + " is unknown");
  }
  const Result<uint64_t> bytes = NumBytes(view.dtype, view.shape);
  if (!bytes.ok()) return bytes.status().WithContext(tensor());
  if (view.shard == kAllShards) {
    return Status::InvalidArgument(tensor() + ": shard number " + std::to_string(view.shard) +
                                   " is reserved");
  }
  if (view.layout != nullptr) {
    Status layout = ValidateViewLayout(view);
    // What another store has already is copied as it is.
    if (layout.ok() && has_data) layout = ValidateWholeBytes(view);
    if (!layout.ok()) return layout.WithContext(tensor());
  }
  if (has_data && *bytes > 0 && view.data == nullptr) {
    return Status::InvalidArgument(tensor() + ": data is null, expected " + std::to_string(*bytes) +
                                   " bytes");
  }
  if (!view.strides.empty() && view.strides.size() != view.shape.size()) {
    return Status::InvalidArgument(tensor() + ": " + std::to_string(view.strides.size()) +
                                   " strides for " + std::to_string(view.shape.size()) + " axes");
  }
  if (!IsDense(view.shape, view.strides) && DTypeBits(view.dtype) % 8 != 0) {
    return Status::InvalidArgument(tensor() + ": " + std::string(DTypeName(view.dtype)) +
                                   " tensors must be dense");
  }
  return Status::Ok();
}

Status ValidateItem(std::string_view name, std::span<const std::byte> value) {
  VARVE_RETURN_IF_ERROR(ValidateName("item name", name));
  if (value.size() > kMaxItemBytes) {
    return Status::InvalidArgument("item " + std::string(name) + " has " +
                                   std::to_string(value.size()) +
                                   " bytes, at most 64 MiB fit; save it as a U8 tensor");
  }
  return Status::Ok();
}

uint32_t ElementsPerChunk(DType dtype) {
  // Weights, masters and moments are cut at the same elements whatever their type; tensors of
  // plain bytes (data, masks) have no such partner and are cut at 1 MiB.
  const bool bytes = dtype == DType::kU8 || dtype == DType::kI8 || dtype == DType::kBool;
  return bytes ? kByteElementsPerChunk : kElementsPerChunk;
}

Result<std::unique_ptr<CheckpointWriter>> StoreImpl::Begin(uint64_t step,
                                                           const SaveOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  auto writer = std::make_unique<GuardedWriter<CheckpointWriterImpl>>(this, step, options);
  VARVE_RETURN_IF_ERROR(writer->Begin());
  return std::unique_ptr<CheckpointWriter>(std::move(writer));
}

}  // namespace varve
