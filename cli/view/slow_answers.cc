// SPDX-License-Identifier: Apache-2.0
#include "cli/view/slow_answers.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/guarded.h"
#include "varve/status.h"

namespace varve::internal::cli {
namespace {

// A view asks for up to ten answers at a time.
constexpr size_t kMaxJobs = 32;
// How long an answer waits for who asked. A browser wakes a page in the background once a minute.
constexpr std::chrono::minutes kKept{5};

bool IsReady(const auto& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

HttpResponse Refuse(int status, const char* code, const std::string& why) {
  const nlohmann::ordered_json error = {{"error", why}, {"code", code}};
  return {.status = status, .body = error.dump()};
}

HttpResponse RefuseGone() {
  return Refuse(410, "not found", "nobody makes this answer any more: ask for it again");
}

HttpResponse MakeGuarded(const SlowAnswers::Make& make, const std::atomic<bool>* stop) {
  try {
    return make(stop);
  } catch (const std::exception&) {
    return Refuse(500, "internal", "an exception, as when memory runs out");
  }
}

}  // namespace

HttpResponse SlowAnswers::Start(const Make& make) {
  Job job{.started = std::chrono::steady_clock::now(),
          .stop = std::make_shared<std::atomic<bool>>(false)};
  uint64_t number = 0;
  Status started;
  {
    const std::scoped_lock lock(mutex_);
    ForgetOld();
    if (jobs_.size() >= kMaxJobs) {
      return Refuse(503, "unavailable", "too many answers are being made: ask again later");
    }
    *job.stop = is_stopped_;
    started = Guarded("starting a thread", [&] {
      job.made = std::async(std::launch::async, [make, stop = job.stop] {
                   HttpResponse response = MakeGuarded(make, stop.get());
                   return Made{std::move(response), std::chrono::steady_clock::now()};
                 }).share();
      number = ++last_number_;
      jobs_[number] = job;
      return Status::Ok();
    });
  }
  if (!started.ok()) return MakeGuarded(make, job.stop.get());
  return Wait(number, job);
}

HttpResponse SlowAnswers::Await(uint64_t job) {
  Job found;
  {
    const std::scoped_lock lock(mutex_);
    const auto at = jobs_.find(job);
    if (at == jobs_.end()) return RefuseGone();
    found = at->second;
  }
  return Wait(job, found);
}

HttpResponse SlowAnswers::GiveUp(uint64_t job) {
  const std::scoped_lock lock(mutex_);
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return RefuseGone();
  *at->second.stop = true;
  at->second.is_given_up = true;  // it is removed when its thread has ended
  return {.status = 200, .body = nlohmann::ordered_json{{"job", job}}.dump()};
}

void SlowAnswers::Stop() {
  const std::scoped_lock lock(mutex_);
  is_stopped_ = true;
  for (auto& [number, job] : jobs_) *job.stop = true;
}

// Forgets answers that were given up, those that nobody has asked for in time, or all that are
// ready if there are too many. Call it under the mutex.
void SlowAnswers::ForgetOld() {
  const auto now = std::chrono::steady_clock::now();
  const auto kept = jobs_.size() < kMaxJobs ? kKept : std::chrono::minutes(0);
  std::erase_if(jobs_, [now, kept](const auto& entry) {
    const auto& [number, job] = entry;
    if (!IsReady(job.made)) return false;
    return job.is_given_up || now - job.made.get().finished >= kept;
  });
}

HttpResponse SlowAnswers::Wait(uint64_t number, const Job& job) {
  if (job.made.wait_for(patience_) == std::future_status::ready) {
    const std::scoped_lock lock(mutex_);
    jobs_.erase(number);
    return job.made.get().response;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - job.started;
  const nlohmann::ordered_json body = {{"job", number}, {"seconds", elapsed.count()}};
  return {.status = 202, .body = body.dump()};
}

}  // namespace varve::internal::cli
