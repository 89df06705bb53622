// SPDX-License-Identifier: Apache-2.0
//
// The body of the frame fuzz target, also run by codec_test with mutated payloads. Stateless.
#pragma once

#include <cstddef>
#include <span>

namespace varve::internal::fuzz {

// predictor 1, dtype 1, raw bytes 3, then the payload of a frame.
void DecodeHostilePayload(std::span<const std::byte> input);

}  // namespace varve::internal::fuzz
