// SPDX-License-Identifier: Apache-2.0
#include "store/remote/block_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

uint64_t BytesIn(const std::filesystem::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

// Others put blocks while one thread removes old ones. These count, too. Blocks are small, so that
// a removal takes long beside a Put.
TEST(BlockCacheTest, ManyThreadsKeepTheLimit) {
  constexpr size_t kThreads = 8, kBlocks = 600, kBlockBytes = 64;
  constexpr uint64_t kMaxBytes = 128 << 10;
  const TempFolder folder;
  const auto cache = BlockCache::Open(folder.path(), kMaxBytes).value();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&cache, t] {
      const std::string block(kBlockBytes, static_cast<char>(t));
      for (size_t i = 0; i < kBlocks; ++i) cache->Put("blob" + std::to_string(t), i, block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Each thread may have put one block after the last look.
  EXPECT_LE(BytesIn(folder.path()), kMaxBytes + kThreads * (kBlockBytes + 100));
  EXPECT_GT(BytesIn(folder.path()), kMaxBytes / 2);
}

}  // namespace
}  // namespace varve::internal::testing
