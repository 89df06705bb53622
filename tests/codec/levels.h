// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that a test runs on: all that this machine has.
#pragma once

#include <vector>

#include "base/cpu.h"

namespace varve::internal {

inline std::vector<CpuLevel> Levels() {
  std::vector<CpuLevel> levels = {CpuLevel::kPortable};
  if (DetectCpu() >= CpuLevel::kAvx2) levels.push_back(CpuLevel::kAvx2);
  if (DetectCpu() >= CpuLevel::kAvx512) levels.push_back(CpuLevel::kAvx512);
  return levels;
}

}  // namespace varve::internal
