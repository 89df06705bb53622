// SPDX-License-Identifier: Apache-2.0
//
// What codec_bench reads, and what it finds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::bench {

inline constexpr int64_t kChunkElements = 262144;
inline constexpr int kPasses = 25;

[[noreturn]] void Fail(const std::string& message);
double CpuSeconds();  // of this thread

struct Tensor {
  DType dtype = DType::kU8;
  std::vector<std::byte> raw;
};
struct File {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};
File ReadSafetensors(const std::filesystem::path& path);

struct Measured {
  uint64_t raw_bytes = 0;
  uint64_t encoded_bytes = 0;
  double encode_gbps = 0;
  double decode_gbps = 0;
  double ratio() const {
    return static_cast<double>(encoded_bytes) /
           static_cast<double>(std::max<uint64_t>(raw_bytes, 1));
  }
};

}  // namespace varve::internal::bench
