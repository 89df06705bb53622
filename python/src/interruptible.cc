// SPDX-License-Identifier: Apache-2.0
#include "python/src/interruptible.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "varve/stop.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

// A call on a thread of its own.
class CallThread {
 public:
  // Throws std::system_error when no thread can start.
  explicit CallThread(const std::function<void()>& call)
      : thread_([this, &call] {
          const StopScope scope(&stop_);
          try {
            call();
          } catch (...) {
            error_ = std::current_exception();
          }
          const std::lock_guard lock(mutex_);
          is_over_ = true;
          over_.notify_one();
        }) {}

  void Stop() { stop_ = true; }
  // Returns whether the call is over. Waits for it for a while.
  bool Wait() {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, kBetweenLooks, [this] { return is_over_; });
  }
  // Returns what the call threw, or null.
  std::exception_ptr Join() {
    thread_.join();
    return error_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::jthread thread_;  // the last member, as it uses the others
};

// Returns what the handler of a signal that has come raised.
std::exception_ptr RunSignalHandlers() {
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return nullptr;
  return std::make_exception_ptr(nb::python_error());
}

}  // namespace

void RunInterruptible(const std::function<void()>& call) {
  if (::gettid() != ::getpid()) return call();  // not the main thread, which hears no signal
  std::optional<CallThread> thread;
  try {
    thread.emplace(call);
  } catch (const std::system_error&) {
    return call();
  }
  std::exception_ptr raised;
  while (!thread->Wait()) {
    if (raised != nullptr) continue;
    raised = RunSignalHandlers();
    if (raised != nullptr) thread->Stop();
  }
  const std::exception_ptr thrown = thread->Join();
  if (raised != nullptr) std::rethrow_exception(raised);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace varve::python
