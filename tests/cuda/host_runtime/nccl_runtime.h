// SPDX-License-Identifier: Apache-2.0
//
// What tests ask of the NCCL of nccl.cc.
#pragma once

#include <cstddef>

namespace varve::internal::testing {

// Communicators that are neither destroyed nor aborted.
size_t NumNcclComms();

}  // namespace varve::internal::testing
