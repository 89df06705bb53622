// SPDX-License-Identifier: Apache-2.0
//
// Proves that the shards of all ranks make whole tensors. The proof follows from their layouts,
// which seldom change from one save to the next. Layouts that were proven are not proven again, and
// tensors that are cut alike are proven once. Replicas are compared every time. Thread rule: any
// thread may call it. One works at a time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/digest.h"
#include "store/group/catalogue.h"
#include "varve/status.h"

namespace varve::internal {

class CoverageProof {
 public:
  // The catalogue must be sorted. kInvalidArgument names a tensor that has missing or duplicate
  // elements, or replicas that differ.
  Status Prove(const Catalogue& catalogue);

  // The number of times that it had to look at layouts.
  uint64_t num_proofs() const;

 private:
  mutable std::mutex mutex_;
  uint64_t num_proofs_ = 0;
  // Layouts of the last proof that held. The key is the digest of a list of layouts that a tensor
  // had. The value gives, for each shard in the list, the first shard that it is a replica of. That
  // may be itself.
  std::map<Digest, std::vector<size_t>> proven_;
};

}  // namespace varve::internal
