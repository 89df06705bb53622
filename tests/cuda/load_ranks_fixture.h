// SPDX-License-Identifier: Apache-2.0
//
// Loads of several ranks into devices, from one store. They count how often each chunk is read.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/save/chunk_source.h"
#include "store/shards/overlap.h"
#include "tests/cuda/device_fixture.h"
#include "tests/support/forwarding_reader.h"
#include "trainer_hooks/group/load_together.h"
#include "varve/rank_group.h"

namespace varve::internal::testing {

// Counts how often each chunk is read, of a checkpoint whose tensors have one shard each.
class CountingReader : public ForwardingReader {
 public:
  explicit CountingReader(std::unique_ptr<CheckpointReader> counted)
      : ForwardingReader(std::move(counted)) {
    for (const TensorInfo& info : reader().ListShards().value()) {
      counts_[info.name].resize(info.num_chunks);
    }
  }

  Result<std::vector<TensorInfo>> ListShards() const override {
    const std::lock_guard lock(mutex_);
    ++num_lists_;
    return reader().ListShards();
  }
  Status Read(std::string_view name, std::span<std::byte> out) const override {
    return ReadMany(std::array{ReadRequest::Tensor(name, out)});
  }
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const override {
    return ReadMany(std::array{ReadRequest::Tensor(name, out, slice)});
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    for (const ReadRequest& request : requests) Count(request);
    if (on_read_ != nullptr && !requests.empty()) on_read_();
    return reader().ReadMany(requests);
  }

  // Before each read of something, on its thread.
  void set_on_read(std::function<void()> on_read) { on_read_ = std::move(on_read); }
  const std::map<std::string, std::vector<int>, std::less<>>& counts() const { return counts_; }
  int num_lists() const { return num_lists_; }

 private:
  void Count(const ReadRequest& request) const {
    const TensorInfo info = reader().Find(request.name(), 0).value();
    const ShardLayout whole = ShardLayout::Whole(info.shape);
    ASSERT_TRUE(request.slice().empty());
    const std::lock_guard lock(mutex_);
    const Overlap overlap(whole, request.region() != nullptr ? *request.region() : whole);
    std::vector<int>& counts = counts_.find(request.name())->second;
    const auto chunk = static_cast<int64_t>(ElementsPerChunk(info.dtype));
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * chunk;
      counts[i] += overlap.Count({begin, begin + chunk}) > 0 ? 1 : 0;
    }
  }

  std::function<void()> on_read_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<int>, std::less<>> counts_;  // by tensor, then chunk
  mutable int num_lists_ = 0;
};

class LoadRanksTest : public DeviceTest {
 protected:
  struct Rank {
    int device = 0;
    gpu::Stream stream;
    std::shared_ptr<CudaTensorSource> source;
    std::unique_ptr<DeviceState> state;
    std::vector<TestTensor> expected;

    // Adds a target tensor that should be filled with this.
    void Add(const TestTensor& tensor, const std::optional<ShardLayout>& layout = {}) {
      expected.push_back(tensor);
      TestTensor empty = tensor;
      empty.bytes.assign(tensor.bytes.size(), std::byte{0x55});
      state->Add(std::move(empty));
      added().layout = layout;
    }
    StateTensor& added() { return state->state().tensors.back(); }
    void ExpectFilled() const {
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(SameBytes(state->Download(i), expected[i].bytes)) << expected[i].name;
      }
    }
  };

  Rank MakeRank(int number, uint64_t bounce_bytes = uint64_t{32} << 20) {
    Rank rank{.device = number % num_devices_};
    const gpu::DeviceScope scope(rank.device);
    rank.stream = gpu::MakeStream().value();
    rank.source = CudaTensorSource::Create({.streams = {{rank.device, rank.stream.get()}},
                                            .staging_bytes = uint64_t{1} << 20,
                                            .bounce_bytes = bounce_bytes})
                      .value();
    rank.state = std::make_unique<DeviceState>(rank.device, rank.stream.get());
    return rank;
  }

  std::unique_ptr<CountingReader> SaveAndRead(const std::vector<TestTensor>& tensors) {
    Reopen();
    EXPECT_TRUE(StoreTest::Save(1, tensors).ok());
    return std::make_unique<CountingReader>(store_->OpenCheckpoint("main", 1).value());
  }

  static void ExpectEachReadOnce(const CountingReader& reader) {
    for (const auto& [name, counts] : reader.counts())
      EXPECT_THAT(counts, ::testing::Each(1)) << name;
  }

  // Loads what this rank has, together with the others.
  static Status LoadOne(Rank* rank, const CountingReader& reader, RankGroup* group) {
    TrainingState* const into = &rank->state->state();
    const LoadOptions options{.optimizer = false, .exchange = true, .devices = rank->source};
    return LoadTogether(group, options, *into,
                        [&](const LoadOptions& with, RegionReader* read) {
                          return LoadThrough(reader, with, read, into);
                        })
        .status();
  }
};

}  // namespace varve::internal::testing
