// SPDX-License-Identifier: Apache-2.0
//
// Loads of ranks that talk over NCCL, each with a device of its own: up to three. On GPUs, where
// there are two, and on the host's runtime.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/load_ranks_fixture.h"
#include "tests/cuda/nccl_launcher.h"
#include "tests/support/forwarding_ranks.h"
#include "tests/support/shard_reference.h"
#include "varve/layouts.h"

namespace varve::internal::testing {

inline constexpr int64_t kMillion = int64_t{1} << 20;  // elements

// Sends digests that are not those of the bodies.
class WrongDigests : public ForwardingRanks {
 public:
  explicit WrongDigests(RankGroup* group) : ForwardingRanks(group), group_(group) {}
  std::optional<int> device() const override { return group_->device(); }
  Result<std::vector<BodyOnDevice>> AllToAllToDevice(
      std::span<const HeadAndBody> to_each) override {
    std::vector<std::vector<std::byte>> heads;
    std::vector<HeadAndBody> changed;
    for (const HeadAndBody& message : to_each) {
      std::vector<std::byte>& head = heads.emplace_back(message.head.begin(), message.head.end());
      if (!head.empty()) head.back() ^= std::byte{1};
    }
    for (size_t i = 0; i < heads.size(); ++i) changed.push_back({heads[i], to_each[i].body});
    return group_->AllToAllToDevice(changed);
  }

 private:
  RankGroup* const group_;
};

class NcclLoadTest : public LoadRanksTest {
 protected:
  void SetUp() override {
    LoadRanksTest::SetUp();
    if (IsSkipped()) return;
    if (num_devices_ < 2) GTEST_SKIP() << "not run for n > 1: each rank needs a GPU";
    for (int i = 0; i < std::min(3, num_devices_); ++i) ranks_.push_back(MakeRank(i));
  }
  void TearDown() override {
    for (const Rank& rank : ranks_) (void)cudaStreamSynchronize(rank.stream.get());
    ranks_.clear();
    reader_.reset();
    LoadRanksTest::TearDown();
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  // Columns of each half.
  ShardLayout Columns(const TestTensor& tensor, int rank) const {
    const std::vector<int64_t> halves(2, tensor.shape[1] / 2);
    return SplitFused(ShardLayout::Whole(tensor.shape), 1, halves, {rank, size()}).value();
  }
  void AddToAll(const TestTensor& tensor) {
    for (Rank& rank : ranks_) rank.Add(tensor);
  }
  void AddColumns(const TestTensor& tensor, int rank) {
    const ShardLayout columns = Columns(tensor, rank);
    ranks_[static_cast<size_t>(rank)].Add({tensor.name, tensor.dtype, columns.LocalShape(),
                                           CutShard(tensor.bytes, 4, columns, {}), ""},
                                          columns);
  }
  void ExpectFilled() const {
    for (const Rank& rank : ranks_) rank.ExpectFilled();
  }

  // Returns the result of each rank's load.
  std::vector<Status> LoadAll() {
    std::vector<Status> results(ranks_.size());
    RunNcclRanks(size(), options_, [&](int i, Result<std::unique_ptr<RankGroup>> group) {
      VARVE_ASSERT_OK(group.status());
      const gpu::DeviceScope scope(i);
      WrongDigests wrong(group->get());
      if (on_groups_ != nullptr) on_groups_();
      results[static_cast<size_t>(i)] =
          LoadOne(&ranks_[static_cast<size_t>(i)], *reader_, i == wrong_ ? &wrong : group->get());
    });
    return results;
  }

  NcclOptions options_{.piece_bytes = 1'000'000};
  int wrong_ = -1;                   // the rank that sends wrong digests
  std::function<void()> on_groups_;  // on each rank, when it has its group
  std::vector<Rank> ranks_;
  std::unique_ptr<CountingReader> reader_;
};

}  // namespace varve::internal::testing
