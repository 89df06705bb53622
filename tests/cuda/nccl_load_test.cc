// SPDX-License-Identifier: Apache-2.0
//
// What ranks that talk over NCCL load into their devices.
#include <cstring>

#include "tests/cuda/nccl_load_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;

// Replicas, columns of chunks that all ranks want, tensors without whole pieces, and small ones.
TEST_F(NcclLoadTest, TensorsComeToAllDevices) {
  const TestTensor a = RandomTensor("a", DType::kF32, {kMillion + 12'345}, 1);
  const TestTensor c = RandomTensor("c", DType::kF32, {1000, 600}, 2);
  const TestTensor s = RandomTensor("s", DType::kU8, {1001}, 3);
  const TestTensor w = RandomTensor("w", DType::kBF16, {70'001}, 4);
  reader_ = SaveAndRead({a, c, s, w});
  for (const TestTensor& tensor : {a, s, w}) AddToAll(tensor);
  for (int rank = 0; rank < size(); ++rank) AddColumns(c, rank);
  for (const Status& status : LoadAll()) VARVE_EXPECT_OK(status);
  ExpectFilled();
  ExpectEachReadOnce(*reader_);
}

// One rank makes a master of w, so w comes over the hosts of all ranks that want it. One rank has a
// tensor for itself, and one may have no device.
TEST_F(NcclLoadTest, WhatCannotGoFromDeviceToDeviceIsReadOnceToo) {
  const TestTensor a = RandomTensor("a", DType::kF32, {kMillion + 1000}, 1);
  const TestTensor w = RandomTensor("w", DType::kBF16, {kMillion + 77}, 2);
  const TestTensor own = RandomTensor("own", DType::kF32, {kMillion}, 3);
  const TestTensor h = RandomTensor("h", DType::kF32, {1000}, 4);
  reader_ = SaveAndRead({a, w, own, h});
  for (int rank = 0; rank < 2; ++rank) {
    ranks_[rank].Add(a);
    ranks_[rank].Add(w);
  }
  ranks_[1].added().derived_from = "m.w";
  std::vector<std::byte> wide(2 * w.bytes.size());
  for (size_t i = 0; i < w.bytes.size(); i += 2) std::memcpy(&wide[2 * i + 2], &w.bytes[i], 2);
  ranks_[1].Add({"m.w", DType::kF32, w.shape, wide, ""});
  ranks_[1].added().role = TensorRole::kOptimizer;
  ranks_[0].Add(own);
  Rank& last = ranks_.back();
  if (size() > 2) last.source = nullptr;
  last.state->AddOnHost({"h", DType::kF32, h.shape, std::vector<std::byte>(4000), ""});
  for (const Status& status : LoadAll()) VARVE_EXPECT_OK(status);
  ExpectFilled();
  EXPECT_EQ(std::memcmp(last.added().data, h.bytes.data(), h.bytes.size()), 0);
  ExpectEachReadOnce(*reader_);
}

// Rank 0 reads the only chunk.
TEST_F(NcclLoadTest, WhatComesOtherwiseThanItWasSentFailsAllRanks) {
  const TestTensor a = RandomTensor("a", DType::kF32, {100'000}, 1);
  reader_ = SaveAndRead({a});
  AddToAll(a);
  wrong_ = 0;
  EXPECT_THAT(LoadAll(),
              Each(FailsWith(StatusCode::kCorruption, "what rank 0 has sent is damaged")));
  wrong_ = -1;
  for (const Status& status : LoadAll()) VARVE_EXPECT_OK(status);
  ExpectFilled();
}

}  // namespace
}  // namespace varve::internal::testing
