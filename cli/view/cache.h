// SPDX-License-Identifier: Apache-2.0
//
// Keeps the last few answers under keys that name all that they depend on. Thread rule: any thread.
// What is made is made once: who asks for the same meanwhile waits for it, and gets its error, too.
// If its maker is stopped, a waiting caller makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/guarded.h"
#include "base/stop.h"
#include "varve/result.h"

namespace varve::internal::cli {

template <class T>
class Cache {
 public:
  explicit Cache(size_t max_entries) : max_entries_(max_entries) {}

  // Returns what is kept under `key`, or what `make` returns, which is then kept. An error is not
  // kept.
  template <class Make>
  Result<std::shared_ptr<const T>> Get(const std::string& key, const Make& make) {
    std::promise<Made> promise;
    uint64_t number = 0;
    while (const auto kept = FindOrAdd(key, promise, &number)) {
      const Made& made = kept->get();
      const bool was_stopped = made.status().code() == StatusCode::kAborted;
      if (!was_stopped || StopFlag().is_set()) return made;
    }
    const Made made = Guarded("answering", [&]() -> Made {
      VARVE_ASSIGN_OR_RETURN(T value, make());
      return std::make_shared<const T>(std::move(value));
    });
    if (!made.ok()) Forget(number);
    promise.set_value(made);
    return made;
  }

 private:
  using Made = Result<std::shared_ptr<const T>>;
  struct Entry {
    std::string key;
    uint64_t number = 0;
    std::shared_future<Made> made;
  };

  // Returns nullopt when the caller is the one who makes it.
  std::optional<std::shared_future<Made>> FindOrAdd(const std::string& key,
                                                    std::promise<Made>& promise, uint64_t* number) {
    const std::scoped_lock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->key != key) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return entries_.front().made;
    }
    if (entries_.size() >= max_entries_) entries_.pop_back();
    *number = ++last_number_;
    entries_.push_front({key, *number, promise.get_future().share()});
    return std::nullopt;
  }
  void Forget(uint64_t number) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(entries_, [number](const Entry& entry) { return entry.number == number; });
  }

  const size_t max_entries_;
  std::mutex mutex_;          // guards what follows
  std::list<Entry> entries_;  // the newest first
  uint64_t last_number_ = 0;
};

}  // namespace varve::internal::cli
