// SPDX-License-Identifier: Apache-2.0
#include "python/src/handles.h"

#include <pthread.h>

#include <atomic>

namespace nb = nanobind;

namespace varve::python {
namespace {

std::atomic<uint64_t> forks{0};

void CountForks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (registered != 0) ThrowIfError(Status::Unavailable("pthread_atfork failed"));
}

}  // namespace

ForkGuard::ForkGuard() {
  CountForks();
  forks_ = forks.load(std::memory_order_relaxed);
}

bool ForkGuard::InChild() const { return forks.load(std::memory_order_relaxed) != forks_; }

Child::Child(std::shared_ptr<StoreHandle> store) : store_(std::move(store)) {
  const std::lock_guard lock(store_->children_mutex_);
  store_->children_.insert(this);
}

void Child::Die() {
  if (store_->guard_.InChild()) return Forget();
  const nb::gil_scoped_release release;
  const std::shared_lock lock(store_->mutex_);
  {
    const std::lock_guard children(store_->children_mutex_);
    store_->children_.erase(this);
  }
  Release();
}

StoreHandle::StoreHandle(std::shared_ptr<Store> store, std::string path)
    : path_(std::move(path)), store_(std::move(store)) {}

StoreHandle::~StoreHandle() {
  if (guard_.InChild()) {
    new std::shared_ptr<Store>(std::move(store_));  // never destroyed
  } else {
    Close();
  }
}

bool StoreHandle::is_open() const {
  guard_.Check();
  const nb::gil_scoped_release release;
  const std::shared_lock lock(mutex_);
  return store_ != nullptr;
}

void StoreHandle::Close() {
  guard_.Check();
  const nb::gil_scoped_release release;
  CloseWithoutGil();
}

void StoreHandle::CloseWithoutGil() {
  const std::unique_lock lock(mutex_);
  const std::lock_guard children(children_mutex_);
  for (Child* child : children_) child->Release();
  children_.clear();
  store_.reset();
}

Store& StoreHandle::RequireOpen() const {
  if (store_ == nullptr)
    ThrowIfError(Status::FailedPrecondition("the store " + path_ + " is closed"));
  return *store_;
}

}  // namespace varve::python
