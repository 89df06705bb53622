// SPDX-License-Identifier: Apache-2.0
#include "cli/view/store_pool.h"

#include <algorithm>
#include <utility>

namespace varve::internal::cli {
namespace {

// Stores that stay open for answers to come. The others are closed when nobody reads from them.
constexpr size_t kMaxIdle = 2;

}  // namespace

Result<std::shared_ptr<const Store>> StorePool::Take(bool holds_state) {
  VARVE_ASSIGN_OR_RETURN(const Picked picked, Pick(holds_state));
  std::shared_ptr<const Store> store = picked.store;
  if (holds_state) {
    store = {picked.store.get(), [this, kept = picked.store](const Store* held) { Release(held); }};
  }
  // Another caller may hold the state of this store from now on. Then it has caught up after the
  // store was picked here, so what is seen is new enough.
  if (!picked.is_new) VARVE_RETURN_IF_ERROR(store->CatchUp());
  return store;
}

Result<StorePool::Picked> StorePool::Pick(bool holds_state) {
  std::unique_lock lock(mutex_);
  if (holds_state) released_.wait(lock, [this] { return NumHeld() + 1 < max_stores_; });
  if (NumHeld() == entries_.size()) {
    auto opened = open_();
    if (opened.ok()) {
      entries_.push_back({*std::move(opened), holds_state});
      return Picked{entries_.back().store, /*is_new=*/true};
    }
    if (entries_.empty()) return opened.status();
    released_.wait(lock, [this] { return NumHeld() < entries_.size(); });
  }
  const auto free = std::ranges::find(entries_, false, &Entry::is_held);
  free->is_held = holds_state;
  return Picked{free->store};
}

void StorePool::Release(const Store* store) {
  std::shared_ptr<const Store> closed;  // without the mutex
  {
    const std::scoped_lock lock(mutex_);
    const auto entry =
        std::ranges::find(entries_, store, [](const Entry& e) { return e.store.get(); });
    entry->is_held = false;
    if (entries_.size() - NumHeld() > kMaxIdle) {
      closed = std::move(entry->store);
      entries_.erase(entry);
    }
  }
  released_.notify_all();
}

size_t StorePool::NumHeld() const {
  return static_cast<size_t>(std::ranges::count(entries_, true, &Entry::is_held));
}

}  // namespace varve::internal::cli
