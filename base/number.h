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

namespace varve {

// Real numbers of one tensor; integers and BOOL keep all their bits.
using Numbers = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>>;

// How a small float is built from its low bits: mantissa, exponent, sign. In `kIeee` types the
// largest exponent means infinity and NaN; in `kAllOnes` only the pattern of all ones is NaN; in
// `kFinite` every pattern is a number.
enum class SmallFloatNan { kIeee, kAllOnes, kFinite };
double DecodeSmallFloat(uint32_t bits, int exponent_bits, int mantissa_bits, SmallFloatNan nan);

// The value of a float element given in the low bits; `dtype` is any float of at most 16 bits.
double DecodeFloat16OrLess(DType dtype, uint32_t bits);

// The numbers in dense `bytes`, in order: one an element, two for C64 (real, imaginary). Elements
// below a byte are packed from the low bits up.
Numbers DecodeNumbers(DType dtype, std::span<const std::byte> bytes);

}  // namespace varve
