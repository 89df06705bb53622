// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test, this makes the codec and memcpy compute what kernels would, in half the time
// of emulated kernels. device_digest_test.cc and batch_kernel_test.cc run the kernels.
#include <gtest/gtest.h>

#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::testing {
namespace {

class ReferenceKernels : public ::testing::Environment {
 public:
  void SetUp() override { UseKernels(Kernels::kReference); }
};

[[maybe_unused]] const auto* const kReferenceKernels =
    ::testing::AddGlobalTestEnvironment(new ReferenceKernels);

}  // namespace
}  // namespace varve::internal::testing
