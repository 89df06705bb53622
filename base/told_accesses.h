// SPDX-License-Identifier: Apache-2.0
//
// The codec is compiled without ThreadSanitizer's checks of each access, which would take most of
// the time of the tests. It has no threads. So it is enough to tell ThreadSanitizer once what it
// reads and writes of a caller's memory. The functions that take chunks, frames and states do so.
#pragma once

#include <cstddef>
#include <span>

#ifdef VARVE_TELLS_TSAN
extern "C" {
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
}
#endif

namespace varve::internal {

inline void TellRead([[maybe_unused]] std::span<const std::byte> bytes) {
#ifdef VARVE_TELLS_TSAN
  __tsan_read_range(const_cast<std::byte*>(bytes.data()), bytes.size());
#endif
}

inline void TellWritten([[maybe_unused]] std::span<std::byte> bytes) {
#ifdef VARVE_TELLS_TSAN
  __tsan_write_range(bytes.data(), bytes.size());
#endif
}

}  // namespace varve::internal
