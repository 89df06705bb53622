// SPDX-License-Identifier: Apache-2.0
//
// The cost of an operation besides its wall time: time of processors, bytes that calls have read
// and written, from the cache or the disk, calls of the system, and memory. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace varve::internal::bench {

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads, in the system, too: a busy machine changes it little
  double bytes_read = 0;
  double bytes_written = 0;
  double calls = 0;         // reads and writes, and, in this process, what NumFileCalls counts
  double memory_bytes = 0;  // the most that it held above what was held before

  // Returns the cost of one of `n` equal operations. They share the memory.
  Cost Each(double n) const;
  // The most of each number.
  void TakeMost(const Cost& other);
};

// Measures a call in this process, with everything that its threads do meanwhile.
Cost MeasureCost(const std::function<void()>& call);

// Measures a program that is started with these arguments, with all of its memory. Its output is
// discarded. It ends this program when the other fails with another code than `allowed`.
Cost RunProgram(const std::vector<std::string>& command, int allowed = 0);

// For main. RunProgram starts this program again, so that the other program is started from a small
// process. Returns the exit code in that process, or else -1.
int MainOfHelper(int argc, char** argv);

}  // namespace varve::internal::bench
