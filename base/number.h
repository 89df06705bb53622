// SPDX-License-Identifier: Apache-2.0
//
// Elements of any dtype as numbers, for people to look at. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal {

// The numbers of one tensor. Integers and BOOL keep all their bits.
using Numbers = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>>;

// Which bit patterns of a small float are not numbers. In `kIeee` types the largest exponent means
// infinity and NaN. In `kAllOnes` types only the pattern of all ones is NaN. In `kFinite` types
// every pattern is a number.
enum class SmallFloatNan { kIeee, kAllOnes, kFinite };
double DecodeSmallFloat(uint32_t bits, int exponent_bits, int mantissa_bits, SmallFloatNan nan);

// Returns the value of a float element whose bits are the low bits of `bits`. `dtype` is any float
// of at most 16 bits.
double DecodeFloat16OrLess(DType dtype, uint32_t bits);

// Returns the numbers in dense `bytes`, in order. An element gives one number, or two if it is C64
// (real, imaginary). Elements smaller than a byte are packed from the low bits up.
Numbers DecodeNumbers(DType dtype, std::span<const std::byte> bytes);

}  // namespace varve::internal
