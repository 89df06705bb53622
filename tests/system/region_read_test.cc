// SPDX-License-Identifier: Apache-2.0
//
// A slice costs the chunks that it touches, in bytes read and in memory, however large the tensor.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/step_content.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

constexpr int64_t kRows = 192;
constexpr int64_t kColumns = 262'144;  // a row of floats is one chunk of 1 MiB
constexpr uint64_t kChunkBytes = kColumns * sizeof(float);

std::vector<float> MakeTensor() {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<uint32_t>(Mix(71, i));
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
  return values;
}

// A number of one of the files of /proc/self.
uint64_t FromProc(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  }
  ADD_FAILURE() << file << " has no " << name;
  return 0;
}

class RegionReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tensor_ = MakeTensor();
    auto store = Store::Create(path_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto writer = (*store)->Begin(1);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    const int64_t shape[] = {kRows, kColumns};
    const Status status =
        (*writer)->Put({.name = "w", .dtype = DType::kF32, .shape = shape, .data = tensor_.data()});
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE((*writer)->Commit().ok());
    store->reset();
    auto reader = Store::OpenForReading(path_);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    store_ = *std::move(reader);
  }

  // Reads rows by columns, compares, and returns the bytes that the process read meanwhile.
  uint64_t BytesReadFor(Range rows, Range columns) {
    const auto reader = store_->OpenCheckpoint("main", 1);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    const int64_t width = columns.end - columns.begin;
    std::vector<float> out((rows.end - rows.begin) * width);
    const Range slice[] = {rows, columns};
    const uint64_t before = FromProc("/proc/self/io", "rchar:");
    const Status status = (*reader)->ReadSlice("w", slice, std::as_writable_bytes(std::span(out)));
    const uint64_t bytes_read = FromProc("/proc/self/io", "rchar:") - before;
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      EXPECT_EQ(0, std::memcmp(&out[(row - rows.begin) * width],
                               &tensor_[row * kColumns + columns.begin], width * sizeof(float)));
    }
    return bytes_read;
  }

  // Whether these are the elements of the tensor from `first` on, bit for bit.
  bool AreElementsFrom(int64_t first, std::span<const float> read) const {
    const auto there = std::span(tensor_).subspan(static_cast<size_t>(first), read.size());
    return std::ranges::equal(std::as_bytes(read), std::as_bytes(there));
  }

  const TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "store";
  std::vector<float> tensor_;
  std::unique_ptr<Store> store_;
};

// Records and table indexes come on top of the chunks.
constexpr uint64_t kSlack = kChunkBytes;

TEST_F(RegionReadsTest, OnlyTheChunksOfASliceAreRead) {
  EXPECT_LE(BytesReadFor({5, 6}, {0, kColumns}), kChunkBytes + kSlack);
  EXPECT_LE(BytesReadFor({100, 101}, {17, 18}), kChunkBytes + kSlack);
  EXPECT_LE(BytesReadFor({50, 53}, {0, 1}), 3 * kChunkBytes + kSlack);
  EXPECT_LE(BytesReadFor({kRows - 1, kRows}, {kColumns - 1, kColumns}), kChunkBytes + kSlack);
}

// The last chunk of most tensors is short, and the next one follows it in the file.
TEST_F(RegionReadsTest, AShortChunkIsReadWithoutItsNeighbour) {
  constexpr int64_t kShort = 500;
  const auto path = folder_.path() / "short";
  {
    const auto store = Store::Create(path).value();
    auto writer = store->Begin(1).value();
    const int64_t shape[] = {kColumns + kShort};
    for (const char* name : {"a", "b"}) {
      const TensorView view{
          .name = name, .dtype = DType::kF32, .shape = shape, .data = &tensor_[name[0] * kColumns]};
      ASSERT_TRUE(writer->Put(view).ok());
    }
    ASSERT_TRUE(writer->Commit().ok());
  }
  const auto store = Store::OpenForReading(path).value();
  const auto reader = store->OpenCheckpoint("main", 1).value();
  std::vector<float> out(kShort);
  const Range slice[] = {{kColumns, kColumns + kShort}};
  const uint64_t before = FromProc("/proc/self/io", "rchar:");
  ASSERT_TRUE(reader->ReadSlice("a", slice, std::as_writable_bytes(std::span(out))).ok());
  EXPECT_LT(FromProc("/proc/self/io", "rchar:") - before, kChunkBytes / 2);
  EXPECT_TRUE(AreElementsFrom('a' * kColumns + kColumns, out));
}

// The tensor is cut into four shards of a quarter of the columns each. A chunk of a shard is four
// rows.
TEST_F(RegionReadsTest, OnlyTheChunksOfARegionAreReadFromShards) {
  auto store = Store::Create(folder_.path() / "shards").value();
  auto writer = store->Begin(1).value();
  std::vector<ShardLayout> quarters(4, ShardLayout::Whole({kRows, kColumns}));
  for (int64_t i = 0; i < 4; ++i) {
    ShardLayout& quarter = quarters[static_cast<size_t>(i)];
    quarter.axes[1] = {{.begin = i * kColumns / 4, .length = kColumns / 4}};
    const std::vector<int64_t> shape = quarter.LocalShape();
    const int64_t strides[] = {kColumns, 1};
    const TensorView view{.name = "w",
                          .dtype = DType::kF32,
                          .shape = shape,
                          .data = tensor_.data() + i * kColumns / 4,
                          .strides = strides,
                          .shard = static_cast<uint32_t>(i),
                          .layout = &quarter};
    ASSERT_TRUE(writer->Put(view).ok());
  }
  ASSERT_TRUE(writer->Commit().ok());
  store_ = std::move(store);
  EXPECT_LE(BytesReadFor({8, 12}, {0, kColumns}), 4 * kChunkBytes + kSlack);
  EXPECT_LE(BytesReadFor({8, 9}, {kColumns / 2, kColumns / 2 + 5}), kChunkBytes + kSlack);
  EXPECT_LE(BytesReadFor({11, 13}, {kColumns / 4 - 1, kColumns / 4 + 1}), 4 * kChunkBytes + kSlack);
}

TEST_F(RegionReadsTest, MemoryIsThatOfTheSlice) {
  std::ofstream file("/proc/self/clear_refs");  // VmHWM starts again
  file << "5" << std::flush;
  ASSERT_TRUE(file.good()) << "no peak can be measured here";
  const uint64_t before = FromProc("/proc/self/status", "VmRSS:") << 10;
  BytesReadFor({0, kRows}, {1000, 1010});  // a few bytes of every chunk
  const uint64_t peak = FromProc("/proc/self/status", "VmHWM:") << 10;
  EXPECT_LE(peak - before, kRows * kChunkBytes / 3);
}

// The system clears each page that it gives. Frames and buffers of earlier reads are used again.
TEST_F(RegionReadsTest, TheNextReaderTakesNoNewMemory) {
  const auto faults = [] {
    struct rusage usage {};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
  };
  ASSERT_EQ(mallopt(M_MMAP_THRESHOLD, 128 << 10), 1);  // or malloc might keep what is freed
  std::vector<float> out(3 * kColumns);
  const Range slice[] = {{7, 10}, {0, kColumns}};
  long least = LONG_MAX;  // a thread more than before takes a buffer more
  for (int round = 0; round < 10; ++round) {
    const auto store = Store::OpenForReading(path_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto reader = (*store)->OpenCheckpoint("main", 1);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    const long before = faults();
    const Status status = (*reader)->ReadSlice("w", slice, std::as_writable_bytes(std::span(out)));
    least = std::min(least, faults() - before);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_TRUE(AreElementsFrom(7 * kColumns, out));
  EXPECT_LT(least * getpagesize(), kChunkBytes);
}

}  // namespace
}  // namespace varve::internal::testing
