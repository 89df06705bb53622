// SPDX-License-Identifier: Apache-2.0
//
// Frames that lie far away, fetched together before they are needed one by one.
#pragma once

#include <map>
#include <vector>

#include "store/db/database.h"

namespace varve::internal {

class FetchedFrames {
 public:
  FetchedFrames() = default;
  // Fetches frames, their sources, the sources of those and so on, up to a limit of memory. What
  // cannot be had is left out, and whoever needs it reads it alone.
  FetchedFrames(const Database& database, std::vector<ChunkAddress> addresses);

  // Null: it was not fetched.
  const rocksdb::PinnableSlice* Find(ChunkAddress address) const {
    const auto it = frames_.find(address);
    return it == frames_.end() ? nullptr : &it->second;
  }

 private:
  std::map<ChunkAddress, rocksdb::PinnableSlice> frames_;
};

}  // namespace varve::internal
