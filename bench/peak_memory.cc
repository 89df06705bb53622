// SPDX-License-Identifier: Apache-2.0
#include "bench/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace varve::internal::bench {
namespace {

// Reads a line of /proc/self/status, such as "VmHWM:", which counts in KiB.
std::optional<uint64_t> StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == key && status >> kib) return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> ResetPeakMemory() {
  // The system counts pages for each thread, and adds them up later.
  constexpr uint64_t kUncertain = uint64_t{4} << 20;
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  if (!file) return std::nullopt;
  const std::optional<uint64_t> peak = StatusBytes("VmHWM:"), used = StatusBytes("VmRSS:");
  if (!peak.has_value() || !used.has_value() || *peak > *used + kUncertain) return std::nullopt;
  return peak;
}

uint64_t PeakMemoryBytes() { return *StatusBytes("VmHWM:"); }

}  // namespace varve::internal::bench
