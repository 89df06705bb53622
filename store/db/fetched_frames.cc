// SPDX-License-Identifier: Apache-2.0
#include "store/db/fetched_frames.h"

#include <algorithm>
#include <cstdint>

#include "base/bytes_of.h"
#include "base/util.h"
#include "codec/frame.h"

namespace varve::internal {

namespace {

constexpr uint64_t kMaxFetchedBytes = uint64_t{64} << 20;

}  // namespace

FetchedFrames::FetchedFrames(const Database& database, std::vector<ChunkAddress> addresses) {
  uint64_t bytes = 0;
  while (!addresses.empty() && bytes < kMaxFetchedBytes) {
    std::ranges::sort(addresses);
    addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
    auto found = database.GetFrames(addresses);
    addresses.clear();
    for (const auto& [address, frame] : found) {
      bytes += frame.size();
      const auto info = ParseFrame(AsBytes({frame.data(), frame.size()}));
      // Whoever decodes a frame says what is wrong with it. The address of a base is smaller, or
      // the frame is damaged, so this ends.
      const bool has_base = info.ok() && info->base.has_value() && *info->base < address;
      if (has_base && !frames_.contains(*info->base)) addresses.push_back(*info->base);
    }
    frames_.merge(found);
  }
}

}  // namespace varve::internal
