// SPDX-License-Identifier: Apache-2.0
// Both ends of requests: handing one in, and the writer's loop that applies them.
#include "varve/request.h"

#include <algorithm>
#include <thread>

#include "base/guarded.h"
#include "store/db/store_impl.h"
#include "store/format/group_file.h"
#include "store/ops/inbox.h"

namespace varve::internal {

namespace {

constexpr auto kAnswerPoll = std::chrono::milliseconds(5);
constexpr auto kOpenPoll = std::chrono::milliseconds(250);
constexpr auto kInboxPoll = std::chrono::milliseconds(500);

// A writer started a drop and did not finish it. Steps that are gone already are no error.
std::vector<CheckpointId> StillThere(const Store& store, const std::vector<CheckpointId>& ids) {
  std::vector<CheckpointId> there;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(there), [&](const CheckpointId& id) {
    return store.OpenCheckpoint(id.run, id.step).status().code() != StatusCode::kNotFound;
  });
  return there;
}

InboxAnswer Apply(Store* store, const Request& request, bool again) {
  InboxAnswer answer;
  if (const auto* set_tag = std::get_if<SetTagRequest>(&request)) {
    answer.status = store->SetTag(set_tag->id, set_tag->tag);
  } else if (const auto* remove = std::get_if<RemoveTagRequest>(&request)) {
    answer.status = store->RemoveTag(remove->run, remove->tag);
    if (again && answer.status.code() == StatusCode::kNotFound) answer.status = Status::Ok();
  } else if (const auto* metrics = std::get_if<SetMetricsRequest>(&request)) {
    answer.status = store->SetMetrics(metrics->id, metrics->metrics);
  } else {
    const auto& drop = std::get<DropRequest>(request);
    Result<DropReport> report =
        store->Drop(again ? StillThere(*store, drop.ids) : drop.ids, {.reclaim = drop.reclaim});
    answer.status = report.status();
    if (report.ok()) {
      answer.drop = *std::move(report);
      answer.drop.dropped = drop.ids;
    }
  }
  return answer;
}

Result<SubmitReport> HandIn(const std::filesystem::path& path, const Request& request,
                            const SubmitOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::unique_ptr<Store> store;  // set once no writer is there
  const auto try_to_open = [&]() -> Status {
    Result<std::unique_ptr<Store>> opened = Store::Open(path, {.key = options.key});
    Status status = opened.status();
    if (status.ok()) store = *std::move(opened);
    return status.code() == StatusCode::kLocked ? Status::Ok() : status;
  };
  VARVE_RETURN_IF_ERROR(try_to_open());
  if (store != nullptr) {
    // Requests that came before go first. A group has no inbox, because all processes write to its
    // log.
    if (!IsGroupRoot(path)) static_cast<StoreImpl*>(store.get())->ApplyInbox().IgnoreError();
    // The request does not go through the inbox, because a full disk has no room for a request but
    // can still do a drop.
    InboxAnswer answer = Apply(store.get(), request, /*again=*/false);
    VARVE_RETURN_IF_ERROR(answer.status);
    return SubmitReport{AppliedBy::kCaller, std::move(answer.drop)};
  }
  const Inbox inbox(path);
  VARVE_ASSIGN_OR_RETURN(const std::string name, inbox.Put({request, options.wait}));
  if (!options.wait) return SubmitReport{.applied_by = AppliedBy::kNobody};
  const auto deadline = Clock::now() + options.timeout;
  Status applied;  // all that wait, by this process
  bool has_applied = false;
  for (auto next_open = Clock::now() + kOpenPoll;; std::this_thread::sleep_for(kAnswerPoll)) {
    // In this order, because an answer is shown last.
    const bool is_there = inbox.Has(name);
    VARVE_ASSIGN_OR_RETURN(auto answer, inbox.TakeAnswer(name));
    if (answer.has_value()) {
      VARVE_RETURN_IF_ERROR(answer->status);
      return SubmitReport{store != nullptr ? AppliedBy::kCaller : AppliedBy::kWriter,
                          std::move(answer->drop)};
    }
    if (!is_there) {
      return Status::Aborted("the request to " + path.string() +
                             " was taken from its inbox, and there is no answer. Look whether it "
                             "was applied");
    }
    if (!applied.ok()) {
      return Status::Aborted("the request to " + path.string() +
                             " waits in its inbox and may still be applied: " + applied.message());
    }
    if ((store == nullptr || has_applied) && Clock::now() >= deadline) {
      return Status::Aborted("the writer of " + path.string() + " did not answer within " +
                             std::to_string(options.timeout.count()) +
                             " ms; the request waits in its inbox and may still be applied");
    }
    if (store != nullptr) {
      applied = static_cast<StoreImpl*>(store.get())->ApplyInbox();
      has_applied = true;
    } else if (Clock::now() >= next_open) {  // the writer may have gone meanwhile
      VARVE_RETURN_IF_ERROR(try_to_open());
      next_open = Clock::now() + kOpenPoll;
    }
  }
}

}  // namespace

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<SubmitReport> Submit(const std::filesystem::path& path, const Request& request,
                            const SubmitOptions& options) {
  return Guarded("handing in a request", [&] { return HandIn(path, request, options); });
}

}  // namespace varve

namespace varve::internal {

Status StoreImpl::ApplyInbox() {
  const std::lock_guard lock(inbox_mutex_);
  const Inbox inbox(path_);
  Status first_trouble;  // with one request. It does not delay the others
  const auto note = [&](const Status& status) {
    if (first_trouble.ok()) first_trouble = status;
  };
  VARVE_ASSIGN_OR_RETURN(const std::vector<Inbox::Waiting> requests, inbox.List());
  for (const Inbox::Waiting& waiting : requests) {
    if (waiting.stage == Inbox::Stage::kApplied) {
      note(inbox.ShowAnswer(waiting.name));
      continue;
    }
    if (waiting.stage == Inbox::Stage::kWaits) unapplied_.insert(waiting.name);
    const Result<InboxRequest> request = inbox.Start(waiting);
    const StatusCode code = request.status().code();
    if (code == StatusCode::kIOError || code == StatusCode::kNotFound) {
      note(request.status());  // it stays, for a better time
      continue;
    }
    InboxAnswer answer{request.status(), {}};
    if (request.ok()) {
      const bool again = unapplied_.erase(waiting.name) == 0;
      answer = Apply(this, request->request, again);
      // A request for what is not there changes nothing. Any other error may come late.
      const bool is_unapplied = !again && answer.status.code() == StatusCode::kNotFound;
      if (is_unapplied) unapplied_.insert(waiting.name);
    }
    const Status finished =
        inbox.Finish(waiting.name, answer, !request.ok() || request->wants_answer);
    if (finished.ok()) unapplied_.erase(waiting.name);
    note(finished);
  }
  return first_trouble;
}

void StoreImpl::InboxLoop(std::stop_token stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    // An error of one request is in its answer. An error of the folder cannot be in any answer.
    Guarded("applying requests", [&] { return ApplyInbox(); }).IgnoreError();
    inbox_wake_.wait_for(lock, stop, kInboxPoll, [] { return false; });
  }
}

}  // namespace varve::internal
