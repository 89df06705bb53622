// SPDX-License-Identifier: Apache-2.0
//
// Saves and stores for which there is no memory, or no thread: an error, and the next one is whole.
#include <dlfcn.h>
#include <pthread.h>
#include <zstd.h>

#include <atomic>
#include <cerrno>

#include "tests/store/store_fixture.h"
#include "tests/support/scarce_memory.h"

namespace {

std::atomic<int> threads_left = INT_MAX;  // that may be started
std::atomic<bool> zstd_gets_memory = true;

// The function that this program hides.
template <class Function>
Function* Hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Every std::thread of this program comes by here.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  static const auto create = Hidden<decltype(pthread_create)>("pthread_create");
  if (threads_left.fetch_sub(1) <= 0) {
    ++threads_left;
    return EAGAIN;
  }
  return create(thread, attributes, run, argument);
}

// zstd takes its memory by malloc, which no test replaces.
extern "C" ZSTD_CCtx* ZSTD_createCCtx() {
  static const auto create = Hidden<decltype(ZSTD_createCCtx)>("ZSTD_createCCtx");
  return zstd_gets_memory ? create() : nullptr;
}
extern "C" ZSTD_DCtx* ZSTD_createDCtx() {
  static const auto create = Hidden<decltype(ZSTD_createDCtx)>("ZSTD_createDCtx");
  return zstd_gets_memory ? create() : nullptr;
}

namespace varve::internal::testing {
namespace {

class NoMemoryTest : public StoreTest {
 protected:
  // Its columns lie one behind the other, so each chunk of 1 MiB is gathered.
  Result<SaveReport> SaveGathered(uint64_t step) {
    const std::vector<int64_t> shape = {900, 1000}, strides = {1, 900};
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(step));
    VARVE_RETURN_IF_ERROR(writer->Put({.name = "w",
                                       .dtype = DType::kF32,
                                       .shape = shape,
                                       .data = values_.data(),
                                       .strides = strides}));
    return writer->Commit();
  }
  Result<SaveReport> SaveItems(uint64_t step, size_t num_items, size_t num_values) {
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(step));
    for (size_t i = 0; i < num_items; ++i) {
      const auto values = std::span(values_).subspan(i * num_values, num_values);
      VARVE_RETURN_IF_ERROR(writer->PutBytes("item" + std::to_string(i), std::as_bytes(values)));
    }
    const ScarceMemory memory(512 << 10);
    return writer->Commit();
  }

  std::vector<float> values_ = [] {
    std::vector<float> values(size_t{900} * 1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    return values;
  }();
};

TEST_F(NoMemoryTest, ToGatherAChunk) {
  {
    const ScarceMemory memory(512 << 10);
    EXPECT_THAT(SaveGathered(1), FailsWith(StatusCode::kUnavailable, "committing: std::bad_alloc"));
  }
  VARVE_ASSERT_OK(SaveGathered(2).status());
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 1u);
}

TEST_F(NoMemoryTest, ToWriteARecord) {
  EXPECT_THAT(SaveItems(1, 1, 900000),  // in the caller's thread, which copies it
              FailsWith(StatusCode::kUnavailable, "committing: std::bad_alloc"));
  EXPECT_THAT(SaveItems(1, 15, 60000),  // in that which writes the table
              FailsWith(StatusCode::kUnavailable, "writing a commit: std::bad_alloc"));
  VARVE_ASSERT_OK(SaveGathered(2).status());
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 1u);
}

TEST_F(NoMemoryTest, ForZstd) {
  VARVE_ASSERT_OK(SaveGathered(1).status());
  store_.reset();  // with the contexts that it has made
  store_ = *Store::Open(path());
  std::vector<std::byte> read(values_.size() * sizeof(float));
  const auto reader = *store_->OpenCheckpoint("main", 1);
  zstd_gets_memory = false;
  const Status refused_read = reader->Read("w", read);
  const Status refused_save = SaveGathered(2).status();
  zstd_gets_memory = true;
  EXPECT_THAT(refused_read, FailsWith(StatusCode::kUnavailable, "std::bad_alloc"));
  EXPECT_THAT(refused_save, FailsWith(StatusCode::kUnavailable, "std::bad_alloc"));
  VARVE_ASSERT_OK(reader->Read("w", read));
  VARVE_ASSERT_OK(SaveGathered(2).status());
}

TEST_F(NoMemoryTest, NoThreadForACommit) {
  VARVE_ASSERT_OK(SaveGathered(1).status());  // what libraries keep has its threads by now
  threads_left = 0;
  const auto saved = SaveGathered(2);
  threads_left = INT_MAX;
  VARVE_ASSERT_OK(saved.status());
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 2u);
}

TEST_F(NoMemoryTest, NoThreadForAStore) {
  VARVE_ASSERT_OK(SaveGathered(1).status());
  store_.reset();
  for (const bool for_writing : {true, false}) {
    threads_left = 0;
    const Status refused =
        for_writing ? Store::Open(path()).status() : Store::OpenForReading(path()).status();
    threads_left = INT_MAX;
    EXPECT_THAT(refused, FailsWith(StatusCode::kUnavailable, "starting a thread for the store"));
  }
}

}  // namespace
}  // namespace varve::internal::testing
