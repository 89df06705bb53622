// SPDX-License-Identifier: Apache-2.0
//
// Thousands of small steps, nearly all of them dropped: the store must be no larger, and in no more
// files, than one that only ever held what is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "tests/support/step_content.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr ContentPlan kPlan{
    .seed = 41, .num_tensors = 7, .max_tensor_bytes = uint64_t{256} << 10, .period = 2};
constexpr uint64_t kLeft = 100;

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// VARVE_FULL_SIZE=1 is set by scripts/must_show.
bool IsFullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

std::unique_ptr<Store> OpenTimed(const fs::path& path, const char* when, double* slowest) {
  const auto start = Clock::now();
  auto store = Store::Open(path);
  const double writing = MillisecondsSince(start);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  const auto start_reading = Clock::now();
  const auto reader = Store::OpenForReading(path);
  const double reading = MillisecondsSince(start_reading);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  std::printf("open %s: %.0f ms for writing, %.0f ms for reading\n", when, writing, reading);
  *slowest = std::max({*slowest, writing, reading});
  return store.ok() ? *std::move(store) : nullptr;
}

void SaveSteps(Store* store, uint64_t begin, uint64_t end) {
  const auto start = Clock::now();
  for (uint64_t step = begin; step < end; ++step) {
    const auto report = SaveContent(store, kPlan, step, step);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }
  std::printf("%.1f ms a save\n", MillisecondsSince(start) / static_cast<double>(end - begin));
}

void DropSteps(Store* store, uint64_t begin, uint64_t end) {
  constexpr uint64_t kAtOnce = 100;
  const auto start = Clock::now();
  for (uint64_t first = begin; first < end; first += kAtOnce) {
    std::vector<CheckpointId> ids;
    for (uint64_t step = first; step < std::min(first + kAtOnce, end); ++step) {
      ids.push_back({"main", step});
    }
    const auto report = store->Drop(ids);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }
  std::printf("%.1f ms a drop\n", MillisecondsSince(start) / static_cast<double>(end - begin));
}

// The reserve is the same in every store and would hide what the steps leave.
uint64_t DiskBytesWithoutReserve(const Store& store, const fs::path& path) {
  const auto stats = store.Stats();
  EXPECT_TRUE(stats.ok()) << stats.status().ToString();
  return stats->disk_bytes - fs::file_size(path / "RESERVE");
}

void ExpectFewFiles(const Store& store, const char* when) {
  const auto stats = store.Stats();
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  std::printf("%s: %llu files, %.1f MiB on disk, %.2f MiB of chunks, %.2f MiB dead\n", when,
              static_cast<unsigned long long>(stats->num_files),
              static_cast<double>(stats->disk_bytes) / (1 << 20),
              static_cast<double>(stats->stored_bytes) / (1 << 20),
              static_cast<double>(stats->pending_bytes) / (1 << 20));
  EXPECT_LE(stats->num_files, (stats->disk_bytes >> 27) + 300) << when;
}

void ExpectSound(const Store& store) {
  const auto check = store.Check({.read_data = true, .progress = {}});
  ASSERT_TRUE(check.ok()) << check.status().ToString();
  EXPECT_TRUE(check->ok()) << check->errors.front();
}

void ExpectWhole(const Store& store, uint64_t step) {
  const auto reader = store.OpenCheckpoint("main", step);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  const Status status = VerifyContent(**reader, kPlan);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(ManyStepsTest, DroppedStepsLeaveNothing) {
  const uint64_t num_steps = IsFullSize() ? 10'000 : 2'000;
  const TempFolder folder;
  const fs::path path = folder.path() / "store";
  const fs::path reference_path = folder.path() / "reference";
  auto store = Store::Create(path);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_NO_FATAL_FAILURE(SaveSteps(store->get(), 0, num_steps));
  ExpectFewFiles(**store, "with all steps");
  store->reset();

  double slowest_ms = 0;
  auto reopened = OpenTimed(path, "with all steps", &slowest_ms);
  ASSERT_NE(reopened, nullptr);
  ASSERT_NO_FATAL_FAILURE(DropSteps(reopened.get(), 0, num_steps - kLeft));
  ExpectFewFiles(*reopened, "after the drops");
  reopened.reset();

  reopened = OpenTimed(path, "after the drops", &slowest_ms);
  ASSERT_NE(reopened, nullptr);
  auto reference = Store::Create(reference_path);
  ASSERT_TRUE(reference.ok()) << reference.status().ToString();
  ASSERT_NO_FATAL_FAILURE(SaveSteps(reference->get(), num_steps - kLeft, num_steps));

  const uint64_t disk = DiskBytesWithoutReserve(*reopened, path);
  const uint64_t reference_disk = DiskBytesWithoutReserve(**reference, reference_path);
  const double ratio = static_cast<double>(disk) / static_cast<double>(reference_disk);
  std::printf("disk without the reserve: %.2f MiB, reference %.2f MiB, ratio %.3f\n",
              static_cast<double>(disk) / (1 << 20),
              static_cast<double>(reference_disk) / (1 << 20), ratio);
  EXPECT_LE(ratio, 1.2);
  if (IsFullSize()) {
    EXPECT_LE(slowest_ms, 200);
  }
  for (uint64_t step = num_steps - kLeft; step < num_steps; step += 9) ExpectWhole(*reopened, step);
  ExpectSound(*reopened);
}

}  // namespace
}  // namespace varve::internal::testing
