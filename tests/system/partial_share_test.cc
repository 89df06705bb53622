// SPDX-License-Identifier: Apache-2.0
//
// A tenth of a step lives on in later steps, and the step is dropped. The space of the rest must
// come back, and no more bytes may be rewritten than are freed.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/step_content.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;  // of a byte tensor
constexpr size_t kSharedOf = 10;                 // one chunk in so many is shared

// Which chunks of the dropped step live on.
enum class Shared { kTogether, kScattered };

size_t NumChunks() { return std::getenv("VARVE_FULL_SIZE") != nullptr ? 1'000 : 150; }

bool IsShared(Shared shared, size_t chunk) {
  if (shared == Shared::kScattered) return chunk % kSharedOf == 0;
  return chunk < NumChunks() / kSharedOf;
}

// Incompressible, so that encoded bytes are raw bytes.
std::vector<std::byte> MakeState(Shared shared, uint64_t step) {
  std::vector<std::byte> state(NumChunks() * kChunkBytes);
  for (size_t chunk = 0; chunk < NumChunks(); ++chunk) {
    const uint64_t key = Mix(51, IsShared(shared, chunk) ? 0 : step, chunk);
    for (size_t at = 0; at < kChunkBytes; at += 8) {
      const uint64_t word = Mix(key, at);
      std::memcpy(state.data() + chunk * kChunkBytes + at, &word, 8);
    }
  }
  return state;
}

void Save(Store* store, Shared shared, uint64_t step) {
  const std::vector<std::byte> state = MakeState(shared, step);
  const auto size = static_cast<int64_t>(state.size());
  auto writer = store->Begin(step);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  const Status status = (*writer)->Put(
      {.name = "state", .dtype = DType::kU8, .shape = {&size, 1}, .data = state.data()});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto report = (*writer)->Commit();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const size_t new_chunks = step == 1 ? NumChunks() : NumChunks() - NumChunks() / kSharedOf;
  EXPECT_EQ(report->new_bytes, new_chunks * kChunkBytes) << "the steps do not share as planned";
}

void ExpectReads(const Store& store, Shared shared, uint64_t step) {
  const auto reader = store.OpenCheckpoint("main", step);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  std::vector<std::byte> found(NumChunks() * kChunkBytes);
  const Status status = (*reader)->Read("state", found);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(found == MakeState(shared, step)) << "step " << step;
}

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void Print(const char* what, const ReclaimReport& report) {
  std::printf("%s: freed %.1f MiB, rewritten %.1f, pending %.1f, disk %.1f before, %.1f after\n",
              what, MiB(report.freed_bytes), MiB(report.rewritten_bytes), MiB(report.pending_bytes),
              MiB(report.disk_bytes_before), MiB(report.disk_bytes_after));
}

void ExpectSound(const Store& store) {
  const auto check = store.Check({.read_data = true, .progress = {}});
  ASSERT_TRUE(check.ok()) << check.status().ToString();
  EXPECT_TRUE(check->ok()) << check->errors.front();
}

class PartialShareTest : public ::testing::TestWithParam<Shared> {};

TEST_P(PartialShareTest, SpaceOfTheRestComesBack) {
  const Shared shared = GetParam();
  const TempFolder folder;
  auto store = Store::Create(folder.path() / "store");
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_NO_FATAL_FAILURE(Save(store->get(), shared, step));
  }
  const uint64_t dead = (NumChunks() - NumChunks() / kSharedOf) * kChunkBytes;

  const CheckpointId dropped{"main", 1};
  const auto drop = (*store)->Drop({&dropped, 1});
  ASSERT_TRUE(drop.ok()) << drop.status().ToString();
  const ReclaimReport& report = drop->reclaim;
  Print("drop", report);
  // Nine tenths are dead: only a file that is at most half dead may keep dead chunks, and of such
  // files there is at most what the live tenth fills.
  EXPECT_GE(report.freed_bytes, dead - dead / 9);
  EXPECT_LE(report.rewritten_bytes, report.freed_bytes);
  EXPECT_LE(report.disk_bytes_after + report.freed_bytes, report.disk_bytes_before + (4 << 20));
  EXPECT_GE(report.pending_bytes + report.freed_bytes, dead);

  const auto reclaim = (*store)->Reclaim({.all = true});
  ASSERT_TRUE(reclaim.ok()) << reclaim.status().ToString();
  Print("reclaim --all", *reclaim);
  EXPECT_EQ(reclaim->pending_bytes, 0u);
  EXPECT_LE(report.rewritten_bytes + reclaim->rewritten_bytes,
            report.freed_bytes + reclaim->freed_bytes);
  const uint64_t live = (3 * NumChunks() - 2 * (NumChunks() / kSharedOf)) * kChunkBytes - dead;
  EXPECT_LE(reclaim->disk_bytes_after, live + live / 50 + (16 << 20));

  for (const uint64_t step : {2, 3}) ExpectReads(**store, shared, step);
  ExpectSound(**store);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PartialShareTest,
                         ::testing::Values(Shared::kTogether, Shared::kScattered),
                         [](const auto& layout) {
                           return layout.param == Shared::kTogether ? "Together" : "Scattered";
                         });

}  // namespace
}  // namespace varve::internal::testing
