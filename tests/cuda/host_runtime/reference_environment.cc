// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test: kernels are computed by the codec and memcpy, in half the time of those that
// are emulated; device_digest_test.cc and batch_kernel_test.cc run these.
#include <gtest/gtest.h>

#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::testing {
namespace {

class ReferenceKernels : public ::testing::Environment {
 public:
  void SetUp() override { UseKernels(Kernels::kReference); }
};

[[maybe_unused]] const auto* const kReferenceKernels =
    ::testing::AddGlobalTestEnvironment(new ReferenceKernels);

}  // namespace
}  // namespace varve::testing
