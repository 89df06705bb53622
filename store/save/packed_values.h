// SPDX-License-Identifier: Apache-2.0
//
// Holds many short values, one behind the other, in large blocks. Each takes its bytes and four
// more. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve::internal {

class PackedValues {
 public:
  // Each value is smaller than 4 GiB.
  void Add(std::string_view value) {
    if (blocks_.empty() || blocks_.back().bytes.size() + value.size() > kBlockBytes) {
      blocks_.emplace_back();
    }
    blocks_.back().bytes += value;
    blocks_.back().sizes.push_back(static_cast<uint32_t>(value.size()));
    ++size_;
  }
  uint64_t size() const { return size_; }

  // Calls `visit(value)` for each value in turn, until a call fails.
  template <typename Visit>
  Status ForEach(const Visit& visit) const {
    for (const Block& block : blocks_) {
      const char* at = block.bytes.data();
      for (const uint32_t size : block.sizes) {
        VARVE_RETURN_IF_ERROR(visit(std::string_view(at, size)));
        at += size;
      }
    }
    return Status::Ok();
  }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 20;
  struct Block {
    std::string bytes;
    std::vector<uint32_t> sizes;
  };
  std::vector<Block> blocks_;
  uint64_t size_ = 0;
};

}  // namespace varve::internal
