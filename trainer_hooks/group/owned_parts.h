// SPDX-License-Identifier: Apache-2.0
//
// Knows which parts this rank has saved of the tensors that it holds. It knows this from the last
// plan, and before the first plan from the rank's member store, which an earlier job has written.
// It is a hint for the plan, so that a tensor stays with the rank whose store has its chunks.
// Thread rule: one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"
#include "varve/tensor.h"

namespace varve::internal {

class OwnedParts {
 public:
  // Lists the shards of the newest step in the member store of this rank. It is called once, by the
  // first Find.
  using ListStored = std::function<Result<std::vector<TensorInfo>>()>;

  // `stored` may be null.
  explicit OwnedParts(ListStored stored) : stored_(std::move(stored)) {}

  // Returns HeldTensor::had of a tensor.
  std::optional<Range> Find(const HeldTensor& tensor);
  // `writes` has the part of each of these tensors that the rank saves from now on.
  void Learn(std::span<const HeldTensor> held, std::span<const std::optional<Range>> writes);

 private:
  void LoadStored();
  std::optional<Range> FindStored(const HeldTensor& tensor) const;

  ListStored stored_;  // null once it was asked
  std::multimap<std::string, TensorInfo, std::less<>> of_earlier_job_;
  // The parts by HeldTensor::Key. It keeps tensors that were not in the last list, because a
  // trainer may save some tensors seldom.
  std::map<Digest, std::optional<Range>> planned_;
};

}  // namespace varve::internal
