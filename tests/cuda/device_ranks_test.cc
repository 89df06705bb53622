// SPDX-License-Identifier: Apache-2.0
//
// Saves and restores of ranks with tensors on devices.
#include "tests/cuda/device_ranks_fixture.h"

namespace varve::internal::testing {
namespace {

TEST_F(DeviceRanksTest, OtherRanksGoOnWhereTheseStopped) {
  Run(4, [](Rank* rank, AsyncCheckpointer* ckpt) {
    Fill(rank, 1);
    for (uint64_t step = 1; step <= 2; ++step) {
      VARVE_ASSERT_OK(ckpt->BeginSave(step, rank->state.state()).status());
      VARVE_ASSERT_OK(ckpt->AwaitStaged());
      for (size_t i = 0; i < 3; ++i) rank->state.Change(i, 4 * step);
      VARVE_ASSERT_OK(ckpt->Wait());
    }
  });
  for (const bool exchange : {false, true}) {
    for (const int size : {3, 1}) {
      Run(size, [&](Rank* rank, AsyncCheckpointer* ckpt) {
        Fill(rank, 1);
        const std::vector<TestTensor> values = rank->state.Values();
        rank->state.Clear();
        VARVE_ASSERT_OK(
            ckpt->Restore("1", {.reshard = true, .exchange = exchange}, &rank->state.state())
                .status());
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(SameBytes(rank->state.Download(i), values[i].bytes)) << values[i].name;
        }
      });
    }
  }
}

TEST_F(DeviceRanksTest, ReplicasThatDifferAreNamed) {
  Run(2, [](Rank* rank, AsyncCheckpointer* ckpt) {
    Fill(rank, 1);
    if (rank->rank == 1) rank->state.Change(1, 1'999'999);
    Status status = ckpt->Save(1, rank->state.state()).status();
    if (status.ok()) status = ckpt->Wait();
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor v"));
  });
}

}  // namespace
}  // namespace varve::internal::testing
