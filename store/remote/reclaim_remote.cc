// SPDX-License-Identifier: Apache-2.0
//
// Removes what no snapshot needs. The order makes it safe:
//   1. all blobs are listed.
//   2. the state is changed: old snapshots are dropped, dead attempts are closed. It is read back,
//      or read if there was nothing to change. So this state is newer than the list.
//   3. a listed blob is removed if neither a snapshot of this state names it nor is its attempt
//      open in this state.
// A blob is put only after its attempt was opened, so the attempt of a listed blob is open in that
// state or is closed for good. A snapshot is added only to a state that keeps all that it names.
// So what may be removed once may be removed for ever, and a collector that slept does no harm.
#include "store/remote/reclaim_remote.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/guarded.h"
#include "base/stop.h"
#include "objects/url.h"
#include "store/remote/heartbeat.h"
#include "store/remote/owner.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"

namespace varve::internal {

namespace {

constexpr std::chrono::milliseconds kLook{200};

// Returns the attempts that show no progress while this waits. It returns early when all do.
Result<std::set<uint64_t>> FindSilent(const Objects& objects, const RemoteState& state,
                                      std::chrono::milliseconds wait) {
  std::set<uint64_t> silent;
  for (const RemoteAttempt& each : state.open) {
    if (!IsAbandoned(each)) silent.insert(each.id);
  }
  if (wait.count() == 0) return std::set<uint64_t>();
  VARVE_ASSIGN_OR_RETURN(const auto before, ReadBeats(objects));
  const StopFlag stop;
  const auto end = std::chrono::steady_clock::now() + wait;
  while (!silent.empty() && std::chrono::steady_clock::now() < end) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    std::this_thread::sleep_for(std::min(kLook, wait));
    VARVE_ASSIGN_OR_RETURN(const auto now, ReadBeats(objects));
    std::erase_if(silent, [&](uint64_t attempt) {
      const auto a = before.find(attempt), b = now.find(attempt);
      return b != now.end() && (a == before.end() || a->second != b->second);
    });
  }
  return silent;
}

// One try. kFailedPrecondition: another collector was faster.
Result<RemoteReclaimReport> TryReclaim(Objects* objects, const RemoteReclaimOptions& options,
                                       const ReclaimMutation& mutation) {
  RemoteLog log(objects);
  RemoteReclaimReport report;
  VARVE_ASSIGN_OR_RETURN(RemoteState state, log.ReadNewest());
  if (state.number == 0) return Status::NotFound("there is no snapshot in " + objects->url());
  VARVE_ASSIGN_OR_RETURN(const auto silent, FindSilent(*objects, state, options.wait_for_pushes));

  std::vector<BlobInfo> listed;
  const auto list = [&] {
    return objects->ListBlobs([&](const BlobInfo& blob) {
      if (ParseBlobName(blob.name).has_value()) listed.push_back(blob);
      return Status::Ok();
    });
  };
  if (!mutation.reads_roots_first) VARVE_RETURN_IF_ERROR(list());

  const auto change = [&](RemoteState* next) -> Result<bool> {
    const size_t kept = options.keep_last.value_or(next->snapshots.size());
    const size_t num_dropped = next->snapshots.size() - std::min(kept, next->snapshots.size());
    for (size_t i = 0; i < num_dropped; ++i) report.dropped.push_back(next->snapshots[i].number);
    next->snapshots.erase(next->snapshots.begin(),
                          next->snapshots.begin() + static_cast<ptrdiff_t>(num_dropped));
    const size_t closed = std::erase_if(next->open, [&](const RemoteAttempt& each) {
      return IsAbandoned(each) || silent.contains(each.id);
    });
    return num_dropped + closed > 0;
  };
  if (options.dry_run) {
    VARVE_ASSIGN_OR_RETURN(state, log.ReadNewest());
    VARVE_RETURN_IF_ERROR(change(&state).status());
  } else {
    VARVE_ASSIGN_OR_RETURN(state, log.Append(change));
  }
  std::sort(report.dropped.begin(), report.dropped.end());
  report.dropped.erase(std::unique(report.dropped.begin(), report.dropped.end()),
                       report.dropped.end());
  if (mutation.after_roots) mutation.after_roots();
  if (mutation.reads_roots_first) VARVE_RETURN_IF_ERROR(list());

  std::set<std::string> needed;
  for (const RemoteSnapshot& snapshot : state.snapshots) {
    VARVE_ASSIGN_OR_RETURN(const SnapshotBody body, log.ReadBody(snapshot));
    needed.insert(snapshot.body.blob);
    for (const BodyTable& table : body.tables) needed.insert(table.where.blob);
  }
  report.kept = state.snapshots.size();
  for (const BlobInfo& blob : listed) {
    if (blob.is_whole && needed.contains(blob.name)) continue;
    if (state.IsOpen(ParseBlobName(blob.name)->attempt)) {
      ++report.pending_blobs;
      continue;
    }
    // The unfinished put of a blob that is whole by now goes when the blob itself does.
    if (!blob.is_whole && needed.contains(blob.name)) continue;
    if (!options.dry_run) VARVE_RETURN_IF_ERROR(objects->RemoveBlob(blob.name));
    ++report.removed_blobs;
    report.removed_bytes += blob.bytes;
  }
  if (options.dry_run) return report;
  VARVE_RETURN_IF_ERROR(objects->RemoveDebris());
  RemoveBeats(objects, [&state](uint64_t attempt) { return state.IsOpen(attempt); });
  return report;
}

}  // namespace

Result<RemoteReclaimReport> Reclaim(Objects* objects, const RemoteReclaimOptions& options,
                                    const ReclaimMutation& mutation) {
  constexpr int kMaxTries = 10;
  for (int tries = 1;; ++tries) {
    auto report = TryReclaim(objects, options, mutation);
    if (report.status().code() != StatusCode::kFailedPrecondition || tries == kMaxTries)
      return report;
  }
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<RemoteReclaimReport> ReclaimRemote(std::string_view url,
                                          const RemoteReclaimOptions& options) {
  return Guarded("reclaiming", [&]() -> Result<RemoteReclaimReport> {
    if (options.keep_last == uint64_t{0}) {
      return Status::InvalidArgument("a reclaim that keeps no snapshot is refused: keep 1 or more");
    }
    VARVE_ASSIGN_OR_RETURN(const auto objects, OpenObjects(url));
    return Reclaim(objects.get(), options);
  });
}

}  // namespace varve
