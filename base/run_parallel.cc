// SPDX-License-Identifier: Apache-2.0
#include "base/run_parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/stop.h"
#include "varve/stop.h"

namespace varve::internal {

Status RunParallel(size_t count, int num_threads, const std::function<Status(size_t)>& work) {
  const StopFlag stop;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status first;  // guarded by mutex
  const auto run = [&] {
    std::optional<StopScope> scope;
    if (stop.flag() != nullptr) scope.emplace(stop.flag());
    for (size_t i = next++; i < count; i = next++) {
      Status status = Guarded("working on files", [&] { return work(i); });
      if (status.ok()) status = stop.Check();
      if (status.ok()) continue;
      next = count;
      const std::lock_guard lock(mutex);
      if (first.ok()) first = std::move(status);
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t wanted = std::min(count, static_cast<size_t>(std::max(1, num_threads)));
    // A thread that cannot be started is done without.
    Guarded("starting threads", [&] {
      while (threads.size() + 1 < wanted) threads.emplace_back(run);
      return Status::Ok();
    }).IgnoreError();
    run();
  }
  return first;
}

}  // namespace varve::internal
