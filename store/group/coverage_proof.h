// SPDX-License-Identifier: Apache-2.0
//
// The proof that the shards of all ranks make whole tensors. It follows from their layouts, which
// seldom change from one save to the next: layouts that were proven are not proven again, tensor by
// tensor, and tensors that are cut alike are proven once. Whether replicas are equal is looked at
// every time.
// Thread rule: any thread; one at a time is inside.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/digest.h"
#include "store/group/catalogue.h"
#include "varve/status.h"

namespace varve {

class CoverageProof {
 public:
  // The catalogue is sorted. kInvalidArgument names a tensor of which elements are missing or are
  // there twice, or whose replicas differ.
  Status Prove(const Catalogue& catalogue);

  // How often it has looked at layouts, rather than known them.
  uint64_t num_proofs() const;

 private:
  mutable std::mutex mutex_;
  uint64_t num_proofs_ = 0;
  // Of the last proof that held: each list of layouts that a tensor had, by its digest, and for
  // each shard in it the first that it is a replica of, which may be itself.
  std::map<Digest, std::vector<size_t>> proven_;
};

}  // namespace varve
