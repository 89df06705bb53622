// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test: the host's runtime has four devices, and computes by reference.
#include <gtest/gtest.h>

#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::testing {
namespace {

class FourDevices : public ::testing::Environment {
 public:
  void SetUp() override {
    SetDevices(4);
    UseKernels(Kernels::kReference);
  }
};

[[maybe_unused]] const auto* const kFourDevices =
    ::testing::AddGlobalTestEnvironment(new FourDevices);

}  // namespace
}  // namespace varve::internal::testing
