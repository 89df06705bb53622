// SPDX-License-Identifier: Apache-2.0
//
// The n-th allocation of a call fails, or all from the n-th on. The call returns, with an error or
// without. The next process finds every step whole and can save. Each call runs in a child of its
// own, because the libraries below keep what an exception has cut short.
//
// RocksDB, and std::filesystem of libstdc++, end the process where an allocation fails and they do
// not expect it (docs/durability.md). These ends are counted apart. VARVE_FULL_SIZE=1 takes more of
// the numbers.
#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/store/store_fixture.h"
#include "tests/support/scarce_memory.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr StoreOptions kTwoThreads{.num_threads = 2};
constexpr int kDone = 0, kNotStruck = 1, kThrown = 2, kEndedByLibrary = 3, kAborted = 4, kLied = 5;
constexpr unsigned kHangSeconds = 120;

// Says whose code was at work when the process could not go on.
[[noreturn]] void OnAbort(int) {
  void* frames[64];
  const int count = ::backtrace(frames, 64);
  char** const names = ::backtrace_symbols(frames, count);
  for (int i = 0; names != nullptr && i < count; ++i) {
    const std::string_view name = names[i];
    for (const std::string_view library : {"librocksdb", "10filesystem"}) {
      if (name.find(library) != std::string_view::npos) ::_exit(kEndedByLibrary);
    }
  }
  ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
  ::_exit(kAborted);
}

// Runs `work` in a child. Returns its exit code, or minus the signal that ended it.
int InChild(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGABRT, OnAbort);
    ::alarm(kHangSeconds);
    ::_exit(work());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<TestTensor> Content(uint64_t step) {
  std::vector<TestTensor> tensors;
  for (uint64_t i = 0; i < 3; ++i) {
    tensors.push_back(NormalTensor("t" + std::to_string(i), {20, 50}, 10 * (step / 2) + i));
  }
  tensors.push_back(RandomTensor("noise", DType::kU8, {3000}, step));
  return tensors;
}

// What a save puts and what a read fills. It is made before allocations fail.
struct Prepared {
  explicit Prepared(uint64_t step) : tensors(Content(step)) {
    for (const TestTensor& tensor : tensors) {
      views.push_back(tensor.view());
      buffers.emplace_back(tensor.bytes.size());
    }
  }
  std::vector<TestTensor> tensors;
  std::vector<TensorView> views;
  std::vector<std::vector<std::byte>> buffers;
};

Status Save(Store* store, uint64_t step, const Prepared& prepared) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
  for (const TensorView& view : prepared.views) VARVE_RETURN_IF_ERROR(writer->Put(view));
  VARVE_RETURN_IF_ERROR(writer->PutBytes("item", std::as_bytes(std::span("bytes", 5))));
  return writer->Commit().status();
}
Status Save(Store* store, uint64_t step) { return Save(store, step, Prepared(step)); }

// kCorruption: it has read something else.
Status Read(const Store& store, uint64_t step, Prepared* prepared) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", step));
  VARVE_ASSIGN_OR_RETURN(const auto infos, reader->List());
  if (infos.size() != prepared->tensors.size()) return Status::Corruption("other tensors");
  for (size_t i = 0; i < infos.size(); ++i) {
    VARVE_RETURN_IF_ERROR(reader->Read(prepared->tensors[i].name, prepared->buffers[i]));
    if (prepared->buffers[i] != prepared->tensors[i].bytes) return Status::Corruption("other");
  }
  return reader->ReadBytes("item").status();
}

class FailingAllocationsTest : public ::testing::Test {
 protected:
  using Threads = FailingAllocations::Threads;
  using Call = std::function<Status(const fs::path&, Store*)>;

  void SetUp() override {
    ASSERT_EQ(InChild([&] {
                const auto store = Store::Create(template_, {.store = kTwoThreads});
                if (!store.ok()) return 1;
                for (const uint64_t step : {1, 2, 3}) {
                  if (!Save(store->get(), step).ok()) return 1;
                }
                return 0;
              }),
              0);
    fs::remove(template_ / "RESERVE");  // which takes long to copy
  }

  // The call with this failure. A store is open for it, or none.
  int Strike(const Call& call, bool with_store, uint64_t first, uint64_t count,
             Threads threads) const {
    std::unique_ptr<Store> store;
    if (with_store) {
      auto opened = Store::Open(path_, kTwoThreads);
      if (!opened.ok()) return kAborted;
      store = *std::move(opened);
    }
    bool has_struck = false;
    try {
      const FailingAllocations failing(first, count, threads);
      const Status status = call(path_, store.get());
      has_struck = failing.has_struck();
      if (status.code() == StatusCode::kCorruption) return kLied;
    } catch (const std::exception&) {
      return kThrown;
    }
    store.release();  // NOLINT(bugprone-unused-return-value): as if the process were killed
    return has_struck ? kDone : kNotStruck;
  }

  int Judge(bool is_step_1_kept) const {
    const auto store = Store::Open(path_, kTwoThreads);
    if (!store.ok()) return 1;
    const auto report = (*store)->Check({.read_data = true});
    if (!report.ok() || !report->errors.empty()) return 2;
    for (const uint64_t step : {1, 2, 3}) {
      Prepared prepared(step);
      const Status status = Read(**store, step, &prepared);
      const bool is_gone = status.code() == StatusCode::kNotFound;
      if (!status.ok() && !(is_gone && step == 1 && !is_step_1_kept)) return 3;
    }
    const Status saved = Save(store->get(), 100);
    return saved.ok() || saved.code() == StatusCode::kAlreadyExists ? 0 : 4;
  }

  // The threads that a call starts make fewer allocations. More of them are taken.
  void Sweep(const Call& call, bool with_store, bool keeps_step_1 = true,
             Threads threads = Threads::kAll) {
    const bool is_full = std::getenv("VARVE_FULL_SIZE") != nullptr;
    int struck = 0, by_library = 0;
    for (const uint64_t count : {uint64_t{1}, uint64_t{1} << 40}) {
      uint64_t first = 0;
      for (int round = 0;; ++round) {
        fs::remove_all(path_);
        fs::copy(template_, path_, fs::copy_options::recursive);
        const int end = InChild([&] { return Strike(call, with_store, first, count, threads); });
        SCOPED_TRACE("allocation " + std::to_string(first) + ", " + std::to_string(count));
        if (end == kNotStruck) break;
        ++struck;
        by_library += end == kEndedByLibrary;
        ASSERT_TRUE(end == kDone || end == kEndedByLibrary) << end;
        ASSERT_EQ(InChild([&] { return Judge(keeps_step_1); }), 0);
        const uint64_t part = is_full ? 100 : threads == Threads::kNew ? 30 : 5;
        first += 1 + first / part;
      }
    }
    std::fprintf(stderr, "%d failures, of which %d ended the process in a library\n", struck,
                 by_library);
    EXPECT_GE(struck, 20);
    EXPECT_LT(by_library, struck);
  }

  TempFolder folder_;
  const fs::path template_ = folder_.path() / "template";
  const fs::path path_ = folder_.path() / "store";
};

TEST_F(FailingAllocationsTest, OpenForReading) {
  Sweep([](const fs::path& path,
           Store*) { return Store::OpenForReading(path, kTwoThreads).status(); },
        false);
}

TEST_F(FailingAllocationsTest, OpenForWriting) {
  Sweep([](const fs::path& path, Store*) { return Store::Open(path, kTwoThreads).status(); },
        false);
}

TEST_F(FailingAllocationsTest, Save) {
  const Prepared prepared(100);
  Sweep([&](const fs::path&, Store* store) { return Save(store, 100, prepared); }, true);
}

TEST_F(FailingAllocationsTest, SaveOnNewThreads) {
  const Prepared prepared(100);
  Sweep([&](const fs::path&, Store* store) { return Save(store, 100, prepared); }, true, true,
        Threads::kNew);
}

TEST_F(FailingAllocationsTest, Read) {
  Prepared prepared(2);
  Sweep([&](const fs::path&, Store* store) { return Read(*store, 2, &prepared); }, true);
}

TEST_F(FailingAllocationsTest, Drop) {
  Sweep(
      [](const fs::path&, Store* store) {
        const CheckpointId id{"main", 1};
        return store->Drop({&id, 1}).status();
      },
      true, /*keeps_step_1=*/false);
}

TEST_F(FailingAllocationsTest, Check) {
  Sweep(
      [](const fs::path&, Store* store) {
        const auto report = store->Check({.read_data = true});
        VARVE_RETURN_IF_ERROR(report.status());
        // No memory is no damage.
        return report->errors.empty() ? Status::Ok() : Status::Corruption(report->errors.front());
      },
      true);
}

}  // namespace
}  // namespace varve::internal::testing
