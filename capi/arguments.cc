// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.h"

namespace varve::internal::capi {

Status RequirePointer(const char* what, const void* pointer) {
  if (pointer != nullptr) return Status::Ok();
  return Status::InvalidArgument(std::string(what) + " is NULL");
}

Status CheckStructSize(const char* what, size_t size, size_t first, size_t expected) {
  constexpr size_t kLargest = 4096;  // an uninitialised struct says any number
  if (size >= first && size <= kLargest) return Status::Ok();
  return Status::InvalidArgument("struct_size of " + std::string(what) + " is " +
                                 std::to_string(size) + ", expected " + std::to_string(expected) +
                                 ": set it to sizeof the struct");
}

Status CheckUnknownFields(const char* what, const void* bytes, size_t size) {
  const auto* const first = static_cast<const char*>(bytes);
  if (std::all_of(first, first + size, [](char byte) { return byte == 0; })) return Status::Ok();
  return Status::InvalidArgument(std::string(what) +
                                 " sets a field that this version of varve does not know, "
                                 "expected zeros there, or a newer libvarve_c");
}

Status CheckConstant(const char* what, uint32_t value, uint32_t last) {
  if (value <= last) return Status::Ok();
  return Status::InvalidArgument(std::string(what) + " is " + std::to_string(value) +
                                 ", expected at most " + std::to_string(last));
}

}  // namespace varve::internal::capi
