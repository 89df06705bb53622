// SPDX-License-Identifier: Apache-2.0
//
// How long a trainer's commit takes during a reclaim of its store. The trainer saves next to
// nothing, so a commit is short unless it waits. Half of the bytes of its store are dead, in files
// whose other half lives, so that there is work. The syncs of a commit are timed beside
// each commit, for information: they say how busy the disk was for any program.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/fair_mutex.h"
#include "bench/measure.h"
#include "bench/scale/axes.h"
#include "bench/scale/tiny_state.h"
#include "bench/state.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr uint64_t kStepMiB = 16;  // a step. Half of it dies
constexpr uint64_t kMiBytes = uint64_t{1} << 20;

constexpr int kLocked = 11;  // exit code of the command

struct Old {
  std::vector<std::byte> dies, lives;
};

// Run "old" has steps of two tensors. The second is in run "kept", too. The trainer is "main".
void Fill(Store* store, uint64_t mib) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(kStepMiB * kMiBytes / 8)};
  Old old{std::vector<std::byte>(kStepMiB * kMiBytes / 2),
          std::vector<std::byte>(kStepMiB * kMiBytes / 2)};
  for (uint64_t step = 0; step < std::max<uint64_t>(2, mib / kStepMiB); ++step) {
    FillNoise(Mix(1, step), old.dies);
    FillNoise(Mix(2, step), old.lives);
    for (const char* run : {"old", "kept"}) {
      const auto writer = Must(store->Begin(step, {.run = run}));
      if (run == std::string("old")) {
        Require(writer->Put({.name = "dies", .shape = shape, .data = old.dies.data()}));
      }
      Require(writer->Put({.name = "lives", .shape = shape, .data = old.lives.data()}));
      Must(writer->Commit());
    }
  }
}

void DropOld(Store* store, bool reclaim) {
  std::vector<CheckpointId> ids;
  for (const CheckpointInfo& info : Must(store->ListCheckpoints("old"))) ids.push_back(info.id);
  ids.pop_back();
  Must(store->Drop(ids, {.reclaim = reclaim}));
}

void Work(const Plan& plan, Beside beside, const std::string& path, Store* store) {
  switch (beside) {
    case Beside::kNothing:
      break;
    case Beside::kForget:
      RunProgram({plan.varve, "-s", path, "forget", "--run", "old", "--keep-last", "1"});
      break;
    case Beside::kReclaim:
      // It needs the lock, which the trainer has.
      RunProgram({plan.varve, "-s", path, "reclaim", "--all"}, kLocked);
      break;
    case Beside::kCheck:
      RunProgram({plan.varve, "-s", path, "check", "--read-data"});
      break;
    case Beside::kOwnForget:
      DropOld(store, true);
      break;
    case Beside::kOwnReclaim:
      Must(store->Reclaim({.all = true}));
      break;
    case Beside::kOwnCheck:
      Must(store->Check({.read_data = true}));
      break;
  }
}

// The syncs that a commit waits for one after the other, of files of its own: of new files, of the
// folder, and of a file that grows, as the manifest does.
class DiskProbe {
 public:
  explicit DiskProbe(std::filesystem::path folder)
      : folder_(std::move(folder)), log_(Create("log")) {
    folder_fd_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd_ < 0) Fail("cannot open " + folder_.string());
  }
  DiskProbe(const DiskProbe&) = delete;
  DiskProbe& operator=(const DiskProbe&) = delete;
  ~DiskProbe() {
    ::close(log_);
    ::close(folder_fd_);
  }

  double Time() {
    return Seconds([&] {
      const int fd = Create("probe" + std::to_string(num_files_++));
      WriteAndSync(fd);
      ::close(fd);
      if (::fsync(folder_fd_) != 0) Fail("cannot sync " + folder_.string());
      WriteAndSync(log_);
    });
  }

 private:
  int Create(const std::string& name) const {
    std::filesystem::create_directories(folder_);
    const int fd =
        ::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) Fail("cannot make a file in " + folder_.string());
    return fd;
  }
  static void WriteAndSync(int fd) {
    const std::array<char, 4096> bytes{};
    if (::write(fd, bytes.data(), bytes.size()) != std::ssize(bytes) || ::fdatasync(fd) != 0) {
      Fail("cannot write beside the store");
    }
  }

  const std::filesystem::path folder_;
  const int log_;
  int folder_fd_ = -1;
  int num_files_ = 0;
};

}  // namespace

const char* NameOf(Beside beside) {
  constexpr const char* kNames[] = {"nothing",
                                    "varve forget",
                                    "varve reclaim --all",
                                    "varve check --read-data",
                                    "Drop, of its own",
                                    "Reclaim of all, of its own",
                                    "Check of data, of its own"};
  return kNames[static_cast<int>(beside)];
}

std::vector<SaveTime> MeasureWaits(const Plan& plan, Beside beside, uint64_t mib, double interval,
                                   int num_saves) {
  Workplace place(plan.folder);
  const auto path = place.NewPath("waits");
  const auto store = Must(Store::Create(path));
  Fill(store.get(), mib);
  if (beside == Beside::kReclaim || beside == Beside::kOwnReclaim) DropOld(store.get(), false);
  DiskProbe probe(place.NewPath("probe"));
  place.Settle();

  std::atomic<bool> is_done{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * interval));
    Work(plan, beside, path, store.get());
    is_done = true;
  });
  TinyState state(64, 3);
  std::vector<SaveTime> times;
  for (uint64_t step = 1; !is_done || times.size() < static_cast<size_t>(num_saves); ++step) {
    state.Change(step, step % 8, 8);
    const double disk_before = probe.Time();
    const auto waited_before = FairMutex::waited_by_this_thread();
    const double seconds = Seconds([&] { state.Save(store.get(), step); });
    const std::chrono::duration<double> waited = FairMutex::waited_by_this_thread() - waited_before;
    times.push_back({seconds, waited.count(), std::max(disk_before, probe.Time())});
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
  other.join();
  return times;
}

}  // namespace varve::internal::bench
