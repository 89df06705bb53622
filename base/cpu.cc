// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

namespace varve::internal {

namespace {

CpuLevel Detect() {
#if VARVE_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  if (avx2) return avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
#endif
  return CpuLevel::kPortable;
}

}  // namespace

CpuLevel DetectCpu() {
  static const CpuLevel level = Detect();
  return level;
}

}  // namespace varve::internal
