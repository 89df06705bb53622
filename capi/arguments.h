// SPDX-License-Identifier: Apache-2.0
//
// What a function of varve/c.h does with its arguments: none is trusted. Functions are stateless.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "varve/c.h"
#include "varve/status.h"

namespace varve::internal::capi {

// The size of a struct in its first version, which is the end of its last field then. A field that
// is added later does not change it.
template <typename T>
inline constexpr size_t kFirstSize = 0;
#define VARVE_FIRST_SIZE_(type, last) \
  template <>                         \
  inline constexpr size_t kFirstSize<type> = offsetof(type, last) + sizeof(type::last)
VARVE_FIRST_SIZE_(varve_tensor, derived_from);
VARVE_FIRST_SIZE_(varve_tensor_info, num_bytes);
VARVE_FIRST_SIZE_(varve_store_options, pipeline_budget_bytes);
VARVE_FIRST_SIZE_(varve_reclaim_report, disk_bytes_after);
VARVE_FIRST_SIZE_(varve_check_report, bytes_read);
VARVE_FIRST_SIZE_(varve_store_stats, disk_bytes);
VARVE_FIRST_SIZE_(varve_run_info, forked_from_step);
VARVE_FIRST_SIZE_(varve_step_info, tags);
VARVE_FIRST_SIZE_(varve_progress, last_loss);
VARVE_FIRST_SIZE_(varve_save_options, num_threads);
VARVE_FIRST_SIZE_(varve_save_report, seconds);
VARVE_FIRST_SIZE_(varve_item, size);
VARVE_FIRST_SIZE_(varve_hooks_options, num_threads);
VARVE_FIRST_SIZE_(varve_load_report, seconds);
#undef VARVE_FIRST_SIZE_

// kInvalidArgument: the pointer is null.
Status RequirePointer(const char* what, const void* pointer);
// kInvalidArgument: `size` is no size of a version of the struct. `expected` is its size now.
Status CheckStructSize(const char* what, size_t size, size_t first, size_t expected);
// kInvalidArgument: one of the bytes is not zero. They are fields that this library does not know.
Status CheckUnknownFields(const char* what, const void* bytes, size_t size);

// Checks a struct of the caller, also before a function fills it.
template <typename T>
Status CheckStruct(const char* what, const T* pointer) {
  static_assert(kFirstSize<T> > 0 && std::is_trivially_copyable_v<T>);
  VARVE_RETURN_IF_ERROR(RequirePointer(what, pointer));
  return CheckStructSize(what, pointer->struct_size, kFirstSize<T>, sizeof(T));
}

// Copies a struct of a caller who may know another version of it. Fields that the caller does not
// know are zero.
template <typename T>
Status ReadStruct(const char* what, const T* from, T* to) {
  VARVE_RETURN_IF_ERROR(CheckStruct(what, from));
  const size_t size = from->struct_size;
  if (size > sizeof(T)) {
    const auto* const bytes = reinterpret_cast<const char*>(from);
    VARVE_RETURN_IF_ERROR(CheckUnknownFields(what, bytes + sizeof(T), size - sizeof(T)));
  }
  *to = T{};
  std::memcpy(to, from, std::min(size, sizeof(T)));
  return Status::Ok();
}

// The same for options, which may be null.
template <typename T>
Status ReadOptions(const char* what, const T* from, T* to) {
  *to = T{};
  return from == nullptr ? Status::Ok() : ReadStruct(what, from, to);
}

// Fills a struct of the caller that CheckStruct has passed. Fields that this library does not know
// become zero.
template <typename T>
void WriteStruct(T value, T* to) {
  const size_t size = to->struct_size;
  value.struct_size = size;
  std::memcpy(to, &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<char*>(to) + sizeof(T), 0, size - sizeof(T));
}

// The same for a report, which may be null.
template <typename T>
Status CheckOptional(const char* what, const T* to) {
  return to == nullptr ? Status::Ok() : CheckStruct(what, to);
}
template <typename T>
void WriteOptional(const T& value, T* to) {
  if (to != nullptr) WriteStruct(value, to);
}

// kInvalidArgument: `value` is no constant of the header, as it is above `last`.
Status CheckConstant(const char* what, uint32_t value, uint32_t last);

}  // namespace varve::internal::capi
