// SPDX-License-Identifier: Apache-2.0
#include "base/low_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/guarded.h"

namespace varve::internal {

void LowerThreadPriority() {
  constexpr int kNice = 10;
  // On Linux a priority belongs to the thread. After a failure it stays as it is, which does no
  // harm.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

void UseIdleProcessorsOnly() {
  LowerThreadPriority();  // in case the system knows no such policy
  const struct sched_param none {};
  (void)sched_setscheduler(0, SCHED_IDLE, &none);
}

LowPriorityHelpers::LowPriorityHelpers(tbb::task_arena* arena, int count)
    : arena_(arena), last_(group_.defer([] {})) {
  for (int i = 0; i < count; ++i) {
    const Status started = Guarded("starting a helper", [this] {
      threads_.emplace_back([this] {
        LowerThreadPriority();
        // An exception of a task goes to the thread that waits for the task.
        Guarded("helping", [this] {
          arena_->execute([this] { group_.wait(); });
          return Status::Ok();
        }).IgnoreError();
      });
      return Status::Ok();
    });
    if (!started.ok()) return;  // fewer of them do as well
  }
}

LowPriorityHelpers::~LowPriorityHelpers() {
  arena_->execute([this] { group_.run_and_wait(std::move(last_)); });
}

}  // namespace varve::internal
