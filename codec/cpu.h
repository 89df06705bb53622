// SPDX-License-Identifier: Apache-2.0
//
// Which vector instructions the kernels may use. Every kernel takes the level as its first
// parameter and gives the same bytes at each, so tests compare the levels with each other.
// Functions are stateless.
#pragma once

namespace varve {

enum class CpuLevel {
  kPortable = 0,
  kAvx2 = 1,
  kAvx512 = 2,  // with BW, DQ, VL, VBMI and VBMI2
};

// The best level of this processor.
CpuLevel DetectCpu();

}  // namespace varve

#if defined(__x86_64__)
#define VARVE_X86 1
#define VARVE_AVX2 [[gnu::target("avx2,bmi,bmi2,popcnt,f16c")]]
#define VARVE_AVX512                                                                              \
  [[gnu::target(                                                                                  \
      "avx2,bmi,bmi2,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")]]
#else
#define VARVE_X86 0
#define VARVE_AVX2
#define VARVE_AVX512
#endif
#define VARVE_INLINE __attribute__((always_inline))

namespace varve {

// Runs a plain loop compiled for the given level: the compiler vectorises it three times. The loop
// must be a lambda marked VARVE_INLINE, or it is compiled for the portable level only.
template <typename Loop>
void RunPortable(const Loop& loop) {
  loop();
}
template <typename Loop>
VARVE_AVX2 void RunAvx2(const Loop& loop) {
  loop();
}
template <typename Loop>
VARVE_AVX512 void RunAvx512(const Loop& loop) {
  loop();
}
template <typename Loop>
void RunAt(CpuLevel level, const Loop& loop) {
  switch (level) {
    case CpuLevel::kAvx512: return RunAvx512(loop);
    case CpuLevel::kAvx2: return RunAvx2(loop);
    case CpuLevel::kPortable: return RunPortable(loop);
  }
}

}  // namespace varve
