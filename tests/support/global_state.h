// SPDX-License-Identifier: Apache-2.0
//
// The whole state of a model, and the parts of it that shard layouts describe, cut element by
// element.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tests/support/parallel_plan.h"

namespace varve::internal::testing {

// Every tensor of a model with content of its own, the same in every process. Any thread.
class GlobalState {
 public:
  explicit GlobalState(const Model& model);

  const std::vector<std::byte>& Bytes(const std::string& name) const { return tensors_.at(name); }
  // Returns what a rank holds of it, by the reference. Each byte of padding is `padding`.
  std::vector<std::byte> Cut(const HeldTensor& tensor, std::byte padding) const;

  uint64_t num_bytes() const;
  size_t size() const { return tensors_.size(); }

 private:
  std::map<std::string, std::vector<std::byte>> tensors_;  // by global name
};

}  // namespace varve::internal::testing
