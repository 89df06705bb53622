// SPDX-License-Identifier: Apache-2.0
//
// soak STORE STEPS [SECONDS [STEPS_A_MANIFEST]]: saves so many steps as fast as it can, or for so
// many seconds (0 = no limit) if that is shorter. Opens the store anew after so many steps, so that
// a short run has several manifests. It drops all but the newest 50, reclaims every 50 steps, and
// asks for the newest step, while a reader that stays open follows. Prints a line every 50 steps,
// where as many steps are live as at any other line:
//
//   STEP DISK_BYTES RSS_BYTES DESCRIPTORS SAVE_MS QUERY_MS MANIFEST REFERENCE_MS
//
// RSS and descriptors are means over the steps since the line before, and times are medians. A
// query opens the store for reading, finds the newest step and reads its smallest tensors. The
// reference is work of about the same kinds without varve, so it is slow when the machine is.
// MANIFEST
// is the number of the manifest. It grows with each commit until RocksDB writes a new one, and much
// that is measured follows its length. Exits 1 with a message when anything fails.
//
// With $VARVE_SOAK_LEAK, a list of what shall grow with the steps (disk, memory, descriptors), the
// program makes these grow. A judge of its lines must see that.
//
// soak --reader STORE: a reader in a process of its own. It reads the newest step through a handle
// that stays open, and opens another one for each read, until its input ends. Prints a line when
// the manifest is another one
//
//   READS 0 RSS_BYTES DESCRIPTORS 0 QUERY_MS MANIFEST REFERENCE_MS
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/util.h"
#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr ContentPlan kPlan{
    .seed = 51, .num_tensors = 7, .max_tensor_bytes = uint64_t{64} << 10, .period = 2};
constexpr size_t kKeep = 50, kDropAtOnce = 10;
constexpr uint64_t kQueryEvery = 5, kReclaimEvery = 50;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double TakeMedian(std::vector<double>* values) {
  if (values->empty()) return 0;
  std::nth_element(values->begin(), values->begin() + static_cast<int64_t>(values->size() / 2),
                   values->end());
  const double median = (*values)[values->size() / 2];
  values->clear();
  return median;
}

uint64_t DiskBytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    const uint64_t size = entry.is_regular_file(ignored) ? entry.file_size(ignored) : 0;
    if (size != static_cast<uint64_t>(-1)) bytes += size;
  }
  return bytes;
}

uint64_t ResidentBytes() {
  uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t NumDescriptors() {
  uint64_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) count += !entry.path().empty();
  return count;
}

Status ReadNewest(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const auto latest, store.LatestStep("main"));
  if (!latest.has_value()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", *latest));
  VARVE_ASSIGN_OR_RETURN(const auto tensors, reader->List());
  for (const TensorInfo& tensor : tensors) {
    if (tensor.logical_bytes > 4096) continue;
    std::vector<std::byte> out(tensor.logical_bytes);
    VARVE_RETURN_IF_ERROR(reader->Read(tensor.name, out));
  }
  return Status::Ok();
}

// A step may be dropped while it is read.
Status IgnoreGone(const Status& status) {
  return status.code() == StatusCode::kNotFound ? Status::Ok() : status;
}

// The number of the manifest that CURRENT names.
uint64_t ManifestNumber(const fs::path& store) {
  std::string name;
  std::ifstream(store / "db" / "CURRENT") >> name;
  return std::strtoull(name.substr(name.find('-') + 1).c_str(), nullptr, 10);
}

// What is measured until a line says it.
class Line {
 public:
  void Look() {
    resident_bytes_ += ResidentBytes();
    descriptors_ += NumDescriptors();
    ++num_looks_;
  }
  void Print(uint64_t number, uint64_t disk_bytes, uint64_t manifest) {
    const auto looks = static_cast<double>(num_looks_);
    std::printf(
        "%llu %llu %.0f %.2f %.3f %.3f %llu %.3f\n", static_cast<unsigned long long>(number),
        static_cast<unsigned long long>(disk_bytes), static_cast<double>(resident_bytes_) / looks,
        static_cast<double>(descriptors_) / looks, TakeMedian(&save_ms), TakeMedian(&query_ms),
        static_cast<unsigned long long>(manifest), TakeMedian(&reference_ms));
    std::fflush(stdout);
    *this = {};
  }

  std::vector<double> save_ms, query_ms, reference_ms;

 private:
  uint64_t resident_bytes_ = 0, descriptors_ = 0, num_looks_ = 0;
};

// Work without varve: small files are written, synced, read and hashed, beside the store.
class Reference {
 public:
  explicit Reference(const fs::path& store) : folder_(store.string() + "~reference") {
    fs::create_directory(folder_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  // Returns how many milliseconds it took.
  Result<double> Work() {
    const auto start = Clock::now();
    for (int i = 0; i < 8; ++i) {
      const fs::path file = folder_ / std::to_string(i);
      VARVE_RETURN_IF_ERROR(WriteFileAtomically(file, block_));
      VARVE_ASSIGN_OR_RETURN(const std::string read, ReadSmallFile(file, block_.size()));
      for (int pass = 0; pass < 8; ++pass) block_[0] ^= static_cast<char>(Hash(read) & 1);
    }
    return MillisecondsSince(start);
  }

 private:
  static uint64_t Hash(std::string_view bytes) { return ComputeDigest(0, AsBytes(bytes)).lo; }

  const fs::path folder_;
  std::string block_ = std::string(size_t{64} << 10, 'x');
};

// Mistakes that are made on purpose.
class Leaks {
 public:
  Leaks() {
    const char* const wanted = std::getenv("VARVE_SOAK_LEAK");
    if (wanted != nullptr) wanted_ = wanted;
  }
  // True: the step shall stay.
  bool KeepsStep(uint64_t step) const { return Wants("disk") && step % 2 == 0; }
  void AfterStep() {
    if (Wants("memory")) memory_.emplace_back(256 << 10, 'x');
    if (Wants("descriptors") && ++steps_ % 3 == 0) ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }

 private:
  bool Wants(std::string_view what) const { return wanted_.find(what) != std::string::npos; }

  std::string wanted_;
  std::vector<std::string> memory_;
  uint64_t steps_ = 0;
};

Status ReadUntilInputEnds(const fs::path& path) {
  VARVE_ASSIGN_OR_RETURN(const auto follower, Store::OpenForReading(path));
  std::atomic<bool> done{false};
  std::jthread input([&] {
    while (std::getchar() != EOF) {
    }
    done = true;
  });
  Line line;
  Reference reference(path.string() + "~reader" + std::to_string(::getpid()));
  uint64_t manifest = ManifestNumber(path);
  for (uint64_t reads = 0; !done; ++reads) {
    VARVE_RETURN_IF_ERROR(IgnoreGone(ReadNewest(*follower)));
    const auto asked = Clock::now();
    {
      VARVE_ASSIGN_OR_RETURN(const auto reader, Store::OpenForReading(path));
      VARVE_RETURN_IF_ERROR(IgnoreGone(ReadNewest(*reader)));
    }
    line.query_ms.push_back(MillisecondsSince(asked));
    VARVE_ASSIGN_OR_RETURN(const double reference_ms, reference.Work());
    line.reference_ms.push_back(reference_ms);
    line.Look();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t next = ManifestNumber(path);
    if (next == manifest && !done) continue;
    line.Print(reads, 0, manifest);
    manifest = next;
  }
  return Status::Ok();
}

Status Soak(const fs::path& path, uint64_t num_steps, double seconds, uint64_t steps_a_manifest) {
  VARVE_ASSIGN_OR_RETURN(auto store, Store::OpenOrCreate(path));
  VARVE_ASSIGN_OR_RETURN(const auto follower, Store::OpenForReading(path));
  std::atomic<bool> done{false};
  Status followed;
  std::jthread follow([&] {
    while (!done && followed.ok()) {
      followed = IgnoreGone(ReadNewest(*follower));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  std::deque<uint64_t> live;
  Line line;
  Reference reference(path);
  const auto began = Clock::now();
  Leaks leaks;
  const Status status = [&]() -> Status {
    for (uint64_t step = 1; step <= num_steps; ++step) {
      if (seconds > 0 && MillisecondsSince(began) > 1000 * seconds) break;
      if (steps_a_manifest > 0 && step > 1 && (step - 1) % steps_a_manifest == 0) {
        store.reset();
        VARVE_ASSIGN_OR_RETURN(store, Store::Open(path));
      }
      const auto start = Clock::now();
      VARVE_RETURN_IF_ERROR(SaveContent(store.get(), kPlan, step, step).status());
      line.save_ms.push_back(MillisecondsSince(start));
      if (!leaks.KeepsStep(step)) live.push_back(step);
      leaks.AfterStep();
      if (live.size() >= kKeep + kDropAtOnce) {
        std::vector<CheckpointId> ids;
        for (; live.size() > kKeep; live.pop_front()) ids.push_back({"main", live.front()});
        VARVE_RETURN_IF_ERROR(store->Drop(ids).status());
      }
      if (step % kQueryEvery == 0) {
        const auto asked = Clock::now();
        VARVE_ASSIGN_OR_RETURN(const auto reader, Store::OpenForReading(path));
        VARVE_RETURN_IF_ERROR(IgnoreGone(ReadNewest(*reader)));
        line.query_ms.push_back(MillisecondsSince(asked));
        VARVE_ASSIGN_OR_RETURN(const double reference_ms, reference.Work());
        line.reference_ms.push_back(reference_ms);
      }
      line.Look();
      if (step % kReclaimEvery != 0) continue;
      VARVE_RETURN_IF_ERROR(store->Reclaim({.all = true}).status());
      line.Print(step, DiskBytes(path), ManifestNumber(path));
    }
    return Status::Ok();
  }();
  done = true;
  follow.join();
  return status.ok() ? followed : status;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) {
  using varve::internal::testing::ReadUntilInputEnds;
  using varve::internal::testing::Soak;
  const bool is_reader = argc == 3 && std::string_view(argv[1]) == "--reader";
  if (!is_reader && (argc < 3 || argc > 5)) return 2;
  const varve::Status status = is_reader ? ReadUntilInputEnds(argv[2])
                                         : Soak(argv[1], std::strtoull(argv[2], nullptr, 10),
                                                argc > 3 ? std::strtod(argv[3], nullptr) : 0,
                                                argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "soak: %s\n", status.ToString().c_str());
  return 1;
}
