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
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/add_new.h"
#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/group/attempt_names.h"
#include "store/group/catalogue_index.h"
#include "store/group/group_store.h"
#include "store/group/mutation.h"
#include "store/group/rank_save.h"
#include "store/save/save_session.h"

namespace varve::internal {

namespace {

// kInvalidArgument: another rank's item could be shown under this name.
Status ValidateGroupItem(std::string_view name) {
  const size_t at = name.rfind('@');
  if (at == std::string_view::npos || at + 1 == name.size() ||
      name.find_first_not_of("0123456789", at + 1) != std::string_view::npos) {
    return Status::Ok();
  }
  return Status::InvalidArgument("item name \"" + std::string(name) +
                                 "\" ends like that of another rank's item (@RANK)");
}

// The session of the rank's member, and what the group needs beyond it.
class GroupWriter : public SaveSession {
 public:
  GroupWriter(GroupStore* store, CheckpointId id, AttemptId attempt, std::shared_ptr<RankSave> save,
              const SaveOptions& part)
      : SaveSession(store->own_member(), {part.run, attempt}, part),
        store_(store),
        id_(std::move(id)),
        attempt_(attempt),
        save_(std::move(save)) {
    SetPartial();  // each member holds a part
  }
  ~GroupWriter() override {
    Guarded("abandoning a save", [this] {
      GroupWriter::Abandon();
      return Status::Ok();
    }).IgnoreError();
  }
  // From here on it ends the attempt unless it commits it.
  Status Open() {
    VARVE_RETURN_IF_ERROR(Start());
    open_ = true;
    return Status::Ok();
  }

  Status PutBytes(std::string_view name, std::span<const std::byte> value) override {
    VARVE_RETURN_IF_ERROR(ValidateGroupItem(name));
    return SaveSession::PutBytes(name, value);
  }
  Status AddTag(std::string_view tag) override {
    VARVE_RETURN_IF_ERROR(RequireOpen());
    VARVE_RETURN_IF_ERROR(ValidateTag(tag));
    if (std::find(tags_.begin(), tags_.end(), tag) == tags_.end()) tags_.emplace_back(tag);
    return Status::Ok();
  }
  void SetCreated(std::chrono::system_clock::time_point created) override { created_ = created; }
  Result<SaveReport> Commit() override;
  void Abandon() override;

 private:
  uint32_t rank() const { return store_->author().rank; }
  std::string Name() const { return StepName(id_.run, id_.step); }
  CatalogueFile PartFile(uint32_t rank) const {
    return {store_->place().root, store_->place().file.digest_seed, attempt_, rank};
  }
  Status RequireOpen() const {
    if (open_) return Status::Ok();
    return Status::FailedPrecondition("the save of " + Name() +
                                      " has been committed or abandoned; begin another save");
  }
  Status Prepare(const SaveReport& report);
  Result<Digest> WritePart() const;
  Result<Digest> WriteCatalogue(const std::map<uint32_t, GroupPart>& parts, bool has_index);
  Status Decide();

  GroupStore* const store_;
  const CheckpointId id_;
  const AttemptId attempt_;
  const std::shared_ptr<RankSave> save_;
  bool open_ = false;
  std::vector<std::string> tags_;
  std::optional<std::chrono::system_clock::time_point> created_;
};

Result<SaveReport> GroupWriter::Commit() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  open_ = false;
  Result<SaveReport> report = SaveSession::Commit();
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
  AddNew(store_->TakeWarnings(), &report->warnings);
  return report;
}

// Writes the list of what the member has stored, with the digests by which replicas of different
// ranks are compared.
Result<Digest> GroupWriter::WritePart() const {
  std::vector<CatalogueShardView> shards;
  shards.reserve(saved().size());
  for (const SaveTensor* const tensor : saved()) {
    shards.push_back({{.name = tensor->name,
                       .dtype = tensor->dtype,
                       .shape = tensor->shape,
                       .shard = tensor->shard,
                       .layout = tensor->layout},
                      rank(),
                      tensor->content});
  }
  if (IsMutated(Mutation::kForgetShard) && rank() == 1) shards.erase(shards.begin() + 1);
  std::vector<CatalogueItem> names;
  for (const auto& [name, value] : items()) names.push_back({name, rank()});
  return PartFile(rank()).Write(shards, names);
}

// Says that the part is durable.
Status GroupWriter::Prepare(const SaveReport& report) {
  GroupPart part{.member = store_->author().member,
                 .root = root(),
                 .num_tensors = report.num_tensors,
                 .logical_bytes = report.logical_bytes,
                 .new_bytes = report.new_bytes,
                 .stored_bytes = report.stored_bytes};
  VARVE_ASSIGN_OR_RETURN(part.catalogue, WritePart());
  return save_->Prepare(part);
}

// Writes the catalogue of all parts.
Result<Digest> GroupWriter::WriteCatalogue(const std::map<uint32_t, GroupPart>& parts,
                                           bool has_index) {
  if (parts.empty()) return Status::Aborted("the save was ended by another process");
  Catalogue whole;
  for (const auto& [rank, part] : parts) {
    VARVE_ASSIGN_OR_RETURN(Catalogue of_rank, PartFile(rank).Read(part.catalogue, rank + 1));
    std::ranges::move(of_rank.shards, std::back_inserter(whole.shards));
    std::ranges::move(of_rank.items, std::back_inserter(whole.items));
  }
  whole.Sort();
  VARVE_RETURN_IF_ERROR(store_->coverage()->Prove(whole));
  const CataloguePlaceOnDisk place{store_->place().root, store_->place().file.digest_seed,
                                   attempt_};
  if (has_index) return WriteIndexedCatalogue(place, whole, parts);
  return CatalogueFile(place.root, place.seed, attempt_).Write(ViewsOf(whole), whole.items);
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
      .metrics = metrics(),
      .tags = tags_,
      .has_index = store_->log()->With(
          [](const GroupState& state) { return state.version >= kVersionOfIndices; })};
  VARVE_ASSIGN_OR_RETURN(record.catalogue, WriteCatalogue(parts, record.has_index));
  return save_->Commit(std::move(record));
}

void GroupWriter::Abandon() {
  if (!open_) return;
  open_ = false;
  SaveSession::Abandon();
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
Result<std::unique_ptr<SaveSession>> BeginPart(GroupStore* store, const CheckpointId& id,
                                               AttemptId attempt,
                                               const std::shared_ptr<RankSave>& save,
                                               const SaveOptions& options, bool is_again) {
  SaveOptions part = options;
  part.run = kMemberRun;
  part.on_existing = is_again ? OnExisting::kReplace : OnExisting::kError;
  VARVE_ASSIGN_OR_RETURN(part.parent, FindParent(*store, attempt));
  auto writer = std::make_unique<GuardedWriter<GroupWriter>>(store, id, attempt, save, part);
  Status opened = writer->Open();
  if (opened.code() == StatusCode::kNotFound) {
    part.parent.reset();  // it was dropped at this very moment
    writer = std::make_unique<GuardedWriter<GroupWriter>>(store, id, attempt, save, part);
    opened = writer->Open();
  }
  VARVE_RETURN_IF_ERROR(opened);
  return std::unique_ptr<SaveSession>(std::move(writer));
}

}  // namespace

Result<std::unique_ptr<SaveSession>> GroupStore::BeginSession(uint64_t step,
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
  auto part = BeginPart(this, id, attempt, save, options, is_again);
  if (!part.ok() && !tries_again_) save->GiveUp(part.status()).IgnoreError();
  return part;
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

}  // namespace varve::internal
