// SPDX-License-Identifier: Apache-2.0
//
// The most memory that this process has held. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>

namespace varve::bench {

// Gives back what is free, and the peak begins anew. The resident bytes now; nullopt where the
// system has no such peak, or keeps the old one: then none is to be printed.
[[nodiscard]] std::optional<uint64_t> ResetPeakMemory();
// The most resident bytes since then. Precondition: ResetPeakMemory has given a number.
uint64_t PeakMemoryBytes();

}  // namespace varve::bench
