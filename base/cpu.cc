// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

#if VARVE_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace varve::internal {

namespace {

#if VARVE_X86
// Clang 14 does not know this one by its name.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

CpuLevel Detect() {
#if VARVE_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") &&
                    __builtin_cpu_supports("fma") && HasF16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  if (avx2) return avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
#endif
  return CpuLevel::kPortable;
}

// The highest level that the environment allows. A name that it does not know allows all.
CpuLevel Allowed() {
  const char* const value = std::getenv("VARVE_CPU");
  const std::string_view name = value == nullptr ? "" : value;
  if (name == "portable") return CpuLevel::kPortable;
  return name == "avx2" ? CpuLevel::kAvx2 : CpuLevel::kAvx512;
}

}  // namespace

CpuLevel DetectCpu() {
  static const CpuLevel level = std::min(Detect(), Allowed());
  return level;
}

}  // namespace varve::internal
