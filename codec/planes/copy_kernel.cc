// SPDX-License-Identifier: Apache-2.0
#include "codec/planes/copy_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/cpu.h"
#include "base/told_accesses.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

constexpr size_t kLineBytes = 64;

#if VARVE_X86
// Copies whole cache lines. `to` is aligned to one.
void StreamLines(const std::byte* from, size_t num_lines, std::byte* to) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  for (size_t i = 0; i < num_lines; ++i, in += 4, out += 4) {
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // before any other thread is told that the copy is done
}
#else
void StreamLines(const std::byte* from, size_t num_lines, std::byte* to) {
  std::memcpy(to, from, num_lines * kLineBytes);
}
#endif

}  // namespace

void CopyPastCache(std::span<const std::byte> from, std::span<std::byte> to) {
  TellRead(from);
  TellWritten(to);
  if (to.empty()) return;  // then either pointer may be null, which memcpy does not take
  const auto address = reinterpret_cast<uintptr_t>(to.data());
  const size_t head = std::min(to.size(), (kLineBytes - address % kLineBytes) % kLineBytes);
  const size_t num_lines = (to.size() - head) / kLineBytes;
  const size_t tail = head + num_lines * kLineBytes;
  std::memcpy(to.data(), from.data(), head);
  StreamLines(from.data() + head, num_lines, to.data() + head);
  std::memcpy(to.data() + tail, from.data() + tail, to.size() - tail);
}

}  // namespace varve::internal
