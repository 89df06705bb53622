// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime without a device and without latency: each call does its work at once, on the
// thread that makes it. What is left of a save is the time of its host side. Memory of the device
// is memory of the host. Digests of chunks that are all zero take no time. Thread rule: any thread,
// one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

namespace varve::internal::bench::instant {

using Clock = std::chrono::steady_clock;

// What of the device is remembered of the last save.
struct Marks {
  Clock::time_point launched;  // the digests of a save were launched
  Clock::time_point digested;  // the kernel was done, which is at once
  Clock::time_point awaited;   // the host had nothing else to do than wait for it
  bool is_awaited = true;
};
Marks& marks();

// The memory that is the device's. All of it is zero, but for the chunks that start at `changed`.
// Both must outlive their use.
void SetMemory(std::span<const std::byte> memory);
void SetChanged(std::span<const std::byte* const> changed);
bool MayBeChanged(const std::byte* chunk);

}  // namespace varve::internal::bench::instant
