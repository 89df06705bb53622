// SPDX-License-Identifier: Apache-2.0
#include "tests/support/global_state.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/support/shard_reference.h"

namespace varve::internal::testing {
namespace {

std::vector<std::byte> Content(const std::string& name, size_t num_bytes) {
  std::seed_seq seed(name.begin(), name.end());
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(num_bytes);
  for (size_t at = 0; at < num_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), num_bytes - at));
  }
  return bytes;
}

}  // namespace

GlobalState::GlobalState(const Model& model) {
  // One rank alone has everything.
  const auto ranks = TensorsOfRanks(model, {});
  for (const HeldTensor& tensor : ranks.value()[0]) {
    const uint64_t bytes = NumBytes(tensor.dtype, tensor.layout.global_shape).value();
    tensors_[tensor.name] = Content(tensor.name, bytes);
  }
}

std::vector<std::byte> GlobalState::Cut(const HeldTensor& tensor, std::byte padding) const {
  const size_t element_bytes = static_cast<size_t>(DTypeBits(tensor.dtype)) / 8;
  return CutShard(Bytes(tensor.name), element_bytes, tensor.layout, padding);
}

uint64_t GlobalState::num_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, bytes] : tensors_) sum += bytes.size();
  return sum;
}

}  // namespace varve::internal::testing
