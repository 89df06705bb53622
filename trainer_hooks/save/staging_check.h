// SPDX-License-Identifier: Apache-2.0
//
// Whether a trainer keeps its tensors as they are while a save stages them: digests of some chunks
// at the begin of the save, compared with those at its AwaitStaged.
// Thread rule: the trainer's thread, which alone may change the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "varve/status.h"
#include "varve/training_state.h"

namespace varve {

class StagingCheck {
 public:
  // Digests a share, 0 to 1, of the chunks of the tensors on the host, at least one of each; which
  // ones, `round` decides. The tensors must be valid, and stay until Compare has returned.
  StagingCheck(const std::vector<StateTensor>& tensors, double share, uint64_t round);

  // kFailedPrecondition names the first tensor that has changed since, and how many more have.
  Status Compare() const;

 private:
  struct Chunk {
    size_t tensor = 0;
    uint64_t index = 0;
    Digest digest;
  };
  Digest DigestOf(const Chunk& chunk) const;

  std::vector<StateTensor> tensors_;  // on the host, not empty
  std::vector<Chunk> chunks_;
};

}  // namespace varve
