// SPDX-License-Identifier: Apache-2.0
//
// When ranks take memory of devices, which only the host's runtime can tell.
#include <barrier>

#include "tests/cuda/device_ranks_fixture.h"
#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::testing {
namespace {

int NumTaken() {
  return NumCalls("cudaMalloc") + NumCalls("cudaHostAlloc") + NumCalls("cudaHostRegister");
}

TEST_F(DeviceRanksTest, SavesAndRestoresOfReplicasTakeNoMemory) {
  std::barrier all(2);
  int taken = 0;
  Run(2, [&](Rank* rank, AsyncCheckpointer* ckpt) {
    Fill(rank, 1);
    VARVE_EXPECT_OK(ckpt->Prewarm(rank->state.state()));
    all.arrive_and_wait();
    if (rank->rank == 0) taken = NumTaken();
    all.arrive_and_wait();
    for (uint64_t step = 1; step <= 2; ++step) {
      VARVE_EXPECT_OK(ckpt->Save(step, rank->state.state()).status());
      for (size_t i = 0; i < 3; ++i) rank->state.Change(i, 4 * step);
    }
    for (const bool exchange : {false, true}) {
      VARVE_EXPECT_OK(ckpt->Restore("2", {.exchange = exchange}, &rank->state.state()).status());
    }
    all.arrive_and_wait();
    if (rank->rank == 0) {
      EXPECT_EQ(NumTaken(), taken);
    }
    all.arrive_and_wait();
  });
}

}  // namespace
}  // namespace varve::internal::testing
