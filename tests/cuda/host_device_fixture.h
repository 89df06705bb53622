// SPDX-License-Identifier: Apache-2.0
//
// What tests of saves share that only the host's runtime can do: faults, and chosen places of
// memory.
#pragma once

#include "tests/cuda/device_fixture.h"
#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::testing {

// A test must leave nothing on a device.
class HostDeviceTest : public DeviceTest {
 protected:
  void TearDown() override {
    DeviceTest::TearDown();
    AwaitIdle();
    EXPECT_THAT(Leaks(), ::testing::IsEmpty());
    testing::Reset();
    UseKernels(Kernels::kReference);
  }

  // Saves to the end, even after an error.
  Status TrySave(uint64_t step, const TrainingState& state) {
    const auto saved = ckpt_->Save(step, state);
    const Status waited = ckpt_->Wait();
    if (!saved.ok()) return saved.status();
    return waited.ok() ? ckpt_->last_stats()->status : waited;
  }
};

}  // namespace varve::internal::testing
