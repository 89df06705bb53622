// SPDX-License-Identifier: Apache-2.0
//
// cuda_loop --check where there is no GPU: on the CUDA runtime of tests/cuda/host_runtime.
#include "examples/cuda_loop_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/host_runtime/host_runtime.h"
#include "tests/support/temp_folder.h"

namespace cuda_example {
namespace {

TEST(CudaLoopCheckTest, TheContractHolds) {
  const varve::internal::testing::TempFolder folder;
  EXPECT_EQ(CheckContract(folder.path() / "stores", 20).ToString(), "ok");
  EXPECT_THAT(varve::internal::testing::Leaks(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace cuda_example
