// SPDX-License-Identifier: Apache-2.0
//
// Keeps the last few answers about steps, which never change. Thread rule: any thread. What is made
// is made once: who asks meanwhile waits for it.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

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
    const std::scoped_lock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->first != key) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return entries_.front().second;
    }
    if (entries_.size() >= max_entries_) entries_.pop_back();
    Result<T> made = make();
    if (!made.ok()) return made.status();
    entries_.emplace_front(key, std::make_shared<const T>(*std::move(made)));
    return entries_.front().second;
  }

 private:
  const size_t max_entries_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const T>>> entries_;  // the newest first
};

}  // namespace varve::internal::cli
