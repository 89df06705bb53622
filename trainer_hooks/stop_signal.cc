// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/stop_signal.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace varve::internal {

namespace {

std::mutex handlers_mutex;
int num_alive = 0;               // guarded by handlers_mutex, as the next two
struct sigaction old_term = {};  // of before the first
struct sigaction old_usr1 = {};
static_assert(std::atomic<int64_t>::is_always_lock_free);  // as a signal handler needs
std::atomic<int64_t> received_ns{0};                       // of the monotonic clock, or 0 = none

void Note(int /*signal*/) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);  // what steady_clock reads
  int64_t none = 0;
  received_ns.compare_exchange_strong(none, int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(handlers_mutex);
  if (num_alive++ > 0) return;
  received_ns = 0;
  struct sigaction action = {};
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART;  // no call of the trainer shall fail because of the signal
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &old_term);
  sigaction(SIGUSR1, &action, &old_usr1);
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(handlers_mutex);
  if (--num_alive > 0) return;
  sigaction(SIGTERM, &old_term, nullptr);
  sigaction(SIGUSR1, &old_usr1, nullptr);
}

std::optional<std::chrono::steady_clock::time_point> StopSignal::received() const {
  const int64_t ns = received_ns;
  if (ns == 0) return std::nullopt;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace varve::internal
