// SPDX-License-Identifier: Apache-2.0
//
// A host that has no more threads for a checkpointer.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

#include "tests/trainer_hooks/test_state.h"
#include "trainer_hooks/save/make_checkpointer.h"

namespace {

// Threads that this thread may still make. Others, as the database's, are not counted.
thread_local int threads_left = INT_MAX;

}  // namespace

// Replaces the C library's function, because this program's own is found first.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left <= 0) return EAGAIN;
  --threads_left;
  return create(thread, attributes, run, argument);
}

namespace varve::internal::testing {
namespace {

class ScarceThreadsTest : public StoreTest {};

TEST_F(ScarceThreadsTest, ACheckpointerWithoutThreadsIsAnErrorAndNoException) {
  TestState state;
  state.Add(NormalTensor("t", {1000}, 1));
  const CheckpointerOptions options{.store = {.num_threads = 3}};  // and the saver
  for (int threads = 0; threads <= 4; ++threads) {
    auto store = std::move(store_);
    threads_left = threads;
    auto made = MakeCheckpointer(std::move(store), path(), options);
    threads_left = INT_MAX;
    if (threads < 4) {
      EXPECT_THAT(made, FailsWith(StatusCode::kUnavailable,
                                  "saves need 4 threads, and only " + std::to_string(threads)));
    } else {
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      VARVE_ASSERT_OK((*made)->Save(1, state.state()).status());
      VARVE_ASSERT_OK((*made)->Close());
      made->reset();
    }
    Reopen();  // nothing holds it
  }
  ExpectHolds(1, state.Snapshot());
}

}  // namespace
}  // namespace varve::internal::testing
