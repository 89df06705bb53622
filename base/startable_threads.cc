// SPDX-License-Identifier: Apache-2.0
#include "base/startable_threads.h"

#include <algorithm>
#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/guarded.h"

namespace varve::internal {

int StartableThreads(int wanted) {
  static std::atomic<int> known{1};
  if (wanted <= known) return wanted;
  std::counting_semaphore<> ended(0);
  std::vector<std::jthread> threads;
  Guarded("starting threads", [&] {
    while (static_cast<int>(threads.size()) < wanted - 1) {
      threads.emplace_back([&ended] { ended.acquire(); });  // all are there at a time
    }
    return Status::Ok();
  }).IgnoreError();  // fewer of them do as well
  const int found = 1 + static_cast<int>(threads.size());
  ended.release(found - 1);
  threads.clear();
  int before = known;
  while (found > before && !known.compare_exchange_weak(before, found)) {
  }
  return found;
}

}  // namespace varve::internal
