// SPDX-License-Identifier: Apache-2.0
//
// What this rank has saved of the tensors that it holds: as it planned last, and before that, as
// its member store has it from an earlier job. It is a hint for the plan, so that a tensor stays
// with the rank whose store has its chunks. Thread rule: one thread at a time.
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
  // Lists what the member store of this rank has of the newest step. Asked once, by the first
  // Recall.
  using ListStored = std::function<Result<std::vector<TensorInfo>>()>;

  // `stored` may be null.
  explicit OwnedParts(ListStored stored) : stored_(std::move(stored)) {}

  // Sets HeldTensor::had.
  void Recall(std::vector<HeldTensor>* held);
  // `writes`: what the rank saves from now on of each of these tensors.
  void Learn(std::span<const HeldTensor> held, std::span<const std::optional<Range>> writes);

 private:
  void LoadStored();
  std::optional<Range> FindStored(const HeldTensor& tensor) const;

  ListStored stored_;  // null once it was asked
  std::multimap<std::string, TensorInfo> of_earlier_job_;
  // By name, dtype and layout. Also of tensors that were not in the last list, as a trainer may
  // save some of them seldom.
  std::map<std::string, std::optional<Range>> planned_;
};

}  // namespace varve::internal
