// SPDX-License-Identifier: Apache-2.0
//
// A digest of bytes that never lie in one piece: equal to ComputeDigest of all of them, one behind
// the other. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/digest.h"

namespace varve {

class DigestStream {
 public:
  explicit DigestStream(uint64_t seed);
  ~DigestStream();
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;

  void Add(std::span<const std::byte> data);
  // Of all that was added so far.
  Digest Get() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace varve
