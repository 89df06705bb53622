// SPDX-License-Identifier: Apache-2.0
//
// Handles of C. A handle is the number of an object in a table, in the form of a pointer that
// nobody follows. Numbers are not used twice, so a handle that was closed is known as such for
// ever.
//
// Thread rule: any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "varve/result.h"

namespace varve::internal::capi {

// What a handle names. A call holds it by a shared_ptr, so a close in another thread is safe.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual const char* kind() const = 0;  // "store"
  std::mutex in_use;                     // held by the one call that Exclusive allows
};

// Puts an object into the table and returns its handle.
void* AddObject(std::shared_ptr<Object> object);
// Returns null when the handle names no object (any more).
std::shared_ptr<Object> FindObject(const void* handle);
std::shared_ptr<Object> RemoveObject(const void* handle);

// The error about a handle that is not what it should be. `found` may be null.
Status WrongHandle(const void* handle, const Object* found, const char* kind);
Status InUse(const char* kind);

// Returns the object of a handle. T has a static kKind. kInvalidArgument: the handle is null, was
// closed, or names something else.
template <typename T>
Result<std::shared_ptr<T>> Get(const void* handle) {
  const std::shared_ptr<Object> object = FindObject(handle);
  auto typed = std::dynamic_pointer_cast<T>(object);
  if (typed == nullptr) return WrongHandle(handle, object.get(), T::kKind);
  return typed;
}

// An object that no other call uses meanwhile.
template <typename T>
class Exclusive {
 public:
  // kFailedPrecondition: another call uses it.
  static Result<Exclusive> Get(const void* handle) {
    VARVE_ASSIGN_OR_RETURN(std::shared_ptr<T> object, capi::Get<T>(handle));
    return Of(std::move(object));
  }
  static Result<Exclusive> Of(std::shared_ptr<T> object) {
    std::unique_lock lock(object->in_use, std::try_to_lock);
    if (!lock.owns_lock()) return InUse(T::kKind);
    return Exclusive(std::move(object), std::move(lock));
  }
  T* operator->() const { return object_.get(); }
  const std::shared_ptr<T>& object() const { return object_; }

 private:
  Exclusive(std::shared_ptr<T> object, std::unique_lock<std::mutex> lock)
      : object_(std::move(object)), lock_(std::move(lock)) {}

  std::shared_ptr<T> object_;  // outlives the lock
  std::unique_lock<std::mutex> lock_;
};

// Removes the object of a handle if it is a T. It lives on while a call uses it.
template <typename T>
void Close(const void* handle) {
  if (std::dynamic_pointer_cast<T>(FindObject(handle)) != nullptr) RemoveObject(handle);
}

// Gives the caller the handle of a new object.
template <typename Handle>
void Give(std::shared_ptr<Object> object, Handle** handle) {
  *handle = static_cast<Handle*>(AddObject(std::move(object)));
}

}  // namespace varve::internal::capi
