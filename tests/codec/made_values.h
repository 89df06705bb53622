// SPDX-License-Identifier: Apache-2.0
//
// Bytes and weights that tests make, also those that are fuzz targets and know no gtest. All
// randomness is seeded. All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace varve::internal::testing {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes ToBytes(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline Bytes RandomBytes(size_t num_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(num_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Weights as a trained layer has them.
inline std::vector<float> Weights(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Returns the same weights after some optimizer steps of size lr.
inline std::vector<float> Trained(std::vector<float> values, float lr, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, lr);
  for (float& value : values) value += normal(random);
  return values;
}

}  // namespace varve::internal::testing
