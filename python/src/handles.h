// SPDX-License-Identifier: Apache-2.0
//
// What Python holds of varve: a store, and the writers and readers that it made. A handle adds
// three things to the C++ object.
//
// - Closing a store closes its writers and readers first, after the calls that are under way in
// other
//   threads. Each later call gives kFailedPrecondition.
// - A call in a forked child throws ForkedError before it touches a lock, and a handle that dies
// there
//   is forgotten, as its threads are in the parent.
// - Each call runs without the GIL, and Ctrl-C ends a long one (interruptible.h).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "python/src/errors.h"
#include "python/src/interruptible.h"
#include "varve/store.h"

namespace varve::python {

// Says whether the process has forked since this object was made.
class ForkGuard {
 public:
  ForkGuard();
  bool InChild() const;
  void Check() const {
    if (!InChild()) return;
    throw ForkedError(
        "this handle was opened before a fork: its threads and locks stayed in the parent process. "
        "Open the store in the child for reading, or start the child with the \"spawn\" method");
  }

 private:
  uint64_t forks_;
};

// Takes a lock with the GIL held. Gives the GIL up while it waits, as the owner may need it.
template <typename Lock, typename Mutex>
Lock LockWithGil(Mutex& mutex) {
  Lock lock(mutex, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  const nanobind::gil_scoped_release release;
  lock.lock();
  return lock;
}

class StoreHandle;

// What a store made, and takes along when it closes.
class Child {
 public:
  explicit Child(std::shared_ptr<StoreHandle> store);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  virtual ~Child() = default;

 protected:
  friend class StoreHandle;
  virtual void Release() = 0;  // destroys the C++ object. Called without the GIL
  virtual void Forget() = 0;   // leaves it where it is
  void Die();                  // what each destructor calls first

  std::shared_ptr<StoreHandle> store_;
};

class StoreHandle {
 public:
  StoreHandle(std::shared_ptr<Store> store, std::string path);
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;
  ~StoreHandle();

  const std::string& path() const { return path_; }
  bool is_open() const;
  void Close();
  void CloseWithoutGil();  // called where the GIL is not held

  // Calls `call(Store&)` without the GIL while the store cannot be closed.
  template <typename Call>
  auto With(Call&& call) {
    guard_.Check();
    const nanobind::gil_scoped_release release;
    const std::shared_lock lock(mutex_);
    return call(RequireOpen());
  }
  // The same for a call that waits for nothing. It keeps the GIL, because other threads of Python
  // would otherwise run between the calls for one tensor and the next, each for milliseconds.
  template <typename Call>
  auto WithGil(Call&& call) {
    guard_.Check();
    const auto lock = LockWithGil<std::shared_lock<std::shared_mutex>>(mutex_);
    return call(RequireOpen());
  }
  // The same for a call that may be long.
  template <typename Call>
  auto WithLong(Call&& call) {
    guard_.Check();
    const nanobind::gil_scoped_release release;
    return Interruptible([&] {
      const std::shared_lock lock(mutex_);
      return call(RequireOpen());
    });
  }
  // The same with two stores, which may be one.
  template <typename Call>
  auto WithLong(StoreHandle& other, Call&& call) {
    guard_.Check();
    other.guard_.Check();
    const nanobind::gil_scoped_release release;
    StoreHandle& first = this < &other ? *this : other;
    StoreHandle& second = this < &other ? other : *this;
    return Interruptible([&] {
      const std::shared_lock lock(first.mutex_);
      std::shared_lock<std::shared_mutex> second_lock;
      if (&first != &second) second_lock = std::shared_lock(second.mutex_);
      return call(RequireOpen(), other.RequireOpen());
    });
  }

 private:
  friend class Child;
  Store& RequireOpen() const;

  const std::string path_;
  const ForkGuard guard_;
  mutable std::shared_mutex mutex_;  // exclusive only to close
  std::shared_ptr<Store> store_;     // null: closed
  std::mutex children_mutex_;
  std::set<Child*> children_;
};

class ReaderHandle : public Child {
 public:
  ReaderHandle(std::shared_ptr<StoreHandle> store, std::unique_ptr<CheckpointReader> reader)
      : Child(std::move(store)), reader_(std::move(reader)) {}
  ~ReaderHandle() override { Die(); }

  template <typename Call>
  auto With(Call&& call) {
    return store_->With([&](Store&) { return call(*reader_); });
  }
  template <typename Call>
  auto WithLong(Call&& call) {
    return store_->WithLong([&](Store&) { return call(*reader_); });
  }

 private:
  void Release() override { reader_.reset(); }
  void Forget() override { static_cast<void>(reader_.release()); }

  std::unique_ptr<CheckpointReader> reader_;
};

class WriterHandle : public Child {
 public:
  WriterHandle(std::shared_ptr<StoreHandle> store, std::unique_ptr<CheckpointWriter> writer)
      : Child(std::move(store)), writer_(std::move(writer)) {}
  ~WriterHandle() override { Die(); }

  // As a writer takes one thread at a time, calls of several threads wait for each other.
  template <typename Call>
  auto With(Call&& call) {
    return store_->With([&](Store&) {
      const std::lock_guard lock(mutex_);
      return call(*writer_);
    });
  }
  template <typename Call>
  auto WithGil(Call&& call) {
    return store_->WithGil([&](Store&) {
      const auto lock = LockWithGil<std::unique_lock<std::mutex>>(mutex_);
      return call(*writer_);
    });
  }
  template <typename Call>
  auto WithLong(Call&& call) {
    return store_->WithLong([&](Store&) {
      const std::lock_guard lock(mutex_);
      return call(*writer_);
    });
  }

  // Keeps `owner` of a tensor's memory alive until the save is over. Both need the GIL.
  void Keep(nanobind::object owner) { owners_.push_back(std::move(owner)); }
  void LetGo() { std::vector<nanobind::object>().swap(owners_); }

 private:
  void Release() override { writer_.reset(); }
  void Forget() override { static_cast<void>(writer_.release()); }

  std::mutex mutex_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::vector<nanobind::object> owners_;
};

}  // namespace varve::python
