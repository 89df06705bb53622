// SPDX-License-Identifier: Apache-2.0
//
// Removes what no snapshot needs. The order makes it safe:
//   1. all blobs are listed.
//   2. the state is changed: old snapshots are dropped, dead attempts are closed, and the fence
//      grows. So this state is newer than the list.
//   3. a listed blob is removed if neither a snapshot of this state names it nor is its attempt
//      open in this state.
// A large push puts a blob only after its attempt was opened, so the attempt of a listed blob is
// open in that state or is closed for good. A small push opens no attempt. It reads the fence, puts
// its one blob, and adds its snapshot only while the fence is what it has read. So if its blob is
// listed, the snapshot is in the state above or will never be. A snapshot is added only to a state
// that keeps all that it names. So what may be removed once may be removed for ever, and a
// collector that slept does no harm.
#include "store/remote/reclaim_remote.h"

#include <algorithm>
#include <chrono>
#include <optional>
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

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{200};

// Counts the time in which a push that is alive would have been seen. If this process was stopped
// or waited for the server, the pushes may have been, too. So one look counts for a second at most.
class WatchedTime {
 public:
  void Look() {
    const auto now = Clock::now();
    total_ += std::min<Clock::duration>(now - last_, std::chrono::seconds(1));
    last_ = now;
  }
  Clock::duration total() const { return total_; }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration total_{0};
};

// Returns the attempts that show no sign of life while this waits. It returns early when all do.
// The last look starts after the wait.
Result<std::set<uint64_t>> FindSilent(const Objects& objects, const RemoteState& state,
                                      std::chrono::milliseconds wait) {
  std::set<uint64_t> silent;
  for (const RemoteAttempt& each : state.open) {
    if (!IsAbandoned(each)) silent.insert(each.id);
  }
  VARVE_ASSIGN_OR_RETURN(const auto before, ReadBeats(objects));
  const StopFlag stop;
  WatchedTime watched;
  for (bool is_last = false; !silent.empty() && !is_last;) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    std::this_thread::sleep_for(std::min(kLook, wait));
    watched.Look();
    is_last = watched.total() >= wait;
    VARVE_ASSIGN_OR_RETURN(const auto now, ReadBeats(objects));
    std::erase_if(silent, [&](uint64_t attempt) {
      const auto a = before.find(attempt), b = now.find(attempt);
      return b != now.end() && (a == before.end() || a->second != b->second);
    });
  }
  return silent;
}

// Returns those of the listed blobs that snapshots need. It reads the bodies from the newest on,
// and only as long as there are blobs which no body has named.
Result<std::set<std::string>> FindNeeded(const RemoteLog& log, const RemoteState& state,
                                         const std::vector<BlobInfo>& listed) {
  std::set<std::string> unnamed, needed;
  for (const BlobInfo& blob : listed) unnamed.insert(blob.name);
  const auto name = [&](const std::string& blob) {
    needed.insert(blob);
    unnamed.erase(blob);
  };
  for (const RemoteSnapshot& snapshot : state.snapshots) name(snapshot.body.blob);
  for (auto it = state.snapshots.rbegin(); it != state.snapshots.rend(); ++it) {
    if (unnamed.empty()) break;
    VARVE_ASSIGN_OR_RETURN(const SnapshotBody body, log.ReadBody(*it));
    for (const BodyTable& table : body.tables) name(table.where.blob);
  }
  return needed;
}

// One try. kFailedPrecondition: another collector was faster.
Result<RemoteReclaimReport> TryReclaim(Objects* objects, const RemoteReclaimOptions& options,
                                       const ReclaimMutation& mutation) {
  RemoteLog log(objects);
  RemoteReclaimReport report;
  std::set<uint64_t> silent;
  if (options.wait_for_pushes.count() != 0) {
    VARVE_ASSIGN_OR_RETURN(const RemoteState before, log.ReadNewest());
    VARVE_ASSIGN_OR_RETURN(silent, FindSilent(*objects, before, options.wait_for_pushes));
  }

  std::vector<BlobInfo> listed;
  const auto list = [&] {
    return objects->ListBlobs([&](const BlobInfo& blob) {
      if (ParseBlobName(blob.name).has_value()) listed.push_back(blob);
      return Status::Ok();
    });
  };
  if (!mutation.reads_roots_first) VARVE_RETURN_IF_ERROR(list());

  std::optional<uint64_t> fence;  // that is newer than the list
  const auto change = [&](RemoteState* next) -> Result<bool> {
    if (next->number == 0) return Status::NotFound("there is no snapshot in " + objects->url());
    const size_t kept = options.keep_last.value_or(next->snapshots.size());
    const size_t num_dropped = next->snapshots.size() - std::min(kept, next->snapshots.size());
    for (size_t i = 0; i < num_dropped; ++i) report.dropped.push_back(next->snapshots[i].number);
    next->snapshots.erase(next->snapshots.begin(),
                          next->snapshots.begin() + static_cast<ptrdiff_t>(num_dropped));
    const size_t closed = std::erase_if(next->open, [&](const RemoteAttempt& each) {
      return IsAbandoned(each) || silent.contains(each.id);
    });
    if (!fence.has_value()) fence = next->fence + (mutation.makes_no_fence ? 0 : 1);
    const bool needs_fence = next->fence < *fence;
    if (needs_fence) next->fence = *fence;
    return needs_fence || num_dropped + closed > 0;
  };
  RemoteState state;
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

  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> needed, FindNeeded(log, state, listed));
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
    constexpr auto kShortest = kBeatInterval * kBeatsMissed;
    if (options.wait_for_pushes.count() != 0 && options.wait_for_pushes < kShortest) {
      return Status::InvalidArgument(
          "a wait of " + std::to_string(options.wait_for_pushes.count()) +
          " ms cannot tell a slow push from a dead one: wait " + std::to_string(kShortest.count()) +
          " s or more, or 0, which keeps what pushes have sent");
    }
    VARVE_ASSIGN_OR_RETURN(const auto objects, OpenObjects(url));
    return Reclaim(objects.get(), options);
  });
}

}  // namespace varve
