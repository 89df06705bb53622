// SPDX-License-Identifier: Apache-2.0
//
// A push makes the newest snapshot of an object store equal to a committed state of a store:
//   1. the state is captured: its manifest, and its table files, held open.
//   2. tables that the newest snapshot has are shared. Tables that an attempt which is still open
//      has put are used, too: this is how an interrupted push is resumed.
//   3. the attempt is opened by a change of the state. From then on nobody removes its blobs.
//   4. the other tables are verified, digested and put. Small ones travel together in a pack, and
//      the snapshot's body with them.
//   5. one change of the state adds the snapshot and closes the attempt: this is the commit. It is
//      made only while everything that the body names is kept by this very state. Otherwise the
//      push starts again.
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
#include "base/util.h"
#include "objects/url.h"
#include "store/format/group_file.h"
#include "store/remote/heartbeat.h"
#include "store/remote/local_state.h"
#include "store/remote/owner.h"
#include "store/remote/parallel.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"

namespace varve {
using namespace internal;

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

class PushRun {
 public:
  PushRun(std::unique_ptr<Objects> objects, const PushOptions& options)
      : objects_(std::move(objects)), log_(objects_.get()), options_(options) {}

  Result<PushReport> Run(const std::filesystem::path& store);

 private:
  Status CheckStore(const RemoteState& remote) const;
  Result<bool> IsThere(const RemoteState& remote);
  Status Plan(const RemoteState& remote);
  Status FindAdopted(const RemoteState& remote);
  Status OpenAttempt(const RemoteState& remote);
  Status PutTables();
  Status PutLarge(size_t index);
  Status PutPacks();
  Result<bool> Commit();
  bool MayCommit(const RemoteState& remote) const;
  void Report();
  void NoteSent(uint64_t bytes);

  const std::unique_ptr<Objects> objects_;
  RemoteLog log_;
  const PushOptions& options_;
  uint64_t attempt_ = 0;                  // that is open. 0 = none yet
  std::list<AttemptUnderWay> under_way_;  // all that may have been opened
  LocalState local_;
  PushReport report_;

  // Of one plan.
  std::optional<RemoteSnapshot> base_;  // the newest snapshot
  SnapshotBody base_body_;
  std::vector<BodyTable> tables_;      // in the order of local_.tables
  std::vector<size_t> large_, small_;  // what is to be put, as indices of tables_
  std::map<size_t, Adopted> adopted_;  // by the index of the table
  bool uses_base_ = false;
  RemoteState opened_;  // in which the attempt was opened
  RemoteSnapshot snapshot_;

  std::mutex mutex_;
  uint64_t done_bytes_ = 0;  // guarded by mutex_
};

Result<PushReport> PushRun::Run(const std::filesystem::path& store) {
  const auto started = std::chrono::steady_clock::now();
  VARVE_ASSIGN_OR_RETURN(local_, LocalState::Capture(store));
  for (int restart = 0; restart < kMaxRestarts; ++restart) {
    VARVE_ASSIGN_OR_RETURN(const RemoteState remote, log_.ReadNewest());
    VARVE_RETURN_IF_ERROR(CheckStore(remote));
    const Result<bool> found = IsThere(remote);
    // A collector has removed the base since.
    const bool is_removed = found.status().code() == StatusCode::kFailedPrecondition;
    if (is_removed && restart + 1 < kMaxRestarts) continue;
    VARVE_ASSIGN_OR_RETURN(const bool is_there, found);
    if (!is_there) VARVE_RETURN_IF_ERROR(Plan(remote));
    Report();
    bool is_done = is_there || options_.dry_run;
    if (!is_done) {
      VARVE_RETURN_IF_ERROR(OpenAttempt(remote));
      const Heartbeat heartbeat(objects_.get(), attempt_);
      VARVE_RETURN_IF_ERROR(PutTables());
      VARVE_RETURN_IF_ERROR(PutPacks());
      VARVE_ASSIGN_OR_RETURN(is_done, Commit());
    } else if (is_there && remote.IsOpen(attempt_)) {
      VARVE_RETURN_IF_ERROR(log_.Append([&](RemoteState* state) -> Result<bool> {
                                  return std::erase_if(state->open, [&](const auto& each) {
                                           return each.id == attempt_;
                                         }) > 0;
                                })
                                .status());
    }
    if (!is_done) continue;
    report_.elapsed = std::chrono::steady_clock::now() - started;
    return report_;
  }
  return Status::Unavailable(objects_->url() +
                             ": what this push relied on was removed again and again; try later");
}

Status PushRun::CheckStore(const RemoteState& remote) const {
  if (remote.number == 0 || remote.store_id == local_.format.store_id) return Status::Ok();
  return Status::FailedPrecondition(objects_->url() + " holds snapshots of another store, " +
                                    ToHex(remote.store_id) + ", not of " +
                                    ToHex(local_.format.store_id) + "; use another URL");
}

// Whether the newest snapshot holds this state, or a later one of the same manifest.
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
  VARVE_ASSIGN_OR_RETURN(base_body_, log_.ReadBody(*base_));
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
      if (!state->IsOpen(each.id())) continue;
      attempt_ = each.id();
      return false;
    }
    under_way_.emplace_back(RandomNumber());
    state->store_id = local_.format.store_id;
    state->open.push_back({under_way_.back().id(), DescribeOwner()});
    return true;
  };
  VARVE_ASSIGN_OR_RETURN(opened_, log_.Append(change, &remote));
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
  BodyTable& planned = tables_[index];
  VARVE_RETURN_IF_ERROR(table.Verify());
  VARVE_ASSIGN_OR_RETURN(const Digest digest, table.ComputeFileDigest());
  const auto adopted = adopted_.find(index);
  const bool is_adopted = adopted != adopted_.end();
  planned.where = {is_adopted ? adopted->second.blob : BlobName(attempt_, planned.identity), 0,
                   table.size(), digest};
  if (is_adopted) return Status::Ok();
  VARVE_RETURN_IF_ERROR(objects_->PutBlob(planned.where.blob, table));
  NoteSent(table.size());
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

// Whether this state keeps everything that the body names.
bool PushRun::MayCommit(const RemoteState& remote) const {
  if (!remote.IsOpen(attempt_)) return false;
  if (uses_base_ && remote.Find(base_->number) == nullptr) return false;
  return std::all_of(adopted_.begin(), adopted_.end(),
                     [&remote](const auto& each) { return remote.IsOpen(each.second.attempt); });
}

// Returns false when the push must start again.
Result<bool> PushRun::Commit() {
  bool may_commit = true;
  const auto change = [&](RemoteState* state) -> Result<bool> {
    for (const RemoteSnapshot& each : state->snapshots) {
      if (each.body != snapshot_.body) continue;
      report_.snapshot = each.number;
      report_.is_new = true;
      return false;
    }
    may_commit = MayCommit(*state);
    if (!may_commit) return false;
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
  VARVE_RETURN_IF_ERROR(log_.Append(change, &opened_).status());
  return report_.is_new;
}

}  // namespace

Result<PushReport> Push(const std::filesystem::path& store, std::string_view url,
                        const PushOptions& options) {
  return Guarded("pushing", [&]() -> Result<PushReport> {
    if (IsGroupRoot(store)) {
      return Status::FailedPrecondition(store.string() +
                                        " is the root of a group: push sends the " +
                                        "store of one writer; use copy to make one");
    }
    VARVE_RETURN_IF_ERROR(ReadFormatFile(store, /*for_writing=*/false).status());
    VARVE_ASSIGN_OR_RETURN(auto objects, OpenObjects(url));
    return PushRun(std::move(objects), options).Run(store);
  });
}

}  // namespace varve
