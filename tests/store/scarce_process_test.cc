// SPDX-License-Identifier: Apache-2.0
//
// Processes that get little memory, or few threads: every call of the public interface returns,
// with an error or without. None throws, and the store stays whole. Each process is a child of its
// own, because the libraries below keep what an exception has cut short.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <functional>
#include <iterator>

#include "store/db/rocksdb_options.h"
#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace {

std::atomic<int> threads_left = INT_MAX;  // that may be started

}  // namespace

// Every thread of this program comes by here.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) <= 0) {
    ++threads_left;
    return EAGAIN;
  }
  return create(thread, attributes, run, argument);
}

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr StoreOptions kFourThreads{.num_threads = 4};
constexpr uint64_t kSteps = 12;  // so many that merges are due
constexpr unsigned kHangSeconds = 120;

// Runs `work` in a child. Returns how the child ended: its exit code, or minus the signal.
int InChild(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kHangSeconds);
    ::_exit(work());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

class ScarceProcessTest : public ::testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "store"; }

  static Status Save(Store* store, uint64_t step) {
    std::vector<TestTensor> tensors;  // until the commit
    for (uint64_t i = 0; i < 4; ++i) {
      tensors.push_back(NormalTensor("t" + std::to_string(i), {300, 500}, 10 * step + i));
    }
    VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    VARVE_RETURN_IF_ERROR(writer->PutBytes("item", std::as_bytes(std::span("bytes", 5))));
    return writer->Commit().status();
  }

  static Status Read(const Store& store, uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", step));
    VARVE_ASSIGN_OR_RETURN(const auto infos, reader->List());
    std::vector<std::vector<std::byte>> buffers;
    std::vector<ReadRequest> requests;
    for (const TensorInfo& info : infos) {
      buffers.emplace_back(info.logical_bytes);
      requests.push_back(ReadRequest::Tensor(info.name, buffers.back()));
    }
    VARVE_RETURN_IF_ERROR(reader->ReadMany(requests));
    return reader->ReadBytes("item").status();
  }

  // All that a program does with a store. The calls go on after errors. The first writer may be
  // that of the store, or of one that is created.
  int UseStore(uint64_t step, bool creates) const {
    try {
      const fs::path made = folder_.path() / ("made " + std::to_string(step));
      if (creates) Store::Create(made, {.store = kFourThreads}).status().IgnoreError();
      if (const auto reader = Store::OpenForReading(path(), kFourThreads); reader.ok()) {
        (*reader)->ListCheckpoints("main").status().IgnoreError();
        (*reader)->Stats().status().IgnoreError();
        (*reader)->Check({.read_data = true}).status().IgnoreError();
        Read(**reader, 1).IgnoreError();
        (*reader)->Diff({"main", 1}, {"main", 2}).status().IgnoreError();
        (*reader)->Log("main", "t1").status().IgnoreError();
      }
      const auto store = Store::Open(path(), kFourThreads);
      if (!store.ok()) {
        threads_left = INT_MAX;
        const auto again = Store::Open(path(), kFourThreads);
        if (!again.ok()) std::fprintf(stderr, "%s\n", again.status().ToString().c_str());
        return again.ok() && Save(again->get(), step).ok() ? 0 : 3;
      }
      Save(store->get(), step).IgnoreError();
      Read(**store, 2).IgnoreError();
      (*store)->SetTag({"main", 1}, "tag").IgnoreError();
      (*store)->Fork("main", "fork " + std::to_string(step)).status().IgnoreError();
      const CheckpointId id{"main", step};
      (*store)->ForecastDrop({&id, 1}).status().IgnoreError();
      (*store)->Drop({&id, 1}).status().IgnoreError();
      (*store)->Reclaim({.all = true}).status().IgnoreError();
      (*store)->Check().status().IgnoreError();
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
      return 2;
    }
  }

  // From here on RocksDB merges no tables. The next open begins with those that are due.
  static bool HoldMerges(Store* store) {
    Database* const database = static_cast<StoreImpl*>(store)->database();
    for (int i = 0; i < kNumFamilies; ++i) {
      auto* const family = database->handle(static_cast<Family>(i));
      const std::string key = "disable_auto_compactions";
      if (!database->rocksdb()->SetOptions(family, {{key, "true"}}).ok()) return false;
    }
    return true;
  }

  void Make() {
    ASSERT_EQ(InChild([&] {
                const auto store = Store::Create(path(), {.store = kFourThreads});
                if (!store.ok() || !HoldMerges(store->get())) return 1;
                for (uint64_t step = 1; step <= kSteps; ++step) {
                  if (!Save(store->get(), step).ok()) return 1;
                }
                return 0;
              }),
              0);
  }

  void ExpectWhole() {
    EXPECT_EQ(InChild([&] {
                const auto store = Store::Open(path(), kFourThreads);
                if (!store.ok()) return 1;
                const auto report = (*store)->Check({.read_data = true});
                if (!report.ok() || !report->errors.empty()) return 2;
                for (uint64_t step = 1; step <= kSteps; ++step) {
                  if (!Read(**store, step).ok()) return 3;
                }
                return Save(store->get(), 1000).ok() ? 0 : 4;
              }),
              0);
  }

  TempFolder folder_;
};

// RocksDB merges tables as soon as it has opened a store, whether or not it gets its last thread.
// Once there are enough threads, the same process opens the store.
TEST_F(ScarceProcessTest, FewThreadsAreAnErrorAndNoException) {
  Make();
  const fs::path made = folder_.path() / "made";
  fs::rename(path(), made);
  for (int threads = 0; threads <= 24; ++threads) {
    for (const bool creates : {true, false}) {
      fs::copy(made, path(), fs::copy_options::recursive);
      EXPECT_EQ(InChild([&] {
                  threads_left = threads;
                  return UseStore(100 + static_cast<uint64_t>(threads), creates);
                }),
                0)
          << threads << " threads, creates: " << creates;
      ExpectWhole();
      fs::remove_all(path());
    }
  }
}

// RocksDB remembers how many threads its pools should have, not which it got. It would look for the
// others when a merge is due, with its mutex held.
TEST_F(ScarceProcessTest, AThreadThatAPoolDidNotGetIsMissedBeforeTheNextOpen) {
  Make();
  EXPECT_EQ(InChild([&] {
              threads_left = 1;
              if (Store::Create(folder_.path() / "other", {.store = kFourThreads}).ok()) return 1;
              threads_left = 2;
              if (Store::Open(path(), kFourThreads).ok()) return 2;
              threads_left = INT_MAX;
              const auto store = Store::Open(path(), kFourThreads);
              return store.ok() && Save(store->get(), 100).ok() ? 0 : 3;
            }),
            0);
  ExpectWhole();
}

// RocksDB opens the tables of a large store by threads of its own, and aborts if it gets only some.
TEST_F(ScarceProcessTest, NoMoreThreadsOpenTablesThanCanBeStarted) {
  EXPECT_EQ(InChild([] {
              threads_left = 3;
              const int few = MakeDbOptions(100'000).max_file_opening_threads;
              threads_left = INT_MAX;
              const int all = MakeDbOptions(100'000).max_file_opening_threads;
              return few == 4 && all == 16 ? 0 : 1;
            }),
            0);
}

// A backup has all tables of the copy open at once. What it cannot open is no damage.
TEST_F(ScarceProcessTest, FewDescriptorsForABackupAreNamed) {
  Make();
  EXPECT_EQ(InChild([&] {
              const auto open = std::distance(fs::directory_iterator("/proc/self/fd"), {});
              const auto few = static_cast<rlim_t>(open + 12);
              const struct rlimit limit { few, few };
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              const Status status = BackUp(path(), folder_.path() / "copy").status();
              std::fprintf(stderr, "%s\n", status.ToString().c_str());
              const auto says = [&](const char* text) {
                return status.message().find(text) != std::string::npos;
              };
              if (status.code() != StatusCode::kIOError) return 2;
              return says("descriptors") && says("ulimit") && !says("damaged") ? 0 : 3;
            }),
            0);
  EXPECT_EQ(InChild([&] { return BackUp(path(), folder_.path() / "copy").ok() ? 0 : 1; }), 0);
  ExpectWhole();
}

}  // namespace
}  // namespace varve::internal::testing
