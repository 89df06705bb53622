// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test: the host's runtime has four devices.
#include <gtest/gtest.h>

#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::testing {
namespace {

class FourDevices : public ::testing::Environment {
 public:
  void SetUp() override { SetDevices(4); }
};

[[maybe_unused]] const auto* const kFourDevices =
    ::testing::AddGlobalTestEnvironment(new FourDevices);

}  // namespace
}  // namespace varve::internal::testing
