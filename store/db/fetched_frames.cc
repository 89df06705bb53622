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
      // Whoever decodes a frame says what is wrong with it. The address of a source is smaller, or
      // the frame is damaged, so this ends.
      if (!info.ok()) continue;
      for (const FrameSource& source : info->sources()) {
        const bool is_new = source.address < address && !found.contains(source.address) &&
                            !frames_.contains(source.address);
        if (is_new) addresses.push_back(source.address);
      }
    }
    frames_.merge(found);
  }
}

}  // namespace varve::internal
