// SPDX-License-Identifier: Apache-2.0
//
// While a VerifyFrames lives, every read of a frame in this process verifies the checksum of its
// block first. Other reads leave that to the digest of the chunk. But RocksDB looks for the frame
// in its block, and where it is built with assertions, a damaged key there ends the process. So who
// knows that a file is damaged reads it with this. It changes no answer about a sound file. Any
// thread.
#pragma once

#include <atomic>

namespace varve::internal {

class VerifyFrames {
 public:
  VerifyFrames() { ++count_; }
  VerifyFrames(const VerifyFrames&) = delete;
  VerifyFrames& operator=(const VerifyFrames&) = delete;
  ~VerifyFrames() { --count_; }
  static bool is_active() { return count_ > 0; }

 private:
  static inline std::atomic<int> count_{0};
};

}  // namespace varve::internal
