// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/background_pusher.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/guarded.h"
#include "base/low_priority.h"
#include "base/seconds_since.h"
#include "base/stop.h"
#include "objects/url.h"
#include "store/format/format_file.h"
#include "store/remote/reclaim_remote.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"
#include "varve/step.h"
#include "varve/stop.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// Files that are sent at the same time. Each may be sent in several parts, which lie in memory.
constexpr int kThreads = 2;
constexpr int kLongestPause = 6;                        // 2^6 seconds
constexpr std::chrono::milliseconds kBetweenLooks{50};  // whether the caller wants to stop

bool IsDown(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kIOError;
}

// The step with the highest number, of any run.
Result<uint64_t> NewestOf(const Store& store) {
  uint64_t newest = 0;
  VARVE_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto step, store.LatestStep(run.name));
    newest = std::max(newest, step.value_or(0));
  }
  return newest;
}

// A host may have the disk of an earlier job. To go on from there would lose what came later.
Status RefuseOlder(const fs::path& path, const std::string& run, const std::string& url) {
  VARVE_ASSIGN_OR_RETURN(const auto remote, OpenRemote(url));
  const auto there = remote->LatestStep(run);
  if (there.status().code() == StatusCode::kNotFound) return Status::Ok();
  VARVE_RETURN_IF_ERROR(there.status());
  VARVE_ASSIGN_OR_RETURN(const auto store, Store::OpenForReading(path));
  VARVE_ASSIGN_OR_RETURN(const uint64_t here, NewestOf(*store));
  if (there->value_or(0) <= here) return Status::Ok();
  return Status::FailedPrecondition(
      "run " + run + " has step " + std::to_string(**there) + " in " + url + ", and the store " +
      path.string() + " ends at step " + std::to_string(here) +
      ": it is older, or its newest steps were dropped. Move the folder away, and the store is "
      "pulled. Or send it as it is with varve push, and start again");
}

}  // namespace

Status PrepareFromRemote(const fs::path& path, const std::string& run, const RemoteOptions& options,
                         const std::string& key) {
  VARVE_ASSIGN_OR_RETURN(const auto objects, OpenObjects(options.url));
  const auto format = ReadFormatFile(path, /*for_writing=*/false);
  const bool is_new = format.status().code() == StatusCode::kNotFound;
  if (!is_new) VARVE_RETURN_IF_ERROR(format.status());
  const auto state = RemoteLog(objects.get()).ReadNewest();
  if (!state.ok() && IsDown(state.status()) && !is_new) return Status::Ok();
  VARVE_RETURN_IF_ERROR(state.status());
  if (state->snapshots.empty()) return Status::Ok();
  if (is_new) return Pull(options.url, path, {.key = key}).status();
  if (state->store_id != format->store_id) {
    return Status::FailedPrecondition(options.url + " holds snapshots of another store than " +
                                      path.string() + "; use another URL");
  }
  const Status status = RefuseOlder(path, run, options.url);
  return IsDown(status) ? Status::Ok() : status;
}

Result<RemoteCheckpoint> FindInRemote(const std::string& run, std::string_view step,
                                      const RemoteOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const auto snapshots, ListSnapshots(options.url));
  for (auto it = snapshots.rbegin(); it != snapshots.rend(); ++it) {
    VARVE_ASSIGN_OR_RETURN(auto store, OpenRemote(options.url, {.snapshot = it->number}));
    const auto id = ResolveStepOfRun(*store, run, step);
    const Status found = id.ok() ? store->OpenCheckpoint(id->run, id->step).status() : id.status();
    if (found.code() == StatusCode::kNotFound) continue;
    VARVE_RETURN_IF_ERROR(found);
    return RemoteCheckpoint{std::move(store), *id};
  }
  return Status::NotFound("no snapshot of " + options.url + " has step " + std::string(step) +
                          " of run " + run);
}

Result<std::unique_ptr<BackgroundPusher>> BackgroundPusher::Start(const fs::path& path,
                                                                  const Store& store,
                                                                  const std::string& run,
                                                                  const RemoteOptions& options) {
  VARVE_ASSIGN_OR_RETURN(auto pusher, Pusher::Open(options.url));
  std::unique_ptr<BackgroundPusher> made(new BackgroundPusher(path, options, std::move(pusher)));
  const auto checkpoints = store.ListCheckpoints(run);
  if (checkpoints.status().code() != StatusCode::kNotFound) {
    VARVE_RETURN_IF_ERROR(checkpoints.status());
    for (const CheckpointInfo& checkpoint : *checkpoints) made->MakeDue(checkpoint.id.step);
  }
  VARVE_RETURN_IF_ERROR(Guarded("starting a thread that pushes", [&] {
    made->thread_ = std::jthread([raw = made.get()](std::stop_token stop) { raw->Run(stop); });
    return Status::Ok();
  }));
  return made;
}

BackgroundPusher::~BackgroundPusher() { ends_ = true; }

void BackgroundPusher::MakeDue(uint64_t step) {
  due_[step] = {++due_up_to_, Clock::now()};
  newest_.reset();
}

void BackgroundPusher::Saved(uint64_t step) {
  const std::lock_guard lock(mutex_);
  newest_ = step;
  if (++num_saved_ % std::max<uint64_t>(options_.interval, 1) != 0) return;
  MakeDue(step);
  wake_.notify_all();
}

bool BackgroundPusher::IsAwaited(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  return due_.contains(step);
}

void BackgroundPusher::SetDeadline(Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  deadline_ = deadline;
}

Status BackgroundPusher::Close() {
  std::unique_lock lock(mutex_);
  if (newest_.has_value()) MakeDue(*newest_);
  auto end = Clock::now() + options_.close_timeout;
  if (deadline_.has_value()) end = std::min(end, *deadline_);
  is_closing_ = true;
  wake_.notify_all();
  const StopFlag stop;
  while (!stop.is_set() && Clock::now() < end) {
    const auto next_look = std::min(end, Clock::now() + kBetweenLooks);
    if (wake_.wait_until(lock, next_look, [&] { return IsDone() || has_given_up_; })) break;
  }
  ends_ = true;
  lock.unlock();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  lock.lock();
  if (IsDone()) return Status::Ok();
  const std::string what =
      "step " + std::to_string(due_.rbegin()->first) + " is not in " + options_.url;
  if (stop.is_set()) return stop.Check().WithContext(what);
  if (last_.has_value() && !last_->status.ok() && last_->status.code() != StatusCode::kAborted) {
    return last_->status.WithContext(what);
  }
  return Status::Unavailable(what + ": there was no time left for a push");
}

Status BackgroundPusher::failure() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

std::optional<PushStats> BackgroundPusher::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void BackgroundPusher::Run(std::stop_token stop) {
  UseIdleProcessorsOnly();
  const StopScope scope(&ends_);
  while (const auto turn = AwaitTurn(stop)) {
    PushStats stats;
    const Status status = Guarded("pushing", [&] {
      stats = PushOnce(*turn);
      return Status::Ok();
    });
    if (!status.ok()) stats.status = status;
    if (!Note(*turn, std::move(stats), stop)) return;
  }
}

// nullopt: the thread shall end.
std::optional<BackgroundPusher::Turn> BackgroundPusher::AwaitTurn(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  if (!wake_.wait(lock, stop, [&] { return !IsDone(); })) return std::nullopt;
  Turn turn{.number = due_up_to_, .oldest = Clock::now()};
  for (const auto& [step, due] : due_) {
    turn.newest_step = step;
    turn.oldest = std::min(turn.oldest, due.since);
  }
  return turn;
}

PushStats BackgroundPusher::PushOnce(const Turn& turn) {
  PushStats stats;
  stats.step = turn.newest_step;
  const auto report = pusher_->Push(path_, {.num_threads = kThreads});
  stats.status = report.status();
  stats.delay_seconds = SecondsSince(turn.oldest);
  if (!report.ok()) return stats;
  stats.snapshot = report->snapshot;
  stats.sent_bytes = report->sent_bytes;
  stats.seconds = report->elapsed.count();
  const Status kept = KeepNewest();
  if (!kept.ok()) stats.warning = kept.WithContext("removing old snapshots").ToString();
  return stats;
}

// What stays goes after the next push.
Status BackgroundPusher::KeepNewest() {
  if (options_.keep == 0 || pusher_->num_snapshots() <= options_.keep) return Status::Ok();
  const auto report = Reclaim(pusher_->objects(), {.keep_last = options_.keep});
  pusher_->Forget();
  return report.status();
}

bool BackgroundPusher::Note(const Turn& turn, PushStats stats, std::stop_token stop) {
  bool was_ended = false;  // Close does not wait between this push and what tells of it
  {
    const std::lock_guard lock(mutex_);
    was_ended = ends_;
    if (stats.status.ok()) {
      failures_ = 0;
      pushed_ = turn.number;
      std::erase_if(due_, [&](const auto& each) { return each.second.number <= turn.number; });
    } else if (!ends_) {
      ++failures_;
      if (first_failure_.ok()) first_failure_ = stats.status;
    }
    stats.failures = failures_;
    if (!ends_ || stats.status.ok()) last_ = stats;  // or the error before says more
  }
  if (options_.on_push && !was_ended) {
    Guarded("telling of a push", [&] {
      options_.on_push(stats);
      return Status::Ok();
    }).IgnoreError();
  }
  std::unique_lock lock(mutex_);
  const bool is_hopeless = !stats.status.ok() && !IsDown(stats.status);
  if (is_closing_ && is_hopeless) has_given_up_ = true;
  wake_.notify_all();
  if (ends_ || stop.stop_requested()) return false;
  if (stats.status.ok()) return true;
  const auto pause = std::chrono::seconds(1 << std::min(failures_ - 1, kLongestPause));
  const bool was_closing = is_closing_;
  // Who closes wants to know soon.
  wake_.wait_for(lock, stop, pause, [&] { return ends_ || (is_closing_ && !was_closing); });
  return !ends_ && !has_given_up_ && !stop.stop_requested();
}

}  // namespace varve::internal

namespace varve {

std::string ToString(const PushStats& stats) {
  char text[160];
  if (!stats.status.ok()) {
    std::snprintf(text, sizeof(text), "push of step %llu failed (%d in a row): ",
                  static_cast<unsigned long long>(stats.step), stats.failures);
    return text + stats.status.ToString();
  }
  std::snprintf(
      text, sizeof(text),
      "pushed step %llu as snapshot %llu, %.1f MiB in %.2f s, %.2f s after its commit",
      static_cast<unsigned long long>(stats.step), static_cast<unsigned long long>(stats.snapshot),
      static_cast<double>(stats.sent_bytes) / (1 << 20), stats.seconds, stats.delay_seconds);
  return stats.warning.empty() ? text : text + ("; " + stats.warning);
}

}  // namespace varve
