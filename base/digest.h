// SPDX-License-Identifier: Apache-2.0
//
// Digests (varve/digest.h), also of bytes that never lie in one piece, and their text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "varve/digest.h"

namespace varve::internal {

// Returns 16 hexadecimal digits.
std::string Hex16(uint64_t number);

// Equal to ComputeDigest of all that was added, one behind the other. Thread rule: one thread at a
// time.
class DigestStream {
 public:
  explicit DigestStream(uint64_t seed);
  ~DigestStream();
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;

  void Add(std::span<const std::byte> data);
  // The digest of all that was added so far.
  Digest Get() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace varve::internal
