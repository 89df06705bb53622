// SPDX-License-Identifier: Apache-2.0
//
// A save of a group, on one rank. This order makes it safe:
//   1. BEGIN is in the log: the attempt has its number, which no other will ever have.
//   2. the rank's part is committed in its member, as a step of that number.
//   3. the list of what is in it is a file, whose digest is in the rank's slot.
//   4. rank 0 has seen the slots of all ranks, and writes the catalogue of all parts.
//   5. COMMIT is in the log.
// The first record that ends the attempt decides, and every rank reads it back. It is COMMIT, the
// ABORT of a rank that failed or waited too long, or the EPOCH of the next start.
#include "store/group/group_writer.h"

#include <algorithm>
#include <utility>

#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/group/attempt_names.h"
#include "store/group/catalogue_index.h"
#include "store/group/group_store.h"
#include "store/group/mutation.h"
#include "store/group/rank_save.h"
#include "store/save/chunk_source.h"

namespace varve {
namespace {

class GroupWriter : public SourceWriter {
 public:
  GroupWriter(GroupStore* store, CheckpointId id, AttemptId attempt, std::shared_ptr<RankSave> save,
              std::unique_ptr<CheckpointWriter> inner)
      : store_(store),
        id_(std::move(id)),
        attempt_(attempt),
        save_(std::move(save)),
        inner_(std::move(inner)) {}
  ~GroupWriter() override {
    Guarded("abandoning a save", [this] {
      GroupWriter::Abandon();
      return Status::Ok();
    }).IgnoreError();
  }

  Status Put(const TensorView& view) override { return Note(view, inner_->Put(view)); }
  Status PutSource(const TensorView& view, std::shared_ptr<ChunkSource> source) override {
    return Note(view, inner()->PutSource(view, std::move(source)));
  }
  void FindParents() override { inner()->FindParents(); }
  Result<std::vector<Digest>> ParentDigests(std::string_view name, uint32_t shard) override {
    return inner()->ParentDigests(name, shard);
  }
  uint64_t digest_seed() const override { return inner()->digest_seed(); }
  void SetPartial() override {}  // each member holds a part
  void SetCondition(std::function<Status()> may_commit) override {
    inner()->SetCondition(std::move(may_commit));
  }
  void SetCompression(Compression compression) override { inner()->SetCompression(compression); }
  void SetCreated(std::chrono::system_clock::time_point created) override { created_ = created; }
  Digest root() const override { return inner()->root(); }
  std::vector<Digest> contents() const override { return inner()->contents(); }

  Status PutBytes(std::string_view name, std::span<const std::byte> value) override {
    VARVE_RETURN_IF_ERROR(ValidateGroupItem(name));
    VARVE_RETURN_IF_ERROR(inner_->PutBytes(name, value));
    part_.items.push_back({std::string(name), rank()});
    return Status::Ok();
  }
  Status SetTrainerProgress(const TrainerProgress& state) override {
    return inner_->SetTrainerProgress(state);
  }
  Status SetTopology(const Topology& topology) override { return inner_->SetTopology(topology); }
  Status SetMetric(std::string_view name, double value) override {
    VARVE_RETURN_IF_ERROR(inner_->SetMetric(name, value));
    metrics_[std::string(name)] = value;
    return Status::Ok();
  }
  Status AddTag(std::string_view tag) override {
    VARVE_RETURN_IF_ERROR(RequireOpen());
    VARVE_RETURN_IF_ERROR(ValidateTag(tag));
    if (std::find(tags_.begin(), tags_.end(), tag) == tags_.end()) tags_.emplace_back(tag);
    return Status::Ok();
  }
  Result<SaveReport> Commit() override;
  void Abandon() override;

 private:
  SourceWriter* inner() const { return static_cast<SourceWriter*>(inner_.get()); }
  uint32_t rank() const { return store_->author().rank; }
  std::string Name() const { return StepName(id_.run, id_.step); }
  CatalogueFile PartFile(uint32_t rank) const {
    return {store_->place().root, store_->place().file.digest_seed, attempt_, rank};
  }
  Status RequireOpen() const {
    if (open_) return Status::Ok();
    return Status::FailedPrecondition("the save of " + Name() + " has been committed or abandoned");
  }
  // Remembers a tensor that the member's writer has taken.
  Status Note(const TensorView& view, Status taken);
  Status Prepare(const SaveReport& report);
  void NoteContents();
  Result<Digest> WriteCatalogue(const std::map<uint32_t, GroupPart>& parts, bool has_index);
  Status Decide();

  GroupStore* const store_;
  const CheckpointId id_;
  const AttemptId attempt_;
  const std::shared_ptr<RankSave> save_;
  const std::unique_ptr<CheckpointWriter> inner_;
  bool open_ = true;
  Catalogue part_;
  std::map<std::string, double> metrics_;
  std::vector<std::string> tags_;
  std::optional<std::chrono::system_clock::time_point> created_;
};

Status GroupWriter::Note(const TensorView& view, Status taken) {
  if (!taken.ok()) return taken;
  part_.shards.push_back({{.name = std::string(view.name),
                           .dtype = view.dtype,
                           .shape = {view.shape.begin(), view.shape.end()}},
                          rank(),
                          view.shard,
                          {}});
  if (view.layout != nullptr) part_.shards.back().layout = Canonical(*view.layout);
  return taken;
}

Result<SaveReport> GroupWriter::Commit() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  open_ = false;
  Result<SaveReport> report = inner_->Commit();
  Status status = store_->log()->With(
      [&](const GroupState& state) { return NameAttempts(report.status(), state); });
  if (status.ok()) status = store_->AskCondition();
  if (status.ok()) status = Prepare(*report);
  // The others do not know of the error yet, and wait.
  const bool stays_open = !status.ok() && store_->tries_again() && !save_->is_over();
  if (stays_open) return status.WithContext("saving " + Name());
  if (status.ok()) PassMutationPoint(MutationPoint::kPrepared);
  if (status.ok() && rank() == 0) status = Decide();
  if (!status.ok()) status = save_->GiveUp(status);
  if (status.ok()) status = save_->AwaitOutcome();
  // This is housekeeping. If it fails now, the next save or a reclaim does it.
  PartFile(rank()).Remove().IgnoreError();
  store_->SweepLater();
  if (!status.ok()) return status.WithContext("saving " + Name());
  report->id = id_;
  return report;
}

// Notes what the member has stored, so that replicas of different ranks can be compared. `part_` is
// in the order of a list.
void GroupWriter::NoteContents() {
  const std::vector<Digest> stored = inner()->contents();
  for (size_t i = 0; i < part_.shards.size() && i < stored.size(); ++i) {
    part_.shards[i].content = stored[i];
  }
}

// Says that the part is durable.
Status GroupWriter::Prepare(const SaveReport& report) {
  part_.Sort();
  NoteContents();
  if (IsMutated(Mutation::kForgetShard) && rank() == 1)
    part_.shards.erase(part_.shards.begin() + 1);
  GroupPart part{.member = store_->author().member,
                 .root = inner()->root(),
                 .num_tensors = report.num_tensors,
                 .logical_bytes = report.logical_bytes,
                 .new_bytes = report.new_bytes,
                 .stored_bytes = report.stored_bytes};
  VARVE_ASSIGN_OR_RETURN(part.catalogue, PartFile(rank()).Write(part_));
  return save_->Prepare(part);
}

// Writes the catalogue of all parts.
Result<Digest> GroupWriter::WriteCatalogue(const std::map<uint32_t, GroupPart>& parts,
                                           bool has_index) {
  if (parts.empty()) return Status::Aborted("the save was ended by another process");
  Catalogue whole;
  for (const auto& [rank, part] : parts) {
    VARVE_ASSIGN_OR_RETURN(const Catalogue of_rank, PartFile(rank).Read(part.catalogue, rank + 1));
    whole.shards.insert(whole.shards.end(), of_rank.shards.begin(), of_rank.shards.end());
    whole.items.insert(whole.items.end(), of_rank.items.begin(), of_rank.items.end());
  }
  whole.Sort();
  VARVE_RETURN_IF_ERROR(store_->coverage()->Prove(whole));
  const CataloguePlaceOnDisk place{store_->place().root, store_->place().file.digest_seed,
                                   attempt_};
  if (has_index) return WriteIndexedCatalogue(place, whole, parts);
  return CatalogueFile(place.root, place.seed, attempt_).Write(whole);
}

// Rank 0.
Status GroupWriter::Decide() {
  VARVE_ASSIGN_OR_RETURN(const auto parts, save_->AwaitAllPrepared());
  PassMutationPoint(MutationPoint::kAllPrepared);
  const auto created = created_.value_or(std::chrono::system_clock::now()).time_since_epoch();
  CommitRecord record{
      .attempt = attempt_,
      .catalogue = {},
      .created_us = std::chrono::duration_cast<std::chrono::microseconds>(created).count(),
      .metrics = metrics_,
      .tags = tags_,
      .has_index = store_->log()->With(
          [](const GroupState& state) { return state.version >= kVersionOfIndices; })};
  VARVE_ASSIGN_OR_RETURN(record.catalogue, WriteCatalogue(parts, record.has_index));
  return save_->Commit(std::move(record));
}

void GroupWriter::Abandon() {
  if (!open_) return;
  open_ = false;
  inner_->Abandon();
  if (store_->tries_again()) return;  // EndSave says why
  save_->GiveUp(Status::Aborted("it was abandoned")).IgnoreError();
}

// --- Begin ---

// Returns the base if the member holds it, or else the newest committed attempt that the member
// holds.
Result<std::optional<uint64_t>> FindParent(const GroupStore& store, AttemptId attempt) {
  const StoreImpl& member = *store.own_member();
  const AttemptId base = store.log()->With([&](const GroupState& state) {
    const GroupAttempt* found = state.FindAttempt(attempt);
    return found == nullptr ? AttemptId{0} : found->base;
  });
  if (member.RequireStep({std::string(kMemberRun), base}).ok()) return std::optional(base);
  return store.FindNewestOwn();
}

// `is_again`: the member may hold what was stored before a later failure.
Result<std::unique_ptr<CheckpointWriter>> BeginPart(const GroupStore& store, AttemptId attempt,
                                                    const SaveOptions& options, bool is_again) {
  SaveOptions part = options;
  part.run = kMemberRun;
  part.on_existing = is_again ? OnExisting::kReplace : OnExisting::kError;
  VARVE_ASSIGN_OR_RETURN(part.parent, FindParent(store, attempt));
  auto writer = store.own_member()->Begin(attempt, part);
  if (writer.status().code() == StatusCode::kNotFound) {
    part.parent.reset();  // it was dropped at this very moment
    writer = store.own_member()->Begin(attempt, part);
  }
  if (writer.ok()) static_cast<SourceWriter*>(writer->get())->SetPartial();
  return writer;
}

}  // namespace

Status ValidateGroupItem(std::string_view name) {
  const size_t at = name.rfind('@');
  if (at == std::string_view::npos || at + 1 == name.size() ||
      name.find_first_not_of("0123456789", at + 1) != std::string_view::npos) {
    return Status::Ok();
  }
  return Status::InvalidArgument("item name \"" + std::string(name) +
                                 "\" ends like that of another rank's item (@RANK)");
}

Result<std::unique_ptr<CheckpointWriter>> GroupStore::Begin(uint64_t step,
                                                            const SaveOptions& options) {
  if (own_.store == nullptr) {
    return Status::FailedPrecondition("the group in " + place_.root.string() +
                                      " is written by its ranks together (Group::Join)");
  }
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  const CheckpointId id{options.run, step};
  const bool is_again = tries_again_ && save_ != nullptr && save_->id() == id && !save_->is_over();
  std::shared_ptr<RankSave> save =
      is_again ? save_ : std::make_shared<RankSave>(log(), author(), patience_, &taken_, id);
  if (tries_again_) save_ = save;
  VARVE_ASSIGN_OR_RETURN(const AttemptId attempt, save->Begin(options));
  auto part = BeginPart(*this, attempt, options, is_again);
  if (part.ok()) {
    return std::unique_ptr<CheckpointWriter>(std::make_unique<GuardedWriter<GroupWriter>>(
        this, id, attempt, std::move(save), *std::move(part)));
  }
  if (!tries_again_) save->GiveUp(part.status()).IgnoreError();
  return part.status();
}

void GroupStore::EndSave(uint64_t step, const SaveOptions& options, const Status& status) {
  const CheckpointId id{options.run, step};
  std::shared_ptr<RankSave> save = std::exchange(save_, nullptr);
  if (status.ok() || (save != nullptr && save->is_over())) return;
  if (save == nullptr || save->id() != id) {
    save = std::make_shared<RankSave>(log(), author(), patience_, &taken_, id);
  }
  if (save->Begin(options).ok()) save->GiveUp(status).IgnoreError();
}

}  // namespace varve
