// SPDX-License-Identifier: Apache-2.0
//
// Digests bytes that never lie in one piece. The result equals ComputeDigest of all of them in a
// row. Thread rule: one thread at a time.
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
  // Returns the digest of all bytes added so far.
  Digest Get() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace varve
