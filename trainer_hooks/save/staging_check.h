// SPDX-License-Identifier: Apache-2.0
//
// Checks that a trainer keeps its tensors as they are while a save stages them. Digests of some
// chunks are made at the begin of the save and at its AwaitStaged, and compared.
// Thread rule: the trainer's thread, which alone may change the tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/status.h"

namespace varve::internal {

class StagingCheck {
 public:
  // Digests a share, 0 to 1, of the chunks of the tensors on the host, at least one of each tensor.
  // `round` decides which chunks.
  StagingCheck(std::shared_ptr<const SaveState> state, double share, uint64_t round);

  // kFailedPrecondition names the first tensor that has changed since, and how many more have.
  Status Compare() const;

 private:
  struct Chunk {
    size_t tensor = 0;  // of the state, on the host, not empty
    uint64_t index = 0;
    Digest digest;
  };
  Digest DigestOf(const Chunk& chunk) const;

  const std::shared_ptr<const SaveState> state_;
  std::vector<Chunk> chunks_;
};

}  // namespace varve::internal
