// SPDX-License-Identifier: Apache-2.0
//
// The most memory that this process has held. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>

namespace varve::internal::bench {

// Gives free memory back and starts the peak again. Returns the resident bytes now. It returns
// nullopt where the system has no such peak or keeps the old one. Then print no peak.
[[nodiscard]] std::optional<uint64_t> ResetPeakMemory();
// The most resident bytes since then. Precondition: ResetPeakMemory has given a number.
uint64_t PeakMemoryBytes();

}  // namespace varve::internal::bench
