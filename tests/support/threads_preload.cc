// SPDX-License-Identifier: Apache-2.0
//
// Few threads for any program, by LD_PRELOAD. Once a process has started $VARVE_MOST_THREADS
// threads, pthread_create fails with EAGAIN, as it does at the limit of a user or of a container.
// RLIMIT_NPROC would not do, because it does not hold for root.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

bool MayStart() {
  static std::atomic<long> num_started = 0;
  const char* const limit = std::getenv("VARVE_MOST_THREADS");
  return limit == nullptr || num_started.fetch_add(1) < std::strtol(limit, nullptr, 10);
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using Create = decltype(&pthread_create);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return MayStart() ? create(thread, attributes, run, argument) : EAGAIN;
}
