// SPDX-License-Identifier: Apache-2.0
//
// The opened stores of a view.
//
// Some calls read one state of a store for as long as they take: diffs, logs, checks, and the sizes
// of stored tensors. Meanwhile their store does not catch up with a writer, and nobody who reads
// from it sees a newer step. So each such answer has a store that no answer which starts later
// uses.
//
//   StorePool pool(/*max_stores=*/4, open);
//   VARVE_ASSIGN_OR_RETURN(const auto store, pool.Take(/*holds_state=*/true));
//
// Thread rule: any thread. A pool outlives the stores that it has given.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal::cli {

class StorePool {
 public:
  using Open = std::function<Result<std::unique_ptr<Store>>()>;

  // The pool keeps at most `max_stores` stores, which must be at least 2.
  StorePool(size_t max_stores, Open open) : max_stores_(max_stores), open_(std::move(open)) {}

  // Returns a store that shows all that was committed before this call. `holds_state` says that the
  // caller may read one state for long. Such a caller waits while all stores but one are held by
  // others like it. No other caller waits, unless there is no room to open another store, as when
  // descriptors run out.
  Result<std::shared_ptr<const Store>> Take(bool holds_state);

 private:
  struct Entry {
    std::shared_ptr<const Store> store;
    bool is_held = false;  // by a caller that may read one state of it
  };
  struct Picked {
    std::shared_ptr<const Store> store;
    bool is_new = false;
  };

  Result<Picked> Pick(bool holds_state);
  void Release(const Store* store);
  size_t NumHeld() const;

  const size_t max_stores_;
  const Open open_;

  std::mutex mutex_;  // guards what follows. Held while a store is opened, for which others wait
  std::condition_variable released_;
  std::list<Entry> entries_;
};

}  // namespace varve::internal::cli
