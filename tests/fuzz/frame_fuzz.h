// SPDX-License-Identifier: Apache-2.0
//
// The body of the frame fuzz target, also run by codec_test with mutated payloads. Stateless.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace varve::internal::fuzz {

// predictor 1, dtype 1, raw bytes 3, of a replay also its step 44, then the payload of a frame.
void DecodeHostilePayload(std::span<const std::byte> input);
// The input that is like a frame. Empty if it is none.
std::string HostileInputOf(std::span<const std::byte> frame);

}  // namespace varve::internal::fuzz
