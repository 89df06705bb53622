// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads, each with its tensors on a device of its own, or all on the only one.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "tests/cuda/device_fixture.h"
#include "tests/support/shard_reference.h"
#include "varve/group_checkpointer.h"
#include "varve/rank_group.h"

namespace varve::internal::testing {

class DeviceRanksTest : public DeviceTest {
 protected:
  static inline const std::vector<int64_t> kShape = {1200, 1000};
  static ShardLayout Rows(int64_t parts, int64_t rank) {
    ShardLayout layout = ShardLayout::Whole(kShape);
    layout.axes[0] = {{rank * 1200 / parts, 1200 / parts}};
    return layout;
  }

  struct Rank {
    Rank(int device, int of_size, int number)
        : stream(*gpu::MakeStream()), state(device, stream.get()), size(of_size), rank(number) {}
    gpu::Stream stream;
    DeviceState state;
    int size;
    int rank;
  };

  // Every rank holds a part of w, all of v, and a scale that is the same everywhere.
  static void Fill(Rank* rank, uint64_t step) {
    const ShardLayout layout = Rows(rank->size, rank->rank);
    TestTensor part = NormalTensor("w", kShape, step);
    part.bytes = CutShard(part.bytes, 4, layout, {});
    part.shape = layout.LocalShape();
    rank->state.Add(std::move(part));
    rank->state.state().tensors.back().layout = layout;
    rank->state.Add(NormalTensor("v", {500'000}, step + 1), 2);
    rank->state.Add(NormalTensor("scale", {3}, step + 2));
  }

  void TearDown() override {
    if (num_devices_ > 0) {
      const auto check = Store::OpenForReading(root()).value()->Check({.read_data = true});
      VARVE_ASSERT_OK(check.status());
      EXPECT_THAT(check->errors, ::testing::IsEmpty());
    }
    DeviceTest::TearDown();
  }

  void Run(int size, const std::function<void(Rank*, AsyncCheckpointer*)>& work) {
    auto groups = ThreadRanks(size, std::chrono::minutes(2));
    std::vector<std::jthread> threads;
    for (int i = 0; i < size; ++i) {
      threads.emplace_back([&, i] {
        const int device = i % num_devices_;
        const gpu::DeviceScope scope(device);
        Rank rank(device, size, i);
        auto source = CudaTensorSource::Create({.streams = {{device, rank.stream.get()}},
                                                .staging_bytes = uint64_t{1} << 20,
                                                .bounce_bytes = uint64_t{32} << 20});
        VARVE_ASSERT_OK(source.status());
        CheckpointerOptions options;  // as a temporary, GCC 12 warns of strings that are not set
        options.devices = *source;
        auto opened = OpenGroupCheckpointer(root(), groups[static_cast<size_t>(i)].get(), options);
        VARVE_ASSERT_OK(opened.status());
        work(&rank, opened->get());
        (*opened)->Close().IgnoreError();
        opened->reset();
        (void)cudaStreamSynchronize(rank.stream.get());
      });
    }
  }
  std::filesystem::path root() const { return folder_.path() / "root"; }
};

}  // namespace varve::internal::testing
