// SPDX-License-Identifier: Apache-2.0
//
// The n-th allocation of a call fails, or all from the n-th on. The call returns, with an error or
// without, and claims nothing any more. The next process finds every step whole and can save. Each
// call runs in a child of its own, because the libraries below keep what an exception has cut
// short.
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

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"
#include "tests/support/scarce_memory.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr StoreOptions kTwoThreads{.num_threads = 2};
constexpr int kDone = 0, kNotStruck = 1, kThrown = 2, kEndedByLibrary = 3, kAborted = 4, kLied = 5;
constexpr int kClaims = 6;
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

Status DropStep(Store* store, uint64_t step, bool reclaim = true) {
  const CheckpointId id{"main", step};
  return store->Drop({&id, 1}, {.reclaim = reclaim}).status();
}

// What a call has claimed would stop later calls, and a filter would remove later chunks.
bool ClaimsSomething(Store* store) {
  auto* const impl = static_cast<StoreImpl*>(store);
  return !impl->pins()->IsIdleForTest() ||
         impl->database()->dead_chunk_filter()->CreateCompactionFilter({}) != nullptr;
}

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

  struct Case {
    Call call;
    bool with_store = true;  // a store is open for the call
    Call before = nullptr;   // in the same process, with enough memory
    uint64_t dropped = 0;    // a step that may be gone. 0: none
    Threads threads = Threads::kAll;
  };

  // The call with this failure.
  int Strike(const Case& c, uint64_t first, uint64_t count) const {
    std::unique_ptr<Store> store;
    if (c.with_store) {
      auto opened = Store::Open(path_, kTwoThreads);
      if (!opened.ok()) return kAborted;
      store = *std::move(opened);
    }
    bool has_struck = false;
    if (c.before && !c.before(path_, store.get()).ok()) return kAborted;
    try {
      const FailingAllocations failing(first, count, c.threads);
      const Status status = c.call(path_, store.get());
      has_struck = failing.has_struck();
      if (status.code() == StatusCode::kCorruption) return kLied;
    } catch (const std::exception&) {
      return kThrown;
    }
    if (c.with_store && ClaimsSomething(store.get())) return kClaims;
    store.release();  // NOLINT(bugprone-unused-return-value): as if the process were killed
    return has_struck ? kDone : kNotStruck;
  }

  int Judge(uint64_t dropped) const {
    const auto store = Store::Open(path_, kTwoThreads);
    if (!store.ok()) return 1;
    const auto report = (*store)->Check({.read_data = true});
    if (!report.ok() || !report->errors.empty()) return 2;
    for (const uint64_t step : {1, 2, 3}) {
      Prepared prepared(step);
      const Status status = Read(**store, step, &prepared);
      const bool is_gone = status.code() == StatusCode::kNotFound;
      if (!status.ok() && !(is_gone && step == dropped)) return 3;
    }
    const Status saved = Save(store->get(), 100);
    return saved.ok() || saved.code() == StatusCode::kAlreadyExists ? 0 : 4;
  }

  // The threads that a call starts make fewer allocations. More of them are taken.
  void Sweep(const Case& c) {
    const bool is_full = std::getenv("VARVE_FULL_SIZE") != nullptr;
    int struck = 0, by_library = 0;
    for (const uint64_t count : {uint64_t{1}, uint64_t{1} << 40}) {
      uint64_t first = 0;
      for (int round = 0;; ++round) {
        fs::remove_all(path_);
        fs::copy(template_, path_, fs::copy_options::recursive);
        const int end = InChild([&] { return Strike(c, first, count); });
        SCOPED_TRACE("allocation " + std::to_string(first) + ", " + std::to_string(count));
        if (end == kNotStruck) break;
        ++struck;
        by_library += end == kEndedByLibrary;
        ASSERT_TRUE(end == kDone || end == kEndedByLibrary) << end;
        ASSERT_EQ(InChild([&] { return Judge(c.dropped); }), 0);
        const uint64_t part = is_full ? 100 : c.threads == Threads::kNew ? 30 : 5;
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
  Sweep({.call = [](const fs::path& path,
                    Store*) { return Store::OpenForReading(path, kTwoThreads).status(); },
         .with_store = false});
}

TEST_F(FailingAllocationsTest, OpenForWriting) {
  Sweep(
      {.call = [](const fs::path& path, Store*) { return Store::Open(path, kTwoThreads).status(); },
       .with_store = false});
}

TEST_F(FailingAllocationsTest, Save) {
  const Prepared prepared(100);
  Sweep({.call = [&](const fs::path&, Store* store) { return Save(store, 100, prepared); }});
}

TEST_F(FailingAllocationsTest, SaveOnNewThreads) {
  const Prepared prepared(100);
  Sweep({.call = [&](const fs::path&, Store* store) { return Save(store, 100, prepared); },
         .threads = Threads::kNew});
}

TEST_F(FailingAllocationsTest, Read) {
  Prepared prepared(2);
  Sweep({.call = [&](const fs::path&, Store* store) { return Read(*store, 2, &prepared); }});
}

TEST_F(FailingAllocationsTest, Drop) {
  Sweep({.call = [](const fs::path&, Store* store) { return DropStep(store, 1); }, .dropped = 1});
}

// The newest step is the one that the next save is compared with. While it is claimed, that waits.
TEST_F(FailingAllocationsTest, DropOfTheNewest) {
  Sweep({.call = [](const fs::path&, Store* store) { return DropStep(store, 3); }, .dropped = 3});
}

// Step 3 needs some chunks of step 2, so the file of step 2 is rewritten, as the last call shows.
TEST_F(FailingAllocationsTest, Reclaim) {
  Sweep({.call = [](const fs::path&, Store* store) -> Status {
           VARVE_ASSIGN_OR_RETURN(const auto report, store->Reclaim({.all = true}));
           return report.rewritten_bytes > 0 ? Status::Ok() : Status::Corruption("no rewrite");
         },
         .before = [](const fs::path&, Store* store) { return DropStep(store, 2, false); },
         .dropped = 2});
}

TEST_F(FailingAllocationsTest, Check) {
  Sweep({.call = [](const fs::path&, Store* store) {
    const auto report = store->Check({.read_data = true});
    VARVE_RETURN_IF_ERROR(report.status());
    // No memory is no damage.
    return report->errors.empty() ? Status::Ok() : Status::Corruption(report->errors.front());
  }});
}

}  // namespace
}  // namespace varve::internal::testing
