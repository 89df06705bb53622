// SPDX-License-Identifier: Apache-2.0
//
// Clocks that jump, in any program by LD_PRELOAD. Each look at the time of day is off by up to ten
// years, forward or back, by another amount each time. $VARVE_CLOCK_SEED chooses the amounts.
// Clocks that only measure (CLOCK_MONOTONIC and the like) go on as they do, as in a system whose
// time is set.
#include <dlfcn.h>
#include <sys/time.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kTenYears = int64_t{10} * 365 * 86400;

std::atomic<uint64_t> looks{0};

int64_t Offset() {
  static const uint64_t seed = [] {
    const char* const text = std::getenv("VARVE_CLOCK_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }();
  uint64_t mixed = (++looks + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  mixed ^= mixed >> 29;
  return static_cast<int64_t>(mixed % (2 * kTenYears)) - kTenYears;
}

using ClockGetTime = int(clockid_t, timespec*);

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  static auto* const next = reinterpret_cast<ClockGetTime*>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = next(clock, out);
  const bool is_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && is_of_day) out->tv_sec += Offset();
  return result;
}
int gettimeofday(timeval* out, void*) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  if (result == 0) *out = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}
time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
