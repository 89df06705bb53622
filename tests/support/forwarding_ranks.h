// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks that passes each call on to another one, which it does not own. A test derives a
// class from it, and changes the calls that it is about.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "varve/rank_group.h"

namespace varve::internal::testing {

class ForwardingRanks : public RankGroup {
 public:
  explicit ForwardingRanks(RankGroup* ranks) : ranks_(ranks) {}

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  Status Barrier() override { return ranks_->Barrier(); }
  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    return ranks_->AllGather(mine);
  }
  Result<std::vector<std::byte>> Broadcast(std::span<const std::byte> bytes, int root) override {
    return ranks_->Broadcast(bytes, root);
  }
  Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                         Reduction reduction) override {
    return ranks_->AllReduce(mine, reduction);
  }
  Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>> to_each) override {
    return ranks_->AllToAll(to_each);
  }
  Result<std::unique_ptr<RankGroup>> Split(int color) override { return ranks_->Split(color); }

 private:
  RankGroup* const ranks_;
};

}  // namespace varve::internal::testing
