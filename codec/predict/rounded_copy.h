// SPDX-License-Identifier: Apache-2.0
//
// A 16-bit tensor need not be stored if it is the round-to-nearest-even copy of an FP32 tensor.
// These functions prove that, bit for bit, and make the copy again. NaNs follow PyTorch. BF16 has
// one NaN, 0x7FC0. F16 keeps the sign and the high bits of the payload, and the NaN is made quiet.
// Every level gives the same bytes. Functions are stateless.
//
//   if (IsRoundedCopy(DType::kBF16, master, weights)) ...  // store a reference to the source
//   MakeRoundedCopy(DType::kBF16, master, weights);        // rebuild
#pragma once

#include <cstddef>
#include <span>

#include "base/cpu.h"
#include "varve/tensor.h"

namespace varve::internal {

// True for the dtypes that have a rounded copy: kBF16 and kF16.
bool HasRoundedCopy(DType dtype);

// True when `copy` is exactly the rounded copy of `source`. It is false when the sizes do not match
// or the dtype has no rounded copy. It stops at the first difference.
bool IsRoundedCopy(DType dtype, std::span<const std::byte> source, std::span<const std::byte> copy,
                   CpuLevel level = DetectCpu());

// Precondition: HasRoundedCopy(dtype) and source.size() == 2 * copy.size().
void MakeRoundedCopy(DType dtype, std::span<const std::byte> source, std::span<std::byte> copy,
                     CpuLevel level = DetectCpu());

}  // namespace varve::internal
