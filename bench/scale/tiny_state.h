// SPDX-License-Identifier: Apache-2.0
//
// A state of many tensors with hardly any bytes: what a save costs is what its tensors cost.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "varve/store.h"

namespace varve::internal::bench {

class TinyState {
 public:
  // FP32 tensors of 128 bytes, each of which is a chunk of its own.
  TinyState(uint64_t num_tensors, uint64_t seed);

  uint64_t num_tensors() const { return num_tensors_; }
  const std::string& NameOf(uint64_t tensor) const { return names_[tensor]; }
  // New bytes for tensors first, first + stride, ...
  void Change(uint64_t seed, uint64_t first, uint64_t stride);
  SaveReport Save(Store* store, uint64_t step) const;
  // Ends the program unless the store gives these bytes back.
  void RequireRestores(const Store& store, uint64_t step) const;

  static constexpr uint64_t kTensorBytes = 128;

 private:
  const uint64_t num_tensors_;
  std::vector<std::byte> bytes_;
  std::vector<std::string> names_;  // a trainer has them, too, so a save does not make them
};

}  // namespace varve::internal::bench
