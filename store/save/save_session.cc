// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_session.h"

#include <algorithm>
#include <numeric>
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
#include "store/save/replayed_step.h"
#include "store/save/save_order.h"
#include "store/save/save_pipeline.h"
#include "store/save/validate_view.h"
#include "store/shards/regions.h"
#include "store/shards/shard_faults.h"

namespace varve::internal {

namespace {

// What of the root digest's text is held at a time.
constexpr size_t kRootBytes = size_t{64} << 10;

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

}  // namespace

SaveSession::SaveSession(StoreImpl* store, CheckpointId id, const SaveOptions& options)
    : store_(store),
      id_(std::move(id)),
      options_(options),
      started_(std::chrono::steady_clock::now()) {}

SaveSession::~SaveSession() {
  Guarded("abandoning a save", [this] {
    Close();
    return Status::Ok();
  }).IgnoreError();
}

uint64_t SaveSession::digest_seed() const { return store_->digest_seed(); }

Status SaveSession::Start() {
  const Result<RunRecord> run = store_->FindRun(id_.run);
  if (!run.ok() && run.status().code() != StatusCode::kNotFound) return run.status();
  if (run.ok()) {
    VARVE_ASSIGN_OR_RETURN(const auto existing, store_->FindStep({run->id, id_.step}));
    if (existing.has_value() && options_.on_existing == OnExisting::kError) {
      return Status::AlreadyExists(StepName(id_.run, id_.step) +
                                   " exists already; save another step, or let "
                                   "SaveOptions::on_existing (--on-existing) replace or fork it");
    }
  }
  if (run.ok()) VARVE_RETURN_IF_ERROR(PinParent(run->id));
  if (!run.ok() && options_.parent.has_value()) return run.status();
  VARVE_ASSIGN_OR_RETURN(save_id_, store_->NewSaveId());
  return Status::Ok();
}

// Pins first and looks afterwards. A default parent that is being dropped at this very moment is no
// error: the next newest takes its place. Nor is one that cannot be read: the save goes on without.
Status SaveSession::PinParent(RunId run) {
  while (true) {
    std::optional<uint64_t> step = options_.parent;
    if (!step.has_value()) {
      VARVE_ASSIGN_OR_RETURN(step, store_->LatestStep(id_.run));
    }
    if (!step.has_value()) return Status::Ok();
    const StepKey key{run, *step};
    if (store_->pins()->PinStep(key)) {
      parent_ = key;
      const auto record = store_->FindStep(key);
      if (record.ok() && record->has_value()) {
        parent_save_id_ = (*record)->save_id;
        return Status::Ok();
      }
      parent_.reset();
      store_->pins()->UnpinStep(key);
      if (!record.ok()) {
        warnings_.push_back("the save is not compared with " + StepName(id_.run, *step) +
                            ", which cannot be read: " + record.status().message());
        return Status::Ok();
      }
      if (options_.parent.has_value()) {
        return Status::NotFound("the parent, " + StepName(id_.run, *step) +
                                ", does not exist; name a step of this run, or none");
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a drop is under way
  }
}

Status SaveSession::RequireOpen() const {
  if (open_) return Status::Ok();
  return Status::FailedPrecondition("the save of " + StepName(id_.run, id_.step) +
                                    " has been committed or abandoned; begin another save");
}

Status SaveSession::Put(const TensorView& view) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateView(view, /*has_data=*/true));
  return Taken(tensors_.Add(view), view.name, view.shard);
}

Status SaveSession::PutSource(const std::shared_ptr<const TensorSpec>& spec, uint32_t shard,
                              std::unique_ptr<ChunkSource> source) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  TensorView view = spec->View();
  view.shard = shard;
  VARVE_RETURN_IF_ERROR(ValidateView(view, /*has_data=*/false));
  SaveTensor* const added = tensors_.Add(spec, shard);
  if (added != nullptr) added->chunks = std::move(source);
  return Taken(added, spec->name, shard);
}

// `added` is null if the tensor was there already.
Status SaveSession::Taken(const SaveTensor* added, std::string_view name, uint32_t shard) {
  if (added == nullptr) {
    return Status::InvalidArgument("tensor " + std::string(name) + " shard " +
                                   std::to_string(shard) +
                                   " was put twice into one checkpoint; give it another name");
  }
  logical_bytes_ += added->Geometry().LogicalBytes();
  return Status::Ok();
}

Status SaveSession::PutBytes(std::string_view name, std::span<const std::byte> value) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateItem(name, value));
  const Digest digest = ComputeDigest(store_->digest_seed(), value);
  if (!items_.try_emplace(std::string(name), EncodeItemRecord(digest, value)).second) {
    return Status::InvalidArgument("item " + std::string(name) +
                                   " was put twice into one checkpoint; give it another name");
  }
  return Status::Ok();
}

Status SaveSession::SetTrainerProgress(const TrainerProgress& state) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  trainer_state_ = EncodeTrainerProgress(state);
  return Status::Ok();
}

Status SaveSession::SetTopology(const Topology& topology) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  topology_ = EncodeTopology(topology);
  return Status::Ok();
}

Status SaveSession::SetMetric(std::string_view name, double value) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateName("metric name", name));
  metrics_[std::string(name)] = value;
  return Status::Ok();
}

Status SaveSession::AddTag(std::string_view tag) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  tags_.emplace(tag);
  return Status::Ok();
}

void SaveSession::Close() {
  if (!open_) return;
  open_ = false;
  if (parent_.has_value()) store_->pins()->UnpinStep(*parent_);
  store_->pins()->EndSave(save_id_);
}

Result<SaveReport> SaveSession::Commit() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  SavePipeline pipeline(store_, save_id_, options_);
  const Status status = Guarded("committing", [&]() -> Status {
    if (sorted_.size() != tensors_.size()) FindParents();
    VARVE_RETURN_IF_ERROR(CheckShards(CheckGeometry));
    const auto find = [this](std::string_view name, uint32_t shard) {
      return tensors_.Find(name, shard);
    };
    const bool has_copies =
        store_->options().compression != Compression::kNone && LinkMasters(&tensors_.all(), find);
    const std::vector<std::unique_ptr<ReplayedStep>> steps = LinkSteps();
    std::vector<SaveTensor*> order;
    if (has_copies || !steps.empty() || !tensors_.are_sorted()) {
      order = SaveOrder<SaveTensor>(&tensors_.all());
    }
    VARVE_RETURN_IF_ERROR(pipeline.Run(order.empty() ? sorted_ : order, &tensors_));
    order = {};
    VARVE_RETURN_IF_ERROR(CheckShards(CheckReplicas));
    root_ = RootDigest();
    if (may_commit_ != nullptr) VARVE_RETURN_IF_ERROR(may_commit_());
    return CommitPipeline(&pipeline);
  });
  Close();  // whatever happened, the save is over and its pins go
  if (!status.ok()) return status.WithContext("saving " + StepName(id_.run, id_.step));
  return MakeReport(pipeline);
}

// Learns the tensor's lists of one step ago, if it was there and had this dtype and cut. `record`
// is memory to decode into.
Status SaveSession::FindParent(Cursor* records, TensorRecord* record, SaveTensor* tensor) {
  VARVE_ASSIGN_OR_RETURN(const auto value,
                         records->Find(keys::Tensor(*parent_, tensor->name, tensor->shard)));
  if (!value.has_value()) return Status::Ok();
  VARVE_RETURN_IF_ERROR(DecodeTensorRecord(*value, record));
  if (record->dtype != tensor->dtype ||
      record->elements_per_chunk != ElementsPerChunk(tensor->dtype)) {
    return Status::Ok();
  }
  tensor->first_parent_list = tensors_.Keep(record->lists).data();
  tensor->parent_chunks = record->NumChunks();
  return Status::Ok();
}

// Calls `check` with the shards of each tensor that has layouts.
Status SaveSession::CheckShards(Status (*check)(std::span<const SaveTensor* const>)) const {
  if (is_partial_ || !tensors_.have_layouts()) return Status::Ok();
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
void SaveSession::FindParents() {
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

void SaveSession::ReadParents() {
  FindParents();
  std::optional<Cursor> lists;
  std::vector<ChunkRef> refs;
  for (SaveTensor& tensor : tensors_.all()) {
    if (tensor.chunks == nullptr) continue;
    refs.clear();
    Status read;
    for (size_t i = 0; read.ok() && i < tensor.parent_lists().size(); ++i) {
      if (!lists.has_value()) lists.emplace(store_->database(), Family::kLists);
      read = store_->AppendList(tensor.parent_lists()[i], tensor.parent_chunks - i * kChunksPerList,
                                &*lists, &refs);
    }
    // One that cannot be read is as good as none. The commit warns of it.
    if (!read.ok()) refs.clear();
    std::vector<Digest> digests(refs.size());
    std::ranges::transform(refs, digests.begin(), &ChunkRef::digest);
    tensor.chunks->LearnParent(std::move(digests));
    const ChunkGeometry geometry = tensor.Geometry();
    bool fit = refs.size() == geometry.NumChunks();
    for (size_t i = 0; fit && i < refs.size(); ++i) {
      fit = refs[i].raw_bytes == geometry.ChunkBytes(i);
    }
    tensor.are_parents_known = fit;
  }
}

void SaveSession::UseParents(std::shared_ptr<const SavedLists> saved) {
  sorted_ = tensors_.Sorted();
  parent_lists_ = std::move(saved);
  const ListAddress* next = parent_lists_->lists.data();
  for (SaveTensor& tensor : tensors_.all()) {
    tensor.first_parent_list = next;
    tensor.parent_chunks = tensor.Geometry().NumChunks();
    tensor.are_parents_known = true;
    next += tensor.parent_lists().size();
  }
}

std::shared_ptr<const SavedLists> SaveSession::saved_lists() const {
  auto saved = std::make_shared<SavedLists>(SavedLists{.step = committed_, .save_id = save_id_});
  for (const SaveTensor& tensor : tensors_.all()) {
    const std::span<const ListAddress> lists = tensor.lists();
    saved->lists.insert(saved->lists.end(), lists.begin(), lists.end());
  }
  return saved;
}

// Only what is compared with a parent can be predicted from it.
std::vector<std::unique_ptr<ReplayedStep>> SaveSession::LinkSteps() {
  const bool may_replay = (store_->format().incompatible & kReplayFeature) != 0;
  if (options_.optimizer_step == nullptr || options_.from_keyframes) return {};
  const Compression compression = options_.compression.value_or(store_->options().compression);
  if (compression != Compression::kAuto && compression != Compression::kMax) return {};
  if (!may_replay || !parent_.has_value()) return {};
  if (store_->options().max_replay_depth < ReplayedChunk::kLeastDepth) return {};
  return internal::LinkSteps(*options_.optimizer_step, &tensors_);
}

Status SaveSession::CommitPipeline(SavePipeline* pipeline) {
  const auto lock = store_->LockCommits();
  CommitBatch batch;
  ReferenceCounts counts(store_->database());
  StepKey key{0, id_.step};
  VARVE_RETURN_IF_ERROR(ResolveRun(&batch, &key.run));
  VARVE_ASSIGN_OR_RETURN(const auto existing, store_->FindStep(key));
  if (existing.has_value() && options_.on_existing == OnExisting::kError) {
    return Status::AlreadyExists("another writer has committed it meanwhile; save another step");
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
  committed_ = key;
  warnings_.insert(warnings_.end(), counts.damage().begin(), counts.damage().end());
  return Status::Ok();
}

// The step is there already: it is replaced, or moves to a fork with all later ones.
Status SaveSession::GiveWay(StepKey key, std::optional<StepKey>* parent, ReferenceCounts* counts,
                            CommitBatch* batch) {
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
      return Status::FailedPrecondition(StepName(id_.run, step) +
                                        " is being dropped; try again when the drop has ended");
    }
    if (!is_pinned_by_others(step)) continue;
    return Status::FailedPrecondition(
        StepName(id_.run, step) +
        " is the base of another save in progress; try again when that save has ended");
  }
  if (options_.on_existing == OnExisting::kReplace) return store_->ReleaseStep(key, counts, batch);
  VARVE_ASSIGN_OR_RETURN(const auto moved, store_->MoveSteps(id_.run, key, batch));
  if (parent->has_value() && (*parent)->run == key.run && (*parent)->step >= id_.step) {
    (*parent)->run = moved;
  }
  return Status::Ok();
}

// The run's id; a run that does not exist yet is made by this very commit.
Status SaveSession::ResolveRun(CommitBatch* batch, RunId* run) {
  const Result<RunRecord> found = store_->FindRun(id_.run);
  if (found.ok()) {
    *run = found->id;
    return Status::Ok();
  }
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  VARVE_ASSIGN_OR_RETURN(*run, store_->NewRun(id_.run, std::nullopt, batch));
  return Status::Ok();
}

Status SaveSession::CountReferences(const SavePipeline& pipeline, ReferenceCounts* counts) {
  const auto num_lists = static_cast<uint32_t>(pipeline.new_lists().size());
  if (num_lists > 0 || pipeline.totals().chunks > 0) {
    const SaveRecord save_id = MakeSave(pipeline.totals(), num_lists);
    VARVE_RETURN_IF_ERROR(counts->AddSave(save_id_, save_id, pipeline.frames()));
  }
  for (const SaveTensor& tensor : tensors_.all()) {
    for (const ListAddress& list : tensor.lists()) VARVE_RETURN_IF_ERROR(counts->AddList(list));
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
void SaveSession::PutChunks(const SavePipeline& pipeline, CommitBatch* batch) {
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
      // If several chunks have one digest, and so differ, the index names the last.
      if (i + 1 < order.size() && key(order[i]) == key(order[i + 1])) continue;
      VARVE_RETURN_IF_ERROR(
          emit(keys::Index(chunks[order[i]].digest), EncodeAddress({save_id, order[i]})));
    }
    return Status::Ok();
  });
}

void SaveSession::PutTensors(StepKey key, CommitBatch* batch) {
  if (sorted_.empty()) return;
  batch->PutSorted(Family::kTensors, [this, key](const CommitBatch::Emit& emit) {
    for (const SaveTensor* tensor : sorted_) {
      VARVE_RETURN_IF_ERROR(emit(keys::Tensor(key, tensor->name, tensor->shard),
                                 EncodeTensorRecord(tensor->Record(save_id_))));
    }
    return Status::Ok();
  });
}

void SaveSession::PutState(StepKey key, CommitBatch* batch) {
  if (!trainer_state_.empty()) {
    batch->Put(Family::kState, keys::TrainerProgress(key), trainer_state_);
  }
  if (!topology_.empty()) batch->Put(Family::kState, keys::Topology(key), topology_);
  for (const auto& [name, value] : items_) {
    batch->Put(Family::kState, keys::Item(key, name), value);
  }
}

void SaveSession::PutStep(StepKey key, std::optional<StepKey> parent, const SavePipeline& pipeline,
                          CommitBatch* batch) {
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
Digest SaveSession::RootDigest() const {
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

SaveReport SaveSession::MakeReport(const SavePipeline& pipeline) const {
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

Result<std::unique_ptr<SaveSession>> StoreImpl::BeginSession(uint64_t step,
                                                             const SaveOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  auto session =
      std::make_unique<GuardedWriter<SaveSession>>(this, CheckpointId{options.run, step}, options);
  VARVE_RETURN_IF_ERROR(session->Start());
  return std::unique_ptr<SaveSession>(std::move(session));
}

}  // namespace varve::internal
