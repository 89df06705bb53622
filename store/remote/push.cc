// SPDX-License-Identifier: Apache-2.0
//
// A push makes the newest snapshot of an object store equal to a committed state of a store:
//   1. the state is captured: its manifest, and its table files, held open.
//   2. tables that the newest snapshot has are shared. Tables that an attempt which is still open
//      has put are used, too: this is how an interrupted push is resumed.
//   3. the attempt is opened by a change of the state. From then on nobody removes its blobs. A
//      small push, whose files fit into one pack, opens none, unless it is the first: it relies on
//      the fence (reclaim_remote.cc).
//   4. the other tables are verified, digested and put. Small ones travel together in a pack, and
//      the snapshot's body with them.
//   5. one change of the state adds the snapshot and closes the attempt: this is the commit. It is
//      made only while everything that the body names is kept by this very state. Otherwise the
//      push starts again, and opens an attempt.
// A push that fails leaves its attempt open, for the next one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/digest.h"
#include "base/guarded.h"
#include "base/random_number.h"
#include "base/run_parallel.h"
#include "base/util.h"
#include "objects/url.h"
#include "store/format/group_file.h"
#include "store/remote/chosen_steps.h"
#include "store/remote/heartbeat.h"
#include "store/remote/local_state.h"
#include "store/remote/owner.h"
#include "store/remote/pusher.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"

namespace varve::internal {

namespace {

constexpr uint64_t kSmallTableBytes = uint64_t{1} << 20;
constexpr uint64_t kPackBytes = uint64_t{32} << 20;
constexpr int kMaxRestarts = 10;

// A blob that an attempt which is still open has put: an interrupted one, or this push before it
// started again.
struct Adopted {
  std::string blob;
  uint64_t attempt = 0;
};

// A table that is verified and digested while it is sent.
class VerifiedTable : public BlobSource {
 public:
  explicit VerifiedTable(const LocalTable* table) : table_(table) {}
  uint64_t size() const override { return table_->size(); }
  Status Read(uint64_t offset, std::span<std::byte> out) const override {
    return table_->Read(offset, out);
  }
  Status Check() const override {
    VARVE_ASSIGN_OR_RETURN(digest_, table_->VerifyAndDigest());
    return Status::Ok();
  }
  // For who has seen that Check succeeded.
  const Digest& digest() const { return digest_; }

 private:
  const LocalTable* const table_;
  mutable Digest digest_;
};

class PushRun {
 public:
  PushRun(Objects* objects, const PushOptions& options, const PushMutation& mutation,
          KnownRemote* known)
      : objects_(objects), log_(objects), options_(options), mutation_(mutation), known_(known) {}

  Result<PushReport> Run(const std::filesystem::path& store);

 private:
  Result<bool> TryOnce(bool is_first);
  Result<bool> Finish(const RemoteState& remote);
  Status CheckStore(const RemoteState& remote) const;
  Result<bool> IsThere(const RemoteState& remote);
  Status Plan(const RemoteState& remote);
  Status FindAdopted(const RemoteState& remote);
  bool IsSmall() const;
  Status OpenAttempt(const RemoteState& remote);
  Status PutTables();
  Status PutLarge(size_t index);
  Status PutPacks();
  Result<bool> Commit();
  bool MayCommit(const RemoteState& remote) const;
  void Report();
  void NoteSent(uint64_t bytes);

  Objects* const objects_;
  RemoteLog log_;
  const PushOptions& options_;
  const PushMutation& mutation_;
  KnownRemote* const known_;
  uint64_t attempt_ = 0;                  // that puts the blobs. 0 = none yet
  std::list<AttemptUnderWay> under_way_;  // all that may have been opened
  bool is_small_ = false;                 // opens no attempt
  bool has_failed_ = false;               // to commit: something was removed meanwhile
  LocalState local_;
  PushReport report_;

  // These are filled anew for each plan.
  std::optional<RemoteSnapshot> base_;  // the newest snapshot
  SnapshotBody base_body_;
  std::vector<BodyTable> tables_;      // in the order of local_.tables
  std::vector<size_t> large_, small_;  // what is to be put, as indices of tables_
  std::map<size_t, Adopted> adopted_;  // by the index of the table
  bool uses_base_ = false;
  RemoteState opened_;  // in which the attempt was opened, or which a small push has read
  RemoteSnapshot snapshot_;
  SnapshotBody put_body_;

  std::mutex mutex_;
  uint64_t done_bytes_ = 0;  // guarded by mutex_
};

Result<PushReport> PushRun::Run(const std::filesystem::path& store) {
  const auto started = std::chrono::steady_clock::now();
  VARVE_ASSIGN_OR_RETURN(local_, LocalState::Capture(store));
  for (int restart = 0; restart < kMaxRestarts; ++restart) {
    VARVE_ASSIGN_OR_RETURN(const bool is_done, TryOnce(/*is_first=*/restart == 0));
    if (!is_done) continue;
    report_.elapsed = std::chrono::steady_clock::now() - started;
    return report_;
  }
  return Status::Unavailable(objects_->url() +
                             ": what this push relied on was removed again and again; try later");
}

// Returns false when the push must start again.
Result<bool> PushRun::TryOnce(bool is_first) {
  const bool is_known = is_first && known_->state.number > 0;
  RemoteState remote = known_->state;
  if (!is_known) {
    VARVE_ASSIGN_OR_RETURN(remote, log_.ReadNewest());
    known_->state = remote;
  }
  VARVE_RETURN_IF_ERROR(CheckStore(remote));
  const Result<bool> found = IsThere(remote);
  // A collector has removed the base since.
  if (found.status().code() == StatusCode::kFailedPrecondition) return false;
  VARVE_ASSIGN_OR_RETURN(const bool is_there, found);
  if (is_there && is_known) return false;  // what is known may be out of date
  if (is_there) return Finish(remote);
  VARVE_RETURN_IF_ERROR(Plan(remote));
  Report();
  if (options_.dry_run) return true;
  // The first push creates a record before it puts a blob. So blobs without a record are known to
  // have lost theirs.
  is_small_ = !has_failed_ && remote.number > 0 && IsSmall();
  std::optional<Heartbeat> heartbeat;
  if (is_small_) {
    attempt_ = RandomNumber();
    opened_ = remote;
  } else {
    VARVE_RETURN_IF_ERROR(OpenAttempt(remote));
    heartbeat.emplace(objects_, attempt_);
  }
  VARVE_RETURN_IF_ERROR(PutTables());
  const Status put = PutPacks();
  // In a shared folder a collector also removes a blob that is not whole yet.
  has_failed_ = is_small_ && put.code() == StatusCode::kNotFound;
  if (has_failed_) return false;
  VARVE_RETURN_IF_ERROR(put);
  if (mutation_.in_commit) mutation_.in_commit();
  VARVE_ASSIGN_OR_RETURN(const bool is_done, Commit());
  has_failed_ = !is_done;
  return is_done;
}

// All is there. An attempt that this push has opened before it started again is closed.
Result<bool> PushRun::Finish(const RemoteState& remote) {
  Report();
  const auto is_mine = [this](const RemoteAttempt& each) { return each.id == attempt_; };
  if (options_.dry_run || !remote.IsOpen(attempt_)) return true;
  VARVE_ASSIGN_OR_RETURN(known_->state, log_.Append([&](RemoteState* state) -> Result<bool> {
    return std::erase_if(state->open, is_mine) > 0;
  }));
  return true;
}

// Returns true if all that is to be put fits into one blob, which goes in one request.
bool PushRun::IsSmall() const {
  uint64_t bytes = local_.manifest.size();
  for (const size_t i : small_) bytes += local_.tables[i]->size();
  return large_.empty() && bytes < kPackBytes;
}

Status PushRun::CheckStore(const RemoteState& remote) const {
  if (remote.number == 0 || remote.store_id == local_.format.store_id) return Status::Ok();
  return Status::FailedPrecondition(objects_->url() + " holds snapshots of another store, " +
                                    ToHex(remote.store_id) + ", not of " +
                                    ToHex(local_.format.store_id) + "; use another URL");
}

// Returns true if the newest snapshot holds this state, or a later one of the same manifest.
Result<bool> PushRun::IsThere(const RemoteState& remote) {
  base_.reset();
  base_body_ = SnapshotBody();
  tables_.clear();
  large_.clear();
  small_.clear();
  adopted_.clear();
  uses_base_ = false;
  if (remote.snapshots.empty()) return false;
  base_ = remote.snapshots.back();
  if (known_->snapshot != base_->number) {
    VARVE_ASSIGN_OR_RETURN(known_->body, log_.ReadBody(*base_));
    known_->snapshot = base_->number;
  }
  base_body_ = known_->body;
  report_.snapshot = base_->number;
  return base_body_.manifest_name == local_.manifest_name &&
         base_body_.manifest.starts_with(local_.manifest);
}

Status PushRun::Plan(const RemoteState& remote) {
  std::map<std::string, BlobRange> known;
  for (const BodyTable& table : base_body_.tables) known.emplace(table.identity, table.where);
  for (const auto& table : local_.tables) {
    BodyTable& planned = tables_.emplace_back();
    planned.name = table->name();
    planned.identity = table->identity();
    const auto found = known.find(planned.identity);
    if (found != known.end() && found->second.bytes == table->size()) {
      planned.where = found->second;
      uses_base_ = true;
    } else {
      (table->size() >= kSmallTableBytes ? large_ : small_).push_back(tables_.size() - 1);
    }
  }
  return remote.open.empty() ? Status::Ok() : FindAdopted(remote);
}

Status PushRun::FindAdopted(const RemoteState& remote) {
  std::map<std::string, size_t> wanted;
  for (const size_t i : large_) wanted.emplace(tables_[i].identity, i);
  if (wanted.empty()) return Status::Ok();
  return objects_->ListBlobs([&](const BlobInfo& blob) {
    const auto parts = ParseBlobName(blob.name);
    if (!parts.has_value() || !blob.is_whole || !remote.IsOpen(parts->attempt)) return Status::Ok();
    const auto it = wanted.find(parts->content);
    if (it != wanted.end() && blob.bytes == local_.tables[it->second]->size()) {
      adopted_[it->second] = {blob.name, parts->attempt};
    }
    return Status::Ok();
  });
}

void PushRun::Report() {
  report_.total_files = local_.tables.size();
  report_.total_bytes = report_.sent_files = report_.sent_bytes = 0;
  for (const auto& table : local_.tables) report_.total_bytes += table->size();
  for (const auto* group : {&large_, &small_}) {
    for (const size_t i : *group) {
      if (adopted_.contains(i)) continue;
      ++report_.sent_files;
      report_.sent_bytes += local_.tables[i]->size();
    }
  }
  report_.resumed_files = adopted_.size();
}

// An attempt that was closed is never opened again, so each creation has an attempt of its own.
Status PushRun::OpenAttempt(const RemoteState& remote) {
  const auto change = [&](RemoteState* state) -> Result<bool> {
    VARVE_RETURN_IF_ERROR(CheckStore(*state));
    for (const AttemptUnderWay& each : under_way_) {
      if (state->IsOpen(each.id())) return false;
    }
    under_way_.emplace_back(RandomNumber());
    state->store_id = local_.format.store_id;
    state->open.push_back({under_way_.back().id(), DescribeOwner()});
    return true;
  };
  VARVE_ASSIGN_OR_RETURN(opened_, log_.Append(change, &remote));
  for (const AttemptUnderWay& each : under_way_) {
    if (opened_.IsOpen(each.id())) attempt_ = each.id();
  }
  known_->state = opened_;
  return Status::Ok();
}

void PushRun::NoteSent(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_bytes_ += bytes;
  if (options_.progress) options_.progress(done_bytes_, report_.sent_bytes);
}

Status PushRun::PutTables() {
  return RunParallel(large_.size(), options_.num_threads,
                     [this](size_t i) { return PutLarge(large_[i]); });
}

Status PushRun::PutLarge(size_t index) {
  const LocalTable& table = *local_.tables[index];
  const VerifiedTable source(&table);
  BodyTable& planned = tables_[index];
  const auto adopted = adopted_.find(index);
  const bool is_adopted = adopted != adopted_.end();
  const std::string blob = is_adopted ? adopted->second.blob : BlobName(attempt_, planned.identity);
  VARVE_RETURN_IF_ERROR(is_adopted ? source.Check() : objects_->PutBlob(blob, source));
  planned.where = {blob, 0, table.size(), source.digest()};
  if (!is_adopted) NoteSent(table.size());
  return Status::Ok();
}

// Puts small tables together, and the body behind the last of them.
Status PushRun::PutPacks() {
  std::string pack;
  std::vector<size_t> in_pack;
  std::string name;
  const auto begin = [&] {
    pack.clear();
    in_pack.clear();
    name = BlobName(attempt_, "p" + std::to_string(RandomNumber()));
  };
  const auto put = [&] { return objects_->PutBlob(name, MemorySource(AsBytes(pack))); };
  begin();
  for (const size_t i : small_) {
    const LocalTable& table = *local_.tables[i];
    VARVE_RETURN_IF_ERROR(table.Verify());
    std::string bytes(table.size(), '\0');
    VARVE_RETURN_IF_ERROR(
        table.Read(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    tables_[i].where = {name, pack.size(), bytes.size(), ComputeDigest(0, AsBytes(bytes))};
    pack += bytes;
    in_pack.push_back(i);
    if (pack.size() < kPackBytes) continue;
    VARVE_RETURN_IF_ERROR(put());
    NoteSent(pack.size());
    begin();
  }
  const uint64_t tables_end = pack.size();
  SnapshotBody body;
  body.format = local_.format;
  body.manifest_name = local_.manifest_name;
  body.manifest = local_.manifest;
  body.tables = tables_;
  const std::string text = EncodeSnapshotBody(body);
  put_body_ = std::move(body);
  snapshot_.body = {name, tables_end, text.size(), ComputeDigest(0, AsBytes(text))};
  pack += text;
  VARVE_RETURN_IF_ERROR(put());
  NoteSent(tables_end);
  snapshot_.total_bytes = report_.total_bytes;
  snapshot_.created_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count());
  return Status::Ok();
}

// Returns true if this state keeps everything that the body names.
bool PushRun::MayCommit(const RemoteState& remote) const {
  const bool is_kept = is_small_ ? mutation_.ignores_fence || remote.fence == opened_.fence
                                 : mutation_.ignores_attempts || remote.IsOpen(attempt_);
  if (!is_kept) return false;
  if (uses_base_ && remote.Find(base_->number) == nullptr) return false;
  return std::all_of(adopted_.begin(), adopted_.end(),
                     [&remote](const auto& each) { return remote.IsOpen(each.second.attempt); });
}

// Returns false when the push must start again.
Result<bool> PushRun::Commit() {
  const auto is_it = [this](const RemoteSnapshot& each) { return each.body == snapshot_.body; };
  const auto change = [&](RemoteState* state) -> Result<bool> {
    VARVE_RETURN_IF_ERROR(CheckStore(*state));
    if (std::any_of(state->snapshots.begin(), state->snapshots.end(), is_it)) return false;
    if (!MayCommit(*state)) return false;
    state->store_id = local_.format.store_id;
    snapshot_.number = state->next_snapshot++;
    state->snapshots.push_back(snapshot_);
    // What is left of dead attempts is collected from here on. Their useful blobs are named.
    std::erase_if(state->open, [&](const RemoteAttempt& each) {
      const bool is_mine = std::any_of(under_way_.begin(), under_way_.end(),
                                       [&each](const auto& mine) { return mine.id() == each.id; });
      return is_mine || IsAbandoned(each);
    });
    return true;
  };
  VARVE_ASSIGN_OR_RETURN(known_->state, log_.Append(change, &opened_));
  const auto& snapshots = known_->state.snapshots;
  const auto it = std::find_if(snapshots.begin(), snapshots.end(), is_it);
  if (it == snapshots.end()) return false;
  report_.snapshot = it->number;
  report_.is_new = true;
  known_->snapshot = it->number;
  known_->body = std::move(put_body_);
  return true;
}

}  // namespace

Result<std::unique_ptr<Pusher>> Pusher::Open(std::string_view url) {
  VARVE_ASSIGN_OR_RETURN(auto objects, OpenObjects(url));
  return std::make_unique<Pusher>(std::move(objects));
}

Result<PushReport> Pusher::Push(const std::filesystem::path& store, const PushOptions& options) {
  if (IsGroupRoot(store)) {
    return Status::FailedPrecondition(store.string() + " is the root of a group: push sends the " +
                                      "store of one writer; use copy to make one");
  }
  VARVE_RETURN_IF_ERROR(ReadFormatFile(store, /*for_writing=*/false).status());
  PushRun run(objects_.get(), options, mutation_, &known_);
  if (options.steps.empty()) return run.Run(store);
  VARVE_ASSIGN_OR_RETURN(const auto chosen, ChosenSteps::Make(store, options.steps));
  return run.Run(chosen->path());
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<PushReport> Push(const std::filesystem::path& store, std::string_view url,
                        const PushOptions& options) {
  return Guarded("pushing", [&]() -> Result<PushReport> {
    VARVE_ASSIGN_OR_RETURN(const auto pusher, Pusher::Open(url));
    return pusher->Push(store, options);
  });
}

}  // namespace varve
