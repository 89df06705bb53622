// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

#include <cstdint>
#include <unordered_map>

namespace varve::internal::capi {

namespace {

struct Table {
  std::mutex mutex;
  uintptr_t last = 0;  // guarded by mutex, as the next one
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects;
};

// It is never destroyed, because other threads may call varve while the process ends.
Table& TheTable() {
  static Table* const table = new Table;
  return *table;
}

}  // namespace

void* AddObject(std::shared_ptr<Object> object) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  table.objects.emplace(table.last + 1, std::move(object));
  return reinterpret_cast<void*>(++table.last);  // NOLINT(performance-no-int-to-ptr)
}

std::shared_ptr<Object> FindObject(const void* handle) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  const auto found = table.objects.find(reinterpret_cast<uintptr_t>(handle));
  return found == table.objects.end() ? nullptr : found->second;
}

std::shared_ptr<Object> RemoveObject(const void* handle) {
  Table& table = TheTable();
  std::shared_ptr<Object> removed;  // destroyed without the lock, as that may take long
  const std::lock_guard lock(table.mutex);
  const auto found = table.objects.find(reinterpret_cast<uintptr_t>(handle));
  if (found == table.objects.end()) return nullptr;
  removed = std::move(found->second);
  table.objects.erase(found);
  return removed;
}

Status WrongHandle(const void* handle, const Object* found, const char* kind) {
  const std::string expected = "the " + std::string(kind);
  if (handle == nullptr) return Status::InvalidArgument(expected + " is NULL");
  if (found == nullptr) {
    return Status::InvalidArgument(expected + " was closed, or is no handle of varve");
  }
  return Status::InvalidArgument("the handle is of kind " + std::string(found->kind()) +
                                 ", expected " + kind);
}

Status InUse(const char* kind) {
  return Status::FailedPrecondition("another call uses the " + std::string(kind) +
                                    ", expected one call at a time");
}

}  // namespace varve::internal::capi
