// SPDX-License-Identifier: Apache-2.0
//
// Which vector instructions the kernels may use. Every kernel takes the level as its first
// parameter and gives the same bytes at each, so tests compare the levels with each other.
// Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve::internal {

enum class CpuLevel {
  kPortable = 0,
  kAvx2 = 1,    // with BMI2 and FMA
  kAvx512 = 2,  // with BW, DQ, VL, VBMI and VBMI2
};

// Returns the best level of this processor. VARVE_CPU=portable or VARVE_CPU=avx2 in the environment
// keeps it from using more, for tests and measurements.
CpuLevel DetectCpu();

}  // namespace varve::internal

#if defined(__x86_64__)
#define VARVE_X86 1
#define VARVE_AVX2 [[gnu::target("avx2,bmi,bmi2,popcnt,f16c")]]
#define VARVE_AVX512                                                             \
  [[gnu::target(                                                                 \
      "avx2,bmi,bmi2,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
      "avx512vbmi2")]]
#else
#define VARVE_X86 0
#define VARVE_AVX2
#define VARVE_AVX512
#endif
#define VARVE_INLINE __attribute__((always_inline))

namespace varve::internal {

// Runs a plain loop compiled for the given level. The compiler vectorises it three times. The loop
// is a lambda marked VARVE_INLINE without captures, and takes what it needs as arguments. The
// compiler must assume that a store of bytes changes captured variables, and then it uses no
// vectors.
template <typename Loop, typename... Args>
void RunPortable(Loop loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
VARVE_AVX2 void RunAvx2(Loop loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
VARVE_AVX512 void RunAvx512(Loop loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
void RunAt(CpuLevel level, Loop loop, Args... args) {
  switch (level) {
    case CpuLevel::kAvx512:
      return RunAvx512(loop, args...);
    case CpuLevel::kAvx2:
      return RunAvx2(loop, args...);
    case CpuLevel::kPortable:
      return RunPortable(loop, args...);
  }
}

// Input and output of a loop. They do not overlap.
using In = const uint8_t* __restrict;
using Out = uint8_t* __restrict;
// Returns the bytes as loops take them.
inline const uint8_t* Data(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}
inline uint8_t* Data(std::span<std::byte> bytes) {
  return reinterpret_cast<uint8_t*>(bytes.data());
}

}  // namespace varve::internal
