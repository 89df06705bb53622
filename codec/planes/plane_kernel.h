// SPDX-License-Identifier: Apache-2.0
//
// Splits elements of 1, 2, 4 or 8 bytes into byte planes, and joins them. Plane p holds byte p of
// every element, low byte first. Every level gives the same bytes. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"

namespace varve::internal {

// planes.size() is the element size. Every plane has room for num_elements bytes.
void SplitPlanes(CpuLevel level, const uint8_t* elements, size_t num_elements,
                 std::span<uint8_t* const> planes);
void JoinPlanes(CpuLevel level, std::span<const uint8_t* const> planes, size_t num_elements,
                uint8_t* elements);

// Joins two or four planes and rotates each element right by one, in one pass. Most keyframes of
// floats need that.
void JoinRotated(CpuLevel level, std::span<const uint8_t* const> planes, size_t num_elements,
                 uint8_t* elements);

}  // namespace varve::internal
